"""The programs of the matrix with a loop of their own, under the handler."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tests.exactness import fit_programs as parts
from tests.exactness.lives import Life, Program
from tf_preempt import PreemptionCheckpointHandler

EPOCH_STEPS = parts.TRAIN_ROWS // parts.BATCH
TOTAL = 2 * EPOCH_STEPS


class Training:
    """A model, its optimizer and metric, and what a loop does with them.

    Args:
        life: to which the loop belongs.
        name: of the checkpoint directory, in the life's.
    """

    def __init__(self, life: Life, name: str = "") -> None:
        self.life = life
        self.strategy = life.strategy or tf.distribute.get_strategy()
        with life.scope():
            self.model = keras.Sequential(
                [
                    keras.layers.Input((3,)),
                    keras.layers.Dense(4, "relu"),
                    keras.layers.BatchNormalization(momentum=0.5),  # each replica has its own
                    keras.layers.Dropout(0.5),
                    keras.layers.Dense(1),
                ]
            )
            self.optimizer = keras.optimizers.Adam(0.05)
            self.optimizer.build(self.model.trainable_variables)
            self.mean = keras.metrics.Mean()
        resolver = getattr(life.strategy, "cluster_resolver", None)
        self.handler = PreemptionCheckpointHandler(
            resolver,
            tf.train.Checkpoint(model=self.model, optimizer=self.optimizer, mean=list(self.mean.variables)),
            life.directory / name,
            **life.options,
        )
        self.step = tf.function(self._step)
        self.step_that_draws = tf.function(lambda iterator: self._step(next(iterator)))

    def _step(self, batch: Any) -> Any:
        def on_replica(batch: Any) -> Any:
            x, y = batch
            with tf.GradientTape() as tape:
                losses = tf.reduce_mean((self.model(x, training=True) - y) ** 2, axis=-1)
                loss = tf.nn.compute_average_loss(losses)
            variables = self.model.trainable_variables
            self.optimizer.apply(tape.gradient(loss, variables), variables)
            self.mean.update_state(loss)
            return loss

        return self.strategy.reduce("SUM", self.strategy.run(on_replica, (batch,)), axis=None)

    def iterator(self, data: tf.data.Dataset, name: str | None = None) -> Any:
        return self.handler.track(iter(self.strategy.experimental_distribute_dataset(data)), name)

    def turn(self, number: int, function: Any, argument: Any) -> None:
        """One turn of the loop, with the moments in it."""
        self.life.moment(f"step {number} begin")
        loss = self.handler.run(function, argument)
        self.life.saw(f"step {number}", {"loss": loss.numpy()})
        self.life.moment(f"step {number} end")

    def variables(self) -> list[Any]:
        return [*self.model.variables, *self.optimizer.variables, *self.mean.variables]


def repeated(seed: int = 3) -> tf.data.Dataset:
    return parts.rows(seed=seed).repeat().batch(parts.BATCH).prefetch(2)


def turns(life: Life) -> list[Any]:
    training = Training(life)
    iterator = training.iterator(repeated())
    with training.handler.watch_preemption_scope():
        for number in training.handler.steps(TOTAL):
            training.turn(number, training.step, next(iterator))
    return training.variables()


def turns_with_a_step_that_draws(life: Life) -> list[Any]:
    training = Training(life)
    iterator = training.iterator(repeated())
    with training.handler.watch_preemption_scope():
        for number in training.handler.steps(TOTAL):
            training.turn(number, training.step_that_draws, iterator)
    return training.variables()


def as_with_tensorflows_handler(life: Life) -> list[Any]:
    """The program counts by `total_run_calls`, and `run` is the boundary."""
    training = Training(life)
    iterator = training.iterator(repeated())
    with training.handler.watch_preemption_scope():
        while (number := training.handler.total_run_calls) < TOTAL:
            life.moment(f"step {number} begin")

            def seen(batch: Any, number: int = number) -> Any:
                loss = training.step(batch)
                life.saw(f"step {number}", {"loss": loss.numpy()})
                life.moment(f"step {number} within")
                return loss

            training.handler.run(seen, next(iterator))
    return training.variables()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Epochs:
    """A loop over epochs, with a new iterator for each.

    Args:
        data: makes the data set of all epochs.
    """

    data: Callable[[], tf.data.Dataset]

    def __call__(self, life: Life) -> list[Any]:
        training, data = Training(life), self.data()
        iterator = training.iterator(data, "train")
        with training.handler.watch_preemption_scope():
            for number in training.handler.steps(3 * EPOCH_STEPS):
                if number and number % EPOCH_STEPS == 0:
                    iterator = training.iterator(data, "train")
                training.turn(number, training.step, next(iterator))
        return training.variables()


def validating_within(life: Life) -> list[Any]:
    """Every second turn validates on a tracked iterator that goes on, and saves."""
    training = Training(life)
    iterator = training.iterator(repeated(), "train")
    validation = training.iterator(repeated(seed=4), "validation")

    @tf.function
    def validate(batch: Any) -> Any:
        def on_replica(batch: Any) -> Any:
            return tf.nn.compute_average_loss(
                tf.reduce_mean((training.model(batch[0]) - batch[1]) ** 2, axis=-1)
            )

        return training.strategy.reduce("SUM", training.strategy.run(on_replica, (batch,)), axis=None)

    with training.handler.watch_preemption_scope():
        for number in training.handler.steps(TOTAL):
            training.turn(number, training.step, next(iterator))
            if number % 2:
                loss = validate(next(validation))
                life.saw(f"step {number} validation", {"loss": loss.numpy()})
                life.moment(f"step {number} validated")
    return training.variables()


def two_loops(life: Life) -> list[Any]:
    """Each loop with a handler and a directory of its own; the second begins with the first one's weights."""
    first = Training(life, "first")
    iterator = first.iterator(repeated())
    with first.handler.watch_preemption_scope():
        for number in first.handler.steps(EPOCH_STEPS):
            first.turn(number, first.step, next(iterator))
    second = Training(life, "second")
    iterator = second.iterator(repeated(seed=5))
    if second.handler.total_run_calls == 0:
        second.model.set_weights(first.model.get_weights())
    with second.handler.watch_preemption_scope():
        for number in second.handler.steps(EPOCH_STEPS):
            second.turn(EPOCH_STEPS + number, second.step, next(iterator))
    return [*first.variables(), *second.variables()]


LOOPS: dict[str, Program] = {
    "steps of repeat": turns,
    "steps, drawn in the function": turns_with_a_step_that_draws,
    "run without steps": as_with_tensorflows_handler,
    "an iterator per epoch": Epochs(data=lambda: parts.rows().batch(parts.BATCH)),
    "an iterator per epoch, prefetch": Epochs(data=lambda: parts.pipeline()),
    "an iterator per epoch, unknown length": Epochs(data=lambda: parts.of_unknown_length(parts.pipeline())),
    "validation within": validating_within,
    "two loops": two_loops,
}
