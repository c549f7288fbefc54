"""Trains small custom loops on batches that do not divide evenly; writes what came out as JSON.

Usage: partial_batches.py DIRECTORY.  With ``TF_CONFIG`` one of several workers, else with ``TWO_REPLICAS``
two replicas in one process, else one.  The file is named after the setting.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_preempt.strategies import MirroredStrategy, MultiWorkerMirroredStrategy

if os.environ.get("TF_CONFIG"):
    STRATEGY = MultiWorkerMirroredStrategy()
    NAME = f"worker-{STRATEGY.cluster_resolver.task_id}"
elif os.environ.get("TWO_REPLICAS"):
    CPU = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(CPU, [tf.config.LogicalDeviceConfiguration()] * 2)
    STRATEGY, NAME = MirroredStrategy(["CPU:0", "CPU:1"]), "replicas"
else:
    STRATEGY, NAME = MirroredStrategy(["CPU:0"]), "alone"

RNG = np.random.default_rng(0)
X = RNG.normal(size=(17, 6)).astype(np.float32)
Y = RNG.normal(size=(17,)).astype(np.float32)
W = RNG.normal(size=(6,)).astype(np.float32)
ROWS_EACH = 8 // STRATEGY.num_replicas_in_sync


def data(rows: int = 17) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X[:rows], Y[:rows])).batch(8)


def distributed(dataset: tf.data.Dataset) -> Any:
    return STRATEGY.experimental_distribute_dataset(dataset)


def average(rows: tf.Tensor) -> tf.Tensor:
    return tf.nn.compute_average_loss(rows)


def divided(rows: tf.Tensor) -> tf.Tensor:
    number = tf.cast(tf.shape(rows)[0], rows.dtype)
    return tf.math.divide_no_nan(tf.reduce_sum(rows), number) / STRATEGY.num_replicas_in_sync


def reciprocal(rows: tf.Tensor) -> tf.Tensor:
    number = tf.cast(tf.shape(rows)[0], rows.dtype)
    mean = tf.math.divide_no_nan(tf.reduce_sum(rows), number)
    return mean * tf.cast(1.0 / STRATEGY.num_replicas_in_sync, mean.dtype)


def of_fixed_global_size(rows: tf.Tensor) -> tf.Tensor:
    return tf.nn.compute_average_loss(rows, global_batch_size=ROWS_EACH * STRATEGY.num_replicas_in_sync)


class Loop:
    """Gradient descent on a linear model; every way of looping draws the same batches."""

    def __init__(self, loss: Callable[[tf.Tensor], tf.Tensor]) -> None:
        with STRATEGY.scope():
            self.weights = tf.Variable(W)
        self._loss = loss

    def replica_step(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            rows = (tf.linalg.matvec(x, self.weights) - y) ** 2
            loss = self._loss(rows) + tf.nn.scale_regularization_loss(0.01 * tf.nn.l2_loss(self.weights))
        gradient = tape.gradient(loss, self.weights)
        gradient = tf.distribute.get_replica_context().all_reduce("SUM", gradient)
        self.weights.assign_sub(0.1 * gradient)
        return loss

    def step(self, batch: Any) -> tf.Tensor:
        return STRATEGY.reduce("SUM", STRATEGY.run(self.replica_step, args=batch), axis=None)


def found(loop: Loop, losses: Any) -> dict[str, Any]:
    return {"losses": [float(loss) for loss in losses], "weights": loop.weights.numpy().tolist()}


def eager(loss: Callable[[tf.Tensor], tf.Tensor], dataset: Any = None, steps: int = 3) -> dict[str, Any]:
    loop, iterator = Loop(loss), iter(distributed(dataset or data()))
    return found(loop, [loop.step(next(iterator)) for _ in range(steps)])


def in_a_function(loss: Callable[[tf.Tensor], tf.Tensor]) -> dict[str, Any]:
    loop = Loop(loss)
    step = tf.function(loop.step)
    return found(loop, [step(batch) for batch in distributed(data())])


def with_a_signature(loss: Callable[[tf.Tensor], tf.Tensor]) -> dict[str, Any]:
    loop, dataset = Loop(loss), distributed(data())
    step = tf.function(lambda *batch: loop.step(batch), input_signature=dataset.element_spec)
    return found(loop, [step(*batch) for batch in dataset])


def of_a_function(loss: Callable[[tf.Tensor], tf.Tensor]) -> dict[str, Any]:
    """Twice through the data, so that a trace is used again for a batch of another size."""
    loop = Loop(loss)
    step = tf.function(loop.replica_step)
    losses = [
        STRATEGY.reduce("SUM", STRATEGY.run(step, args=batch), axis=None)
        for _ in range(2)
        for batch in distributed(data())
    ]
    return found(loop, losses)


def loop_in_a_graph(loss: Callable[[tf.Tensor], tf.Tensor]) -> dict[str, Any]:
    loop = Loop(loss)

    @tf.function
    def run(dataset: Any) -> tf.Tensor:
        losses = tf.TensorArray(tf.float32, size=0, dynamic_size=True)
        for batch in dataset:
            losses = losses.write(losses.size(), loop.step(batch))
        return losses.stack()

    return found(loop, run(distributed(data())))


def optionals_in_a_graph(loss: Callable[[tf.Tensor], tf.Tensor]) -> dict[str, Any]:
    loop = Loop(loss)

    @tf.function
    def run(iterator: Any) -> tf.Tensor:
        losses = tf.TensorArray(tf.float32, size=0, dynamic_size=True)
        batch = iterator.get_next_as_optional()
        while batch.has_value():
            losses = losses.write(losses.size(), loop.step(batch.get_value()))
            batch = iterator.get_next_as_optional()
        return losses.stack()

    return found(loop, run(iter(distributed(data()))))


def from_a_function(loss: Callable[[tf.Tensor], tf.Tensor]) -> dict[str, Any]:
    """Every replica draws batches of its own: what alone is one of 8 rows is two of 4 here."""

    def dataset_fn(context: tf.distribute.InputContext) -> tf.data.Dataset:
        size = context.get_per_replica_batch_size(8)
        return data(12).unbatch().batch(size).shard(context.num_input_pipelines, context.input_pipeline_id)

    loop, dataset = Loop(loss), STRATEGY.distribute_datasets_from_function(dataset_fn)
    return found(loop, [loop.step(batch) for batch in dataset])


def two_batches(loss: Callable[[tf.Tensor], tf.Tensor]) -> dict[str, Any]:
    """The second is even, the first is not: each replica counts the same, as TensorFlow has it."""
    small, even = next(iter(distributed(data(1)))), next(iter(distributed(data(8))))

    def replica_step(first: Any, second: Any) -> tf.Tensor:
        return loss(second[1])

    total = STRATEGY.reduce("SUM", STRATEGY.run(replica_step, args=(small, even)), axis=None)
    return {"losses": [float(total)], "weights": []}


def without_targets(loss: Callable[[tf.Tensor], tf.Tensor]) -> dict[str, Any]:
    """A batch part of which is None."""
    rows = tf.data.Dataset.from_tensor_slices(Y).batch(8).map(lambda y: (None, y))
    losses = [
        STRATEGY.reduce("SUM", STRATEGY.run(lambda _, y: loss(y**2), args=batch), axis=None)
        for batch in distributed(rows)
    ]
    return {"losses": [float(one) for one in losses], "weights": []}


LOSSES = [average, divided, reciprocal, of_fixed_global_size]
WAYS = [in_a_function, with_a_signature, of_a_function, loop_in_a_graph, optionals_in_a_graph]


def nested_function() -> dict[str, Any]:
    """For the warning."""
    inner = tf.function(lambda rows: tf.reduce_mean(rows) / STRATEGY.num_replicas_in_sync)

    def replica_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return inner(y)

    batch = next(iter(distributed(data(8))))
    for _ in range(2):
        total = STRATEGY.reduce("SUM", STRATEGY.run(replica_step, args=batch), axis=None)
    return {"losses": [float(total)], "weights": []}


def part_of_a_batch() -> None:
    """For the warning, once; in a graph, where the number of rows is not known."""

    @tf.function
    def step(iterator: Any) -> tf.Tensor:
        _, y = next(iterator)
        return STRATEGY.run(lambda y: divided(y**2), args=(y,))

    iterator = iter(distributed(data()))
    for _ in range(3):
        step(iterator)


def without_need() -> None:
    """For no warning: nothing is scaled, or all rows are as many."""
    for _, y in distributed(data()):
        STRATEGY.run(lambda y: tf.reduce_sum(y), args=(y,))
    same = STRATEGY.experimental_distribute_values_from_function(lambda context: tf.constant([1.0, 2.0]))
    STRATEGY.run(divided, args=(same,))


def synchronized_in_a_branch() -> str:
    """Outside of a Keras model's step: TensorFlow's error, and not replicas that wait for each other."""

    def replica_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        reduced = tf.distribute.get_replica_context().all_reduce
        return tf.cond(tf.reduce_sum(y) > 0, lambda: reduced("SUM", y[0]), lambda: y[0])

    @tf.function
    def step(batch: Any) -> Any:
        return STRATEGY.run(replica_step, args=batch)

    try:
        step(next(iter(distributed(data()))))
    except RuntimeError as error:
        return str(error)
    return "no error"


def plain_numbers() -> list[Any]:
    """What the count is to Python, in a replica function that is given a batch."""
    seen: list[Any] = []

    def replica_step(x: tf.Tensor, y: tf.Tensor) -> None:
        count = STRATEGY.num_replicas_in_sync
        seen.append([int(count), count > 1, count == 2, 3 * count, count * 3, len(range(count)), str(count)])

    for batch in distributed(data()):
        STRATEGY.run(replica_step, args=batch)
    return seen[:1]


def main() -> None:
    results = {f"{way.__name__}, {loss.__name__}": way(loss) for way in WAYS for loss in LOSSES}
    results |= {f"eager, {loss.__name__}": eager(loss) for loss in LOSSES}
    results["without end"] = eager(average, data().repeat(), steps=7)
    results["one row"] = eager(average, data(1), steps=1)
    results["batches of 7"] = eager(average, data().unbatch().batch(7).repeat(), steps=4)
    results["from a function"] = from_a_function(average)
    results["two batches"] = two_batches(average)
    results["without targets"] = without_targets(average)
    results["nested function"] = nested_function()
    without_need()
    print("-- no warning before this line", flush=True)
    part_of_a_batch()
    branch = synchronized_in_a_branch()
    numbers = plain_numbers()
    with open(os.path.join(sys.argv[1], f"{NAME}.json"), "w", encoding="utf-8") as file:
        json.dump({"results": results, "numbers": numbers, "branch": branch}, file)


if __name__ == "__main__":
    main()
