"""Trains a small convolutional network on MNIST with several workers, as TensorFlow's tutorial does.

    tf-preempt launch --workers 2 -- python examples/multi_worker_with_keras.py
    TF_CONFIG='{"cluster": ..., "task": ...}' python examples/multi_worker_with_keras.py   # on each machine

What the tutorial "Multi-worker training with Keras" teaches, for Keras 3; MultiWorkerMirroredStrategy comes
from tf_preempt, all else is the same.  Every worker runs it.  The chief saves the model to the directory
that is given as an argument (runs/mnist); the others save, too, as the tutorial does, and remove theirs.

MNIST is downloaded to ~/.keras (or KERAS_HOME) by the first run.
"""

import argparse
import json
import os
import shutil

from tf_preempt.strategies import MultiWorkerMirroredStrategy  # the tutorial: from tf.distribute

strategy = MultiWorkerMirroredStrategy()  # joins the cluster: before anything else of TensorFlow and Keras

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

BATCH_PER_WORKER = 64


def mnist(batch: int) -> tf.data.Dataset:
    """Endless global batches, in the same order on all workers: each is given its share of each batch."""
    (images, labels), _ = keras.datasets.mnist.load_data()
    images = images[..., None].astype("float32") / 255
    data = tf.data.Dataset.from_tensor_slices((images, labels.astype("int64")))
    return data.shuffle(len(images), seed=1).repeat().batch(batch)


def convolutional_network() -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.SGD(learning_rate=0.01),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def own_path(directory: str, task: int) -> str:
    """Where this worker saves: only the chief's file is to stay."""
    own = directory if task == 0 else os.path.join(directory, f"of-worker-{task}")
    os.makedirs(own, exist_ok=True)
    return os.path.join(own, "model.keras")


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains on MNIST with several workers.")
    parser.add_argument("directory", nargs="?", default="runs/mnist", help="for the trained model")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps-per-epoch", type=int, default=70)
    arguments = parser.parse_args()

    config = json.loads(os.environ.get("TF_CONFIG", "{}"))
    workers = len(config.get("cluster", {}).get("worker", ["this one"]))
    task = config.get("task", {}).get("index", 0)

    keras.utils.set_random_seed(1)
    data = mnist(BATCH_PER_WORKER * workers)
    with strategy.scope():
        model = convolutional_network()
    verbose = 2 if task == 0 else 0
    model.fit(data, epochs=arguments.epochs, steps_per_epoch=arguments.steps_per_epoch, verbose=verbose)

    path = own_path(arguments.directory, task)
    model.save(path)
    if task == 0:
        loaded = keras.models.load_model(path)
        loss, accuracy = loaded.evaluate(data.take(10), verbose=0)
        print(f"{workers} workers; loaded from {path}: loss {loss:.4f}, accuracy {accuracy:.4f}")
    else:
        shutil.rmtree(os.path.dirname(path))


if __name__ == "__main__":
    main()
