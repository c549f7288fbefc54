"""The training program of the demo: what a user would write, and a callback that writes down each batch.

``tf-preempt run`` and ``launch`` start it once per worker, as ``python -m tf_preempt.cli.demo.train``.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

import tf_preempt
from tf_preempt.cli.demo import data
from tf_preempt.cli.demo.progress import DIRECTORY_VARIABLE, ProgressFile
from tf_preempt.cli.demo.result import write_result
from tf_preempt.cli.demo.settings import BATCH, TRAIN_IMAGES, VALIDATION_BATCH
from tf_preempt.errors import ConfigError

__all__ = ["main"]

_LEARNING_RATE = 0.003


def main(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> None:
    """Trains; the chief writes the result.

    Args:
        argv: the arguments behind the program's name.
        environ: the environment variables.

    Raises:
        ConfigError: TF_PREEMPT_DEMO_PROGRESS is not set.

    Environment:
        TF_CONFIG, as `tf_preempt.cluster_resolvers.auto` reads it.
        TF_PREEMPT_DEMO_PROGRESS: the folder for the notes of what was done.
    """
    options = _parse(argv)
    # Several workers share this machine's cores: threads of their own would only be in each other's way.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    resolver = tf_preempt.cluster_resolvers.auto()
    strategy = tf_preempt.strategies.MultiWorkerMirroredStrategy(resolver)
    tf.keras.utils.set_random_seed(options.seed)
    tf.config.experimental.enable_op_determinism()

    train, test = _read(options.data, options.seed)
    with strategy.scope():
        model = _build_model()
        model.compile(
            tf.keras.optimizers.Adam(_LEARNING_RATE),
            tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    worker = resolver.task_id or 0
    history = model.fit(
        train,
        validation_data=test,
        epochs=options.epochs,
        verbose=0,
        callbacks=[
            tf_preempt.callbacks.PreemptionCheckpoint(options.checkpoints, save_every=options.save_every),
            _progress(environ, worker),
        ],
    )
    if worker == 0:
        write_result(
            options.result,
            weights=model.variables,
            optimizer=model.optimizer.variables,
            history=history.history,
        )


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--data", required=True, help="folder of the TFDS data set")
    parser.add_argument("--checkpoints", required=True, help="folder for the checkpoints")
    parser.add_argument("--result", required=True, help="file for the final weights")
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--save-every", type=int, required=True, help="steps between checkpoints")
    return parser.parse_args(argv)


def _read(data_dir: str, seed: int) -> tuple[tf.data.Dataset, tf.data.Dataset]:
    train = data.read(data_dir, "train").shuffle(TRAIN_IMAGES, seed=seed)
    test = data.read(data_dir, "test")
    return (
        train.map(_scale).batch(BATCH).prefetch(2),
        test.map(_scale).batch(VALIDATION_BATCH).prefetch(2),
    )


def _scale(example: Mapping[str, Any]) -> tuple[Any, Any]:
    return tf.cast(example["image"], tf.float32) / 16.0, example["label"]


def _build_model() -> Any:
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            tf.keras.Input((8, 8, 1)),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.Flatten(),
            layers.Dropout(0.3),
            layers.Dense(64, activation="relu"),
            layers.Dropout(0.3),
            layers.Dense(10),
        ]
    )


def _progress(environ: Mapping[str, str], worker: int) -> Any:
    from tf_preempt.cli.demo.progress_callback import Progress  # imports Keras: the strategy comes first

    directory = environ.get(DIRECTORY_VARIABLE)
    if not directory:
        raise ConfigError(
            f"{DIRECTORY_VARIABLE} is not set: expected the folder for the notes of what was done.",
            hint="start it through `tf-preempt demo`.",
        )
    return Progress(ProgressFile(directory, worker))


if __name__ == "__main__":
    main(sys.argv[1:])
