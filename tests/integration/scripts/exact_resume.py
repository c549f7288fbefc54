"""Trains a small model under the callback, and interrupts it at a chosen event of `fit`.

``exact_resume.py DIRECTORY VARIANT/WORD...`` trains once for each word, with the checkpoint directory
``DIRECTORY/VARIANT/N``:

* ``whole`` trains undisturbed (N is ``whole``);
* ``N``, a number, sends this process a SIGTERM in the N-th event of `fit` (see `Kill`);
* ``resume:N`` goes on with what N left; ``resume:N:M`` interrupts that at its event M;
* of two workers (``TF_CONFIG``) ``N@W`` interrupts W, and ``N@W-9`` kills it.

Variants whose name begins with ``replicas`` train on two replicas in this process, and their last batch is
smaller.

A life appends to ``<worker>.trained`` which batches it trained; the one that completes writes
``<worker>.npz`` and ``<worker>.json``.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pathlib
import re
import signal
import sys
import threading
import warnings

import keras
import numpy as np
import tensorflow as tf

import tf_preempt

EPOCHS = 2


def arrays(rows: int = 40):
    rng = np.random.default_rng(0)
    return rng.random((rows, 6), dtype="float32"), (rng.random((rows, 1)) > 0.5).astype("float32")


def pipelines(variant: str, batch: int):
    """Training and validation data of a variant."""
    x, y = arrays(5 * batch - (5 if variant.startswith("replicas") else 0))
    if variant == "nested":
        features, labels = tf.constant(x), tf.constant(y)

        def shards():
            return (
                tf.data.Dataset.range(4)
                .shuffle(4, seed=1)
                .interleave(lambda i: tf.data.Dataset.from_tensor_slices((features, labels)).shard(4, i))
            )

        train, validation = shards().shuffle(16, seed=2), shards().take(3 * batch).shuffle(8, seed=9)
    else:
        train = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(5 * batch, seed=3)
        validation = tf.data.Dataset.from_tensor_slices((x, y)).take(3 * batch).shuffle(3 * batch, seed=4)
    if variant == "steps_per_epoch":
        train = train.repeat()
    train, validation = train.batch(batch), validation.batch(batch)
    if variant == "unknown":
        train, validation = (data.filter(lambda x, y: True) for data in (train, validation))
    return train.prefetch(8), validation.prefetch(8)


def fit_arguments(variant: str, batch: int) -> dict:
    if variant == "arrays":
        x, y = arrays(5 * batch)
        rows = 3 * batch
        return {
            "x": x,
            "y": y,
            "batch_size": batch,
            "shuffle": False,
            "validation_data": (x[:rows], y[:rows]),
        }
    train, validation = pipelines(variant, batch)
    arguments = {"x": train, "validation_data": validation}
    if variant == "steps_per_epoch":
        arguments |= {"steps_per_epoch": 4, "validation_steps": 2}
    return arguments


def build(variant: str):
    layers = [
        keras.layers.Dense(8, activation="relu"),
        keras.layers.Dropout(0.5),
        keras.layers.Dense(1, "sigmoid"),
    ]
    if variant != "default":  # there the model is built by `fit`
        layers.insert(0, keras.layers.Input((6,)))
    optimizer = keras.optimizers.Adam(0.01)
    if variant == "replicas_own_state":  # what each replica writes by itself
        layers.insert(2, keras.layers.BatchNormalization(momentum=0.5))
        optimizer = keras.optimizers.Adam(0.01, gradient_accumulation_steps=2)
    model = keras.Sequential(layers)
    model.compile(
        optimizer,
        "binary_crossentropy",
        metrics=["accuracy", keras.metrics.AUC(num_thresholds=20, name="auc")],
        steps_per_execution=2 if variant.endswith("two_per_execution") else 1,
    )
    return model


class Trained(keras.callbacks.Callback):
    """Writes down each batch that was trained or validated."""

    def __init__(self, path: pathlib.Path) -> None:
        super().__init__()
        self._path = path
        self._epoch = 0

    def _note(self, what: str, number: int) -> None:
        with self._path.open("a") as file:
            file.write(f"{what} {self._epoch} {number}\n")

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        self._note("train", batch)

    def on_test_batch_end(self, batch, logs=None):
        self._note("validate", batch)

    def on_epoch_end(self, epoch, logs=None):
        self._note("epoch", epoch)


class Reported(logging.Handler):
    """Waits for the log line that tells that this worker has reported where it is, after a notice."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("The workers agree where to save (SIGTERM)"):
            self.seen.set()


class Kill(keras.callbacks.Callback):
    """Sends this process a signal in the n-th event of `fit`, so that it leaves at the next boundary.

    Events, counted from 1: each epoch's begin, training executions, the validation's begin, its executions.
    """

    def __init__(self, number: int, which: signal.Signals) -> None:
        super().__init__()
        self._left, self._signal = number, which

    def _event(self, *_args, **_kwargs) -> None:
        self._left -= 1
        if self._left == 0:
            reported = Reported()
            logging.getLogger("tf_preempt").addHandler(reported)
            os.kill(os.getpid(), self._signal)
            if not reported.seen.wait(30):
                raise SystemExit("The signal was not noticed within 30 s.")
            logging.getLogger("tf_preempt").removeHandler(reported)

    def get_state(self):
        return self._left

    def set_state(self, state):
        """A later life counts afresh."""

    on_epoch_begin = on_train_batch_end = on_test_begin = on_test_batch_end = _event


def train(strategy, directory: pathlib.Path, variant: str, kill: Kill | None) -> bool:
    """Trains to the end or to the notice; says whether it was the end."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    worker, workers = 0, 1
    if strategy is not None:
        worker, workers = strategy.cluster_resolver.task_id, 2
    elif variant.startswith("replicas"):
        strategy = tf_preempt.strategies.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope() if strategy is not None else contextlib.nullcontext():
        model = build(variant)
    directory.mkdir(parents=True, exist_ok=True)
    callback = tf_preempt.callbacks.PreemptionCheckpoint(
        directory,
        save_every="epoch" if workers > 1 else None,
        on_preemption="raise" if workers == 1 else "exit",
    )
    others = [Trained(directory / f"{worker}.trained"), kill]
    try:
        history = model.fit(
            **fit_arguments(variant, 8 * workers),
            epochs=EPOCHS,
            verbose=0,
            callbacks=[callback, *(one for one in others if one)],
        )
    except tf_preempt.errors.Preempted:
        return False
    variables = {"model": model.variables, "optimizer": model.optimizer.variables}
    if workers == 1:  # what several replicas hold of a metric is summed, in a collective
        variables["metric"] = model.metrics_variables
    content = {
        f"{kind}/{index}": variable.numpy()
        for kind, found in variables.items()
        for index, variable in enumerate(found)
    }
    if isinstance(strategy, tf_preempt.strategies.MirroredStrategy):
        content |= {
            f"{kind}/{index}/{replica}": part.numpy()
            for kind, found in variables.items()
            for index, variable in enumerate(found)
            for replica, part in enumerate(strategy.experimental_local_results(variable.value))
        }
    np.savez(directory / f"{worker}.npz", **content)
    (directory / f"{worker}.json").write_text(json.dumps([history.epoch, history.history]))
    return True


def parse(word: str):
    """Name of the directory; event at which to kill, or None; its signal; the worker that is killed."""
    match = re.fullmatch(r"(whole|(?:resume:)?\d+)(?::(\d+))?(?:@(\d))?(-9)?", word)
    if match is None:
        raise SystemExit(f"{word!r} is not understood")
    begin, again, worker, hard = match.groups()
    name = begin.removeprefix("resume:")
    event = again or (begin if begin.isdigit() else None)
    return name, event and int(event), signal.SIGKILL if hard else signal.SIGTERM, int(worker or 0)


def main(directory: str, jobs: list[str]) -> None:
    warnings.simplefilter("ignore")  # Keras says of data of unknown length that it ran out
    tf.config.experimental.enable_op_determinism()
    logging.basicConfig(level=logging.INFO)
    if any(job.startswith("replicas") for job in jobs):
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf_preempt.strategies.MultiWorkerMirroredStrategy() if "TF_CONFIG" in os.environ else None
    me = strategy.cluster_resolver.task_id if strategy else 0
    for job in jobs:
        variant, word = job.split("/")
        name, event, which, worker = parse(word)
        kill = Kill(event, which) if event and worker == me else None
        ended = train(strategy, pathlib.Path(directory, variant, name), variant, kill)
        print("ENDED" if ended else "INTERRUPTED", job, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
