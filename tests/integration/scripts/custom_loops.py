"""Trains in custom loops of all kinds; writes losses and weights of each.

Usage: custom_loops.py DIRECTORY [replicas].  With ``TF_CONFIG`` it is one of several workers; ``replicas``
makes it one process with two replicas; else it is one process without a strategy.  Writes
``<name>.npz`` with arrays ``<case>/<array>``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_preempt.checkpointing import iterator_state
from tf_preempt.strategies import MirroredStrategy, MultiWorkerMirroredStrategy

BATCH = 8
EPOCHS = 2


def make_strategy() -> tuple[Any, str]:
    if "TF_CONFIG" in os.environ:
        strategy = MultiWorkerMirroredStrategy()
        return strategy, f"worker-{strategy.cluster_resolver.task_id}"
    if "replicas" in sys.argv:
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        return MirroredStrategy(["CPU:0", "CPU:1"]), "replicas"
    return tf.distribute.get_strategy(), "alone"


STRATEGY, NAME = make_strategy()

import keras  # noqa: E402  (creates tensors in some versions: the strategy must come first)

RNG = np.random.default_rng(7)
X = RNG.normal(size=(24, 3)).astype(np.float32)
Y = (X @ np.array([[1.0], [-2.0], [0.5]]) + 0.1 * RNG.normal(size=(24, 1))).astype(np.float32)
WEIGHTS = RNG.uniform(0.5, 2.0, size=24).astype(np.float32)

Batch = tuple[tf.Tensor, tf.Tensor, tf.Tensor]
Average = Callable[[tf.Tensor, tf.Tensor, keras.Model], tf.Tensor]
Arrays = dict[str, np.ndarray]


def data(rows: int) -> tf.data.Dataset:
    found = tf.data.Dataset.from_tensor_slices((X[:rows], Y[:rows], WEIGHTS[:rows]))
    found = found.shuffle(rows, seed=3, reshuffle_each_iteration=False)
    return found.batch(BATCH, drop_remainder=rows % BATCH == 0).prefetch(1)


def distributed(rows: int) -> Any:
    return STRATEGY.experimental_distribute_dataset(data(rows))


# How a replica averages the losses of its rows, so that the sum over replicas is that of the global batch.


def by_global_size(losses: tf.Tensor, weights: tf.Tensor, model: keras.Model) -> tf.Tensor:
    return tf.nn.compute_average_loss(losses, global_batch_size=BATCH)


def by_rows(losses: tf.Tensor, weights: tf.Tensor, model: keras.Model) -> tf.Tensor:
    return tf.nn.compute_average_loss(losses)


def weighted(losses: tf.Tensor, weights: tf.Tensor, model: keras.Model) -> tf.Tensor:
    return tf.nn.compute_average_loss(losses, sample_weight=weights)


def regularized(losses: tf.Tensor, weights: tf.Tensor, model: keras.Model) -> tf.Tensor:
    penalty = tf.add_n([tf.nn.l2_loss(one) for one in model.trainable_variables])
    return tf.nn.compute_average_loss(losses) + tf.nn.scale_regularization_loss(0.1 * penalty)


def by_hand(losses: tf.Tensor, weights: tf.Tensor, model: keras.Model) -> tf.Tensor:
    return tf.reduce_mean(losses) / STRATEGY.num_replicas_in_sync


class Training:
    """A small model and an optimizer with state, trained by one step function."""

    def __init__(self, average: Average) -> None:
        self.average = average
        keras.utils.set_random_seed(5)
        with STRATEGY.scope():
            self.model = keras.Sequential(
                [keras.Input((3,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)]
            )
            self.optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
            self.optimizer.build(self.model.trainable_variables)

    def on_replica(self, batch: Batch) -> tf.Tensor:
        x, y, weights = batch
        variables = self.model.trainable_variables
        with tf.GradientTape() as tape:
            losses = tf.reduce_mean((self.model(x, training=True) - y) ** 2, axis=-1)
            loss = self.average(losses, weights, self.model)
        gradients = tape.gradient(loss, variables)
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    def step(self, batch: Any) -> tf.Tensor:
        return STRATEGY.reduce("SUM", STRATEGY.run(self.on_replica, args=(batch,)), axis=None)

    def state(self) -> list[np.ndarray]:
        return [np.asarray(one) for one in self.model.weights + self.optimizer.variables]

    def set_state(self, values: list[np.ndarray]) -> None:
        for one, value in zip(self.model.weights + self.optimizer.variables, values, strict=True):
            one.assign(value)

    def outcome(self, losses: list[Any]) -> Arrays:
        weights = {f"weight {index}": one for index, one in enumerate(self.model.get_weights())}
        return weights | {"loss": np.array([float(one) for one in losses])}


# Ways to go through an epoch: each takes a training and gives a function of an iterator, which trains on what
# is left of it and returns the sum of the losses.

Loop = Callable[[Training, int], Callable[[Any], Any]]


def eager(training: Training, steps: int) -> Callable[[Any], Any]:
    return lambda iterator: sum(training.step(batch) for batch in iterator)


def function_around_run(training: Training, steps: int) -> Callable[[Any], Any]:
    step = tf.function(training.step)
    return lambda iterator: sum(step(batch) for batch in iterator)


def function_that_draws(training: Training, steps: int) -> Callable[[Any], Any]:
    step = tf.function(lambda iterator: training.step(next(iterator)))
    return lambda iterator: sum(step(iterator) for _ in range(steps))


def run_of_function(training: Training, steps: int) -> Callable[[Any], Any]:
    training.on_replica = tf.function(training.on_replica)
    return eager(training, steps)


def function_around_run_of_function(training: Training, steps: int) -> Callable[[Any], Any]:
    training.on_replica = tf.function(training.on_replica)
    return function_around_run(training, steps)


def for_in_function(training: Training, steps: int) -> Callable[[Any], Any]:
    @tf.function
    def rest(iterator: Any) -> tf.Tensor:
        total = tf.constant(0.0)
        for batch in iterator:
            total += training.step(batch)
        return total

    return rest


def range_in_function(training: Training, steps: int) -> Callable[[Any], Any]:
    @tf.function
    def rest(iterator: Any) -> tf.Tensor:
        total = tf.constant(0.0)
        for _ in tf.range(steps):
            total += training.step(iterator.get_next())
        return total

    return rest


def range_with_nested_function(training: Training, steps: int) -> Callable[[Any], Any]:
    training.step = tf.function(training.step)
    return range_in_function(training, steps)


def optional_in_function(training: Training, steps: int) -> Callable[[Any], Any]:
    @tf.function
    def rest(iterator: Any) -> tf.Tensor:
        total, more = tf.constant(0.0), tf.constant(True)
        while more:
            batch = iterator.get_next_as_optional()
            more = batch.has_value()
            if more:
                total += training.step(batch.get_value())
        return total

    return rest


LOOPS: dict[str, Loop] = {
    loop.__name__: loop
    for loop in (
        eager,
        function_around_run,
        function_that_draws,
        run_of_function,
        function_around_run_of_function,
        for_in_function,
        range_in_function,
        range_with_nested_function,
        optional_in_function,
    )
}


def steps_of(rows: int) -> int:
    return -(-rows // BATCH)


def undisturbed(loop: Loop, average: Average, rows: int) -> Arrays:
    training, dataset = Training(average), distributed(rows)
    rest = loop(training, steps_of(rows))
    return training.outcome([rest(iter(dataset)) for _ in range(EPOCHS)])


def resumed(loop: Loop, average: Average, rows: int) -> Arrays:
    """One step, then the rest of the epoch twice: with the same iterator, and with another in its place."""
    first, iterator = Training(average), iter(distributed(rows))
    begun = first.step(next(iterator))
    position = iterator_state.take_position(iterator, "x")
    state = first.state()
    undisturbed_rest = loop(first, steps_of(rows) - 1)(iterator)

    second, other = Training(average), iter(distributed(rows))
    next(other)
    next(other)
    assert position is not None
    assert iterator_state.set_position(other, "x", position)
    second.set_state(state)
    rest = loop(second, steps_of(rows) - 1)(other)
    one, two = first.outcome([begun, undisturbed_rest]), second.outcome([begun, rest])
    return {f"undisturbed {key}": value for key, value in one.items()} | {
        f"resumed {key}": value for key, value in two.items()
    }


def data_set_in_function(rows: int) -> Arrays:
    training, dataset = Training(by_rows), distributed(rows)

    @tf.function
    def epoch(dataset: Any) -> tf.Tensor:
        total = tf.constant(0.0)
        for batch in dataset:
            total += training.step(batch)
        return total

    return training.outcome([epoch(dataset) for _ in range(EPOCHS)])


def gathered(rows: int) -> Arrays:
    """What replicas and the cross-replica context gather, in the order of the global batch."""

    def on_replica(batch: Batch) -> tf.Tensor:
        # TensorFlow cannot gather an argument itself: inside a tf.function it is on no device yet.
        return tf.distribute.get_replica_context().all_gather(tf.identity(batch[0]), axis=0)

    @tf.function
    def both(batch: Any) -> tuple[Any, Any]:
        return STRATEGY.gather(batch[0], axis=0), STRATEGY.run(on_replica, args=(batch,))

    found: Arrays = {}
    for index, batch in enumerate(distributed(rows)):
        outside, inside = both(batch)
        found[f"eager {index}"] = STRATEGY.gather(batch[0], axis=0).numpy()
        found[f"outside {index}"] = outside.numpy()
        for part in STRATEGY.experimental_local_results(inside):
            found[f"inside {index}"] = part.numpy()
    return found


class Plain:
    """A linear model of plain variables, whose gradients the program sums itself."""

    def __init__(self) -> None:
        with STRATEGY.scope():
            self.variables = [
                tf.Variable(tf.zeros(shape), aggregation=tf.VariableAggregation.MEAN)
                for shape in ((3, 1), (1,))
            ]

    def gradients(self, batch: Batch) -> tuple[tf.Tensor, list[tf.Tensor]]:
        x, y, _ = batch
        with tf.GradientTape() as tape:
            losses = tf.reduce_mean((x @ self.variables[0] + self.variables[1] - y) ** 2, axis=-1)
            loss = tf.nn.compute_average_loss(losses)
        return loss, tape.gradient(loss, self.variables)

    def trained(self, on_replica: Callable[[Batch], tf.Tensor], rows: int) -> Arrays:
        step = tf.function(
            lambda batch: STRATEGY.reduce("SUM", STRATEGY.run(on_replica, (batch,)), axis=None)
        )
        losses = [float(step(batch)) for _ in range(EPOCHS) for batch in distributed(rows)]
        return {"loss": np.array(losses), "w": self.variables[0].numpy(), "b": self.variables[1].numpy()}


def all_reduce(rows: int) -> Arrays:
    model = Plain()

    def on_replica(batch: Batch) -> tf.Tensor:
        loss, gradients = model.gradients(batch)
        context = tf.distribute.get_replica_context()
        for variable, gradient in zip(model.variables, context.all_reduce("SUM", gradients), strict=True):
            variable.assign_sub(0.1 * gradient)
        return loss

    return model.trained(on_replica, rows)


def merge_call(rows: int) -> Arrays:
    model = Plain()

    def merge(strategy: Any, *gradients: Any) -> None:
        pairs = list(zip(gradients, model.variables, strict=True))
        sums = strategy.extended.batch_reduce_to("SUM", pairs)
        for variable, total in zip(model.variables, sums, strict=True):
            strategy.extended.update(variable, lambda one, x: one.assign_sub(0.1 * x), args=(total,))

    def on_replica(batch: Batch) -> tf.Tensor:
        loss, gradients = model.gradients(batch)
        tf.distribute.get_replica_context().merge_call(merge, args=gradients)
        return loss

    return model.trained(on_replica, rows)


def from_function(rows: int) -> Arrays:
    """Each worker reads its part itself; replicas draw batches of their own."""
    size = BATCH // STRATEGY.num_replicas_in_sync

    def dataset_fn(context: tf.distribute.InputContext) -> tf.data.Dataset:
        parts = data(rows).unbatch().batch(size)
        return parts.shard(context.num_input_pipelines, context.input_pipeline_id)

    training = Training(by_rows)
    dataset = STRATEGY.distribute_datasets_from_function(dataset_fn)
    rest = for_in_function(training, steps_of(rows))
    return training.outcome([rest(iter(dataset)) for _ in range(EPOCHS)])


def cases() -> dict[str, Callable[[], Arrays]]:
    """Cases by name and rows: 16 make two even batches, 17 leave a replica without, 21 one with fewer."""

    def of(case: Callable[..., Arrays], rows: int, *args: Any) -> Callable[[], Arrays]:
        return lambda: case(*args, rows)

    trained = {name: [17] for name in LOOPS}
    trained["function_around_run"] = trained["for_in_function"] = trained["range_in_function"] = [16, 17, 21]
    found = {
        f"{name} {n}": of(undisturbed, n, LOOPS[name], by_rows) for name in trained for n in trained[name]
    }
    for name in ("function_that_draws", "for_in_function", "range_in_function", "optional_in_function"):
        found[f"resumed {name} 17"] = of(resumed, 17, LOOPS[name], regularized)
    found["resumed for_in_function 16"] = of(resumed, 16, for_in_function, regularized)
    averages: list[tuple[Average, int]] = [(by_global_size, 17), (weighted, 17), (regularized, 21)]
    # In the last batch of 17, a replica would take the mean of nothing by hand.
    averages += [(by_hand, 16), (by_hand, 21)]
    for average, n in averages:
        found[f"{average.__name__} {n}"] = of(undisturbed, n, function_around_run, average)
    for case in (gathered, all_reduce, merge_call, from_function, data_set_in_function):
        found[f"{case.__name__} 17"] = of(case, 17)
    found["gathered 21"] = of(gathered, 21)
    return found


def main() -> None:
    found = {}
    for name, case in cases().items():
        print(name, flush=True)
        found.update({f"{name}/{key}": value for key, value in case().items()})
    np.savez(os.path.join(sys.argv[1], f"{NAME}.npz"), **found)


if __name__ == "__main__":
    main()
