"""Trains in a cluster of any size, on data of tf_preempt.data; leaves, or goes on, in several places.

Arguments: root directory, "begin" or "pause" or "finish", and jobs such as "loop-3": the kind and
a number of steps.  Each has a directory of its own.  "begin" trains until that many steps are done, "pause"
goes on for two more steps, "finish" to the end.  Each worker writes which examples it trained on, in which
global step.
"""

import json
import os
import pathlib
import signal
import sys
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tf_preempt
from tf_preempt.errors import Preempted

EXAMPLES, BATCH, EPOCHS = 44, 8, 2
_ON_READ, _SUM = tf.VariableSynchronization.ON_READ, tf.VariableAggregation.SUM

root, mode, *jobs = sys.argv[1:]
resolver = tf_preempt.cluster_resolvers.auto()
strategy = tf_preempt.strategies.MultiWorkerMirroredStrategy(resolver)
worker = int(resolver.task_id or 0)
told = resolver.cluster_spec().num_tasks("worker") - 1  # gets the notice
tf.config.experimental.enable_op_determinism()

trained: list[tuple[int, int]] = []
read: list[int] = []


class Source:
    """Each item is its index and features that follow from it; notes what is read."""

    def __len__(self) -> int:
        return EXAMPLES if "repeat" not in kind else EXAMPLES - EXAMPLES % BATCH

    def __getitem__(self, index: int) -> dict[str, Any]:
        read.append(index)
        x = np.sin(np.arange(1.0, 5.0) * (index + 1)).astype("float32")
        return {"index": np.int64(index), "x": x, "y": np.float32(index % 3 == 0)}


def note(step: np.ndarray, indices: np.ndarray) -> np.int64:
    trained.extend((int(step), int(index)) for index in indices)
    return np.int64(0)


class Noting(keras.Model):
    """A model that notes what it is trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = keras.layers.Dense(1, "sigmoid", kernel_initializer=keras.initializers.GlorotUniform(3))

    def call(self, x: Any) -> Any:
        return self.layer(x)

    def train_step(self, data: Any) -> Any:
        x, y, indices = data
        noted = tf.numpy_function(
            note, [keras.ops.convert_to_tensor(self.optimizer.iterations), indices], tf.int64
        )
        with tf.control_dependencies([noted]):
            return super().train_step((tf.identity(x), y))


def new_data() -> tf.data.Dataset:
    data = tf_preempt.data.from_source(Source(), batch_size=BATCH, seed=5)
    data = data.map(lambda item: (item["x"], item["y"], item["index"]), num_parallel_calls=2).prefetch(2)
    return data.repeat() if "repeat" in kind else data


def validation() -> tf.data.Dataset:
    x = np.cos(np.arange(48.0)).reshape(12, 4).astype("float32")
    return tf_preempt.data.from_arrays(x, (x.sum(axis=1) > 0).astype("float32"), batch_size=5, seed=6)


class Stop(keras.callbacks.Callback):
    """Gives notice to the process after so many steps; on the worker that is told."""

    def __init__(self, after: int | None) -> None:
        super().__init__()
        self.after = after

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.after = None if self.after is None else self.after - 1
        if self.after == 0:
            os.kill(os.getpid(), signal.SIGTERM)


def fit(directory: pathlib.Path, steps: int | None) -> dict[str, np.ndarray] | None:
    with strategy.scope():
        model = Noting()
        accumulate = 3 if kind == "accumulate" else None
        optimizer = keras.optimizers.SGD(0.5, momentum=0.9, gradient_accumulation_steps=accumulate)
        model.compile(optimizer, "binary_crossentropy", metrics=["accuracy", "auc"])
    callback = tf_preempt.callbacks.PreemptionCheckpoint(directory, save_every=None, on_preemption="raise")
    history = model.fit(
        new_data(),
        validation_data=validation(),
        epochs=EPOCHS,
        steps_per_epoch=7 if "repeat" in kind else None,
        verbose=0,
        callbacks=[Stop(steps if worker == told else None), callback],
    )
    return {path: np.asarray(value) for path, value in history.history.items()} | {
        variable.path: variable.numpy() for variable in model.weights + model.optimizer.variables
    }


def loop(directory: pathlib.Path, steps: int | None) -> dict[str, np.ndarray] | None:
    with strategy.scope():
        weights = tf.Variable(tf.ones([4, 1]))
        seen = tf.Variable(0.0, synchronization=_ON_READ, aggregation=_SUM)
        step = tf.Variable(0, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(weights=weights, seen=seen, step=step)
    handler = tf_preempt.PreemptionCheckpointHandler(
        resolver, checkpoint, directory, save_every=None, on_preemption="raise"
    )
    data = strategy.experimental_distribute_dataset(new_data())

    def on_replica(x: tf.Tensor, y: tf.Tensor, indices: tf.Tensor) -> None:
        noted = tf.numpy_function(note, [step.value(), indices], tf.int64)
        with tf.control_dependencies([noted]), tf.GradientTape() as tape:
            loss = tf.reduce_sum((tf.matmul(x, weights)[:, 0] - y) ** 2) / BATCH
        gradient = tape.gradient(loss, weights)
        total = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, gradient)
        weights.assign_sub(0.1 * total)
        seen.assign_add(tf.cast(tf.shape(x)[0], tf.float32))

    @tf.function
    def train_step(iterator: Iterator[Any]) -> None:
        strategy.run(on_replica, args=next(iterator))
        step.assign_add(1)

    per_epoch = 7 if kind == "loop_repeat" else -(-EXAMPLES // BATCH)
    iterator = handler.track(iter(data), name="train")
    with handler.watch_preemption_scope():
        for index in handler.steps(EPOCHS * per_epoch):
            if index and index % per_epoch == 0 and "repeat" not in kind:
                iterator = handler.track(iter(data), name="train")
            train_step(iterator)
            if steps is not None and worker == told:
                steps -= 1
                if steps == 0:
                    os.kill(os.getpid(), signal.SIGTERM)
    return {"weights": weights.numpy(), "seen": seen.numpy(), "step": step.numpy()}


for job in jobs:
    kind, _, place = job.partition("-")
    directory = pathlib.Path(root, job)
    directory.mkdir(exist_ok=True)
    trained.clear()
    read.clear()
    keras.backend.clear_session()
    left = {"begin": int(place), "pause": 2, "finish": None}[mode]
    result = None
    try:
        result = (loop if kind.startswith("loop") else fit)(directory, left)
    except Preempted:
        pass
    notes = {"trained": trained, "read": read, "finished": result is not None}
    (directory / f"{mode}-{worker}.json").write_text(json.dumps(notes))
    if result is not None:
        arrays = {name.replace("/", "|"): value for name, value in result.items()}
        np.savez(directory / f"{mode}-{worker}.npz", **arrays)
