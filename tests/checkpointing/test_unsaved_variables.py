"""Which variables of a loop are warned of: those that change and that no checkpoint holds, and no others."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf
import tf_keras

from tf_preempt.checkpointing.handler import PreemptionCheckpointHandler

WORDS = "uses variables that change and that no checkpoint holds"
STEPS = 4
Loop = Callable[[Callable[[dict[str, Any]], PreemptionCheckpointHandler]], None]


def running(step: Callable[..., Any], *arguments: Any, **kept: Any) -> Loop:
    """A loop that gives its steps to `run`; `kept` is what its checkpoint holds."""

    def loop(handler_of: Any) -> None:
        handler = handler_of(kept)
        with handler.watch_preemption_scope():
            for _ in handler.steps(STEPS):
                handler.run(step, tf.constant([1.0, 2.0]), *arguments)

    return loop


def variable(value: Any = 0.0) -> tf.Variable:
    return tf.Variable(value, name="found")


def counting(counter: Any) -> Callable[[Any], Any]:
    def count(x: Any) -> Any:
        counter.assign_add(tf.ones_like(counter))
        return x

    return count


def a_variable_around() -> Loop:
    return running(tf.function(counting(variable())))


def in_a_called_function() -> Loop:
    inner = tf.function(counting(variable()))
    return running(tf.function(lambda x: inner(x) * 2))


def in_a_branch() -> Loop:
    count = counting(variable())
    return running(tf.function(lambda x: tf.cond(x[0] > 0, lambda: count(x), lambda: x)))


def in_a_loop() -> Loop:
    counter = variable()

    @tf.function
    def step(x: Any) -> Any:
        for _ in tf.range(2):
            counter.assign_add(1.0)
        return x

    return running(step)


def an_argument() -> Loop:
    return running(tf.function(lambda x, counter: counter.assign_add(1.0) * x), variable())


def of_a_lambda() -> Loop:
    step = tf.function(counting(variable()))
    return running(lambda x: step(x))


def a_partial() -> Loop:
    return running(functools.partial(lambda counter, x: counter.assign_add(1.0) * x, variable()))


def of_a_whole_number() -> Loop:
    return running(tf.function(counting(variable(0))))


def of_a_text() -> Loop:
    text = variable("")
    return running(tf.function(lambda x: text.assign(text + "a")))


def an_optimizer() -> Loop:
    weight = tf.Variable(1.0)
    optimizer = keras.optimizers.Adam(name="found")
    optimizer.build([weight])

    @tf.function
    def step(x: Any) -> None:
        optimizer.apply_gradients([(tf.reduce_sum(x), weight)])

    return running(step, weight=weight)


def an_optimizer_of_the_legacy_keras_that_is_not_kept() -> Loop:
    """Its slots are used by their handles, which TensorFlow does not list among a trace's variables."""
    weight, optimizer = tf.Variable(1.0), tf_keras.optimizers.legacy.SGD(momentum=0.5, name="found")

    @tf.function
    def step(x: Any) -> None:
        optimizer.apply_gradients([(tf.reduce_sum(x), weight)])

    def loop(handler_of: Any) -> None:
        running(step, weight=weight, iterations=optimizer.iterations)(handler_of)

    return loop


def a_metric() -> Loop:
    metric = keras.metrics.Mean(name="found")
    return running(tf.function(metric.update_state))


def a_generator() -> Loop:
    generator = tf.random.Generator.from_seed(1)
    generator.state  # noqa: B018 - its variable, which has a name of TensorFlow's
    return running(tf.function(lambda x: x + generator.normal((2,))))


class Trainer:
    """Holds the state of a training, and its steps."""

    def __init__(self) -> None:
        self.counter = variable()

    @tf.function
    def traced(self, x: Any) -> Any:
        return self.counter.assign_add(1.0) * x

    def eager(self, x: Any) -> Any:
        return self.counter.assign_add(1.0) * x

    def calling(self, x: Any) -> Any:
        return self.traced(x)


def a_traced_method() -> Loop:
    trainer = Trainer()  # the method does not keep it

    def loop(handler_of: Any) -> None:
        running(trainer.traced)(handler_of)

    return loop


def an_eager_method() -> Loop:
    return running(Trainer().eager)


def a_method_that_calls_a_traced_one() -> Loop:
    return running(Trainer().calling)


def eagerly_beside_a_traced_function() -> Loop:
    trainer, traced = Trainer(), tf.function(lambda x: x * 2)

    def step(x: Any) -> Any:
        return traced(trainer.eager(x))

    return running(step)


def in_a_trace_that_comes_later() -> Loop:
    counter = variable()

    @tf.function
    def step(x: Any) -> Any:
        return counter.assign_add(1.0) * x if x.shape[0] == 1 else x

    def loop(handler_of: Any) -> None:
        handler = handler_of({})
        with handler.watch_preemption_scope():
            for index in handler.steps(2 * STEPS):
                handler.run(step, tf.zeros(1 if index >= STEPS else 2))

    return loop


def between_the_steps() -> Loop:
    rate = variable(1.0)
    step = tf.function(lambda x: x * rate)

    def loop(handler_of: Any) -> None:
        handler = handler_of({})
        with handler.watch_preemption_scope():
            for _ in handler.steps(STEPS):
                handler.run(step, tf.zeros(2))
                rate.assign(rate * 0.5)

    return loop


def not_given_to_run() -> Loop:
    step = tf.function(counting(variable()))

    def loop(handler_of: Any) -> None:
        handler = handler_of({})
        with handler.watch_preemption_scope():
            for _ in handler.steps(STEPS):
                step(tf.zeros(2))

    return loop


def a_method_not_given_to_run() -> Loop:
    trainer = Trainer()

    def loop(handler_of: Any) -> None:
        handler = handler_of({})
        with handler.watch_preemption_scope():
            for _ in handler.steps(STEPS):
                trainer.traced(tf.zeros(2))

    return loop


def as_with_tensorflows_handler() -> Loop:
    step = tf.function(counting(variable()))

    def loop(handler_of: Any) -> None:
        handler = handler_of({})
        with handler.watch_preemption_scope():
            for _ in range(STEPS):
                step(tf.zeros(2))
                handler.save_checkpoint_if_preempted()

    return loop


FOUND = [
    a_variable_around,
    in_a_called_function,
    in_a_branch,
    in_a_loop,
    an_argument,
    of_a_lambda,
    a_partial,
    of_a_whole_number,
    of_a_text,
    an_optimizer,
    an_optimizer_of_the_legacy_keras_that_is_not_kept,
    a_metric,
    a_generator,
    a_traced_method,
    an_eager_method,
    a_method_that_calls_a_traced_one,
    eagerly_beside_a_traced_function,
    in_a_trace_that_comes_later,
    between_the_steps,
    not_given_to_run,
    a_method_not_given_to_run,
    as_with_tensorflows_handler,
]
NAMES = {a_generator: "StateVar"}


def a_frozen_teacher() -> Loop:
    teacher = variable([1.0, 2.0])
    return running(tf.function(lambda x: x * teacher))


def in_the_checkpoint() -> Loop:
    counter, metric = variable(), keras.metrics.Mean()
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(x: Any) -> Any:
        counter.assign_add(1.0)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x[None], training=True))
        metric.update_state(loss)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    return running(step, counter=counter, metric=metric.variables, model=model, optimizer=optimizer)


def eagerly_in_the_checkpoint() -> Loop:
    trainer = Trainer()
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dropout(0.5)])
    return running(
        lambda x: model(trainer.eager(x)[None], training=True), model=model, counter=trainer.counter
    )


def with_slots(make: Callable[[], Any]) -> Loop:
    weight, optimizer = tf.Variable(1.0), make()

    @tf.function
    def step(x: Any) -> None:
        optimizer.apply_gradients([(tf.reduce_sum(x), weight)])

    return running(step, weight=weight, optimizer=optimizer)


def an_optimizer_of_tensorflow_1() -> Loop:
    return with_slots(tf.compat.v1.train.AdamOptimizer)


def an_optimizer_of_the_legacy_keras() -> Loop:
    return with_slots(tf_keras.optimizers.legacy.Adam)


def generators_of_the_process() -> Loop:
    tf.random.set_global_generator(tf.random.Generator.from_seed(1))
    return running(
        tf.function(lambda x: x + keras.random.normal((2,)) + tf.random.get_global_generator().normal((2,)))
    )


def the_data_of_an_eager_step() -> Loop:
    """A generator in ``map``, which goes on while a step runs eagerly."""
    generator, options = tf.random.Generator.from_seed(1), tf.data.Options()
    options.experimental_optimization.inject_prefetch = False

    def loop(handler_of: Any) -> None:
        handler = handler_of({})
        data = tf.data.Dataset.range(10).map(lambda _: generator.normal((2,))).with_options(options)
        iterator = handler.track(iter(data))
        with handler.watch_preemption_scope():
            for _ in handler.steps(STEPS):
                handler.run(lambda: next(iterator) * 2)

    return loop


def another_function_of_the_same_loop() -> Loop:
    """A validation, traced later, whose metric begins anew each time."""
    step, metric = tf.function(lambda x: x * 2), keras.metrics.Mean()
    validate = tf.function(metric.update_state)

    def loop(handler_of: Any) -> None:
        handler = handler_of({})
        with handler.watch_preemption_scope():
            for index in handler.steps(STEPS):
                step(tf.zeros(2))
                if index % 2:
                    metric.reset_state()
                    validate(tf.ones(2) * index)

    return loop


NOT_FOUND = [
    a_frozen_teacher,
    in_the_checkpoint,
    eagerly_in_the_checkpoint,
    an_optimizer_of_tensorflow_1,
    an_optimizer_of_the_legacy_keras,
    generators_of_the_process,
    the_data_of_an_eager_step,
    another_function_of_the_same_loop,
]


@pytest.fixture
def warnings(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> Callable[[Loop], list[str]]:
    """Runs a loop with a save after each step; gives what it is warned of."""

    def run(loop: Loop) -> list[str]:
        loop(
            lambda kept: PreemptionCheckpointHandler(
                None, tf.train.Checkpoint(**kept), tmp_path / "run", save_every=1
            )
        )
        return [message for message in caplog.messages if WORDS in message]

    return run


@pytest.mark.parametrize("loop", FOUND)
def test_what_changes_and_is_not_kept_is_warned_of_once(
    loop: Callable[[], Loop], warnings: Callable[[Loop], list[str]]
) -> None:
    (message,) = warnings(loop())
    assert NAMES.get(loop, "found") in message
    assert "HINT: give them, or what they belong to, to the checkpoint: tf.train.Checkpoint(" in message


@pytest.mark.parametrize("loop", NOT_FOUND)
def test_what_is_kept_or_does_not_change_is_not_warned_of(
    loop: Callable[[], Loop], warnings: Callable[[Loop], list[str]]
) -> None:
    assert warnings(loop()) == []


def test_line_and_shape_are_told(warnings: Callable[[Loop], list[str]]) -> None:
    (message,) = warnings(a_variable_around())
    line = counting.__code__.co_firstlineno + 2
    assert f"(found, float32 of shape (), changed at {pathlib.Path(__file__).name}:{line})" in message


def test_one_that_only_the_loop_changes_is_told_as_used(warnings: Callable[[Loop], list[str]]) -> None:
    (message,) = warnings(between_the_steps())
    assert "(found, float32 of shape (), used at " in message


def test_random_ops_of_a_step_that_is_not_given_to_run_are_warned_of(
    warnings: Callable[[Loop], list[str]],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tf_preempt.checkpointing.step_randomness._warned", set())
    step = tf.function(lambda x: x + tf.random.normal((2,)))

    def loop(handler_of: Any) -> None:
        handler = handler_of({})
        with handler.watch_preemption_scope():
            for _ in handler.steps(STEPS):
                step(tf.zeros(2))

    assert warnings(loop) == []
    assert sum("draws random numbers with ops whose state" in message for message in caplog.messages) == 1


REPLICAS = """
import logging
import sys

import keras
import tensorflow as tf

import tf_preempt

logging.basicConfig(level=logging.WARNING)
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategies = tf_preempt.strategies
if sys.argv[1] == "mirrored":
    strategy = strategies.MirroredStrategy(["CPU:0", "CPU:1"])
else:
    strategy = strategies.MultiWorkerMirroredStrategy()
aggregation = tf.VariableAggregation.ONLY_FIRST_REPLICA
with strategy.scope():
    found = tf.Variable(0.0, name="found", aggregation=aggregation)
    saved = tf.Variable(0.0, aggregation=aggregation)
    by_each = keras.Variable(0.0, trainable=False, name="by_each")
    metric, saved_metric = keras.metrics.Mean(name="found_metric"), keras.metrics.Mean()
kept = {"saved": saved, "metric": saved_metric.variables, "by_each": by_each} if sys.argv[2] == "kept" else {}
if sys.argv[2] == "kept":
    found, metric = saved, saved_metric


def on_replica(x):
    found.assign_add(1.0)
    with tf.name_scope("layer"):
        by_each.assign(by_each + 1.0)
    metric.update_state(x)
    return tf.reduce_sum(x)


@tf.function
def step(x):
    return strategy.reduce("SUM", strategy.run(on_replica, args=(x,)), axis=None)


handler = tf_preempt.PreemptionCheckpointHandler(None, tf.train.Checkpoint(**kept), "runs", save_every=1)
data = tf.data.Dataset.range(20).map(lambda i: tf.cast(i, tf.float32)).batch(4)
iterator = handler.track(iter(strategy.experimental_distribute_dataset(data)))
with handler.watch_preemption_scope():
    for _ in handler.steps(3):
        handler.run(step, next(iterator))
"""


@pytest.mark.parametrize("strategy", ["mirrored", "multi_worker"])
@pytest.mark.parametrize("kept", ["kept", "lost"])
def test_variables_of_replicas_are_told_once(strategy: str, kept: str, run_script: Any) -> None:
    ended = run_script(REPLICAS, strategy, kept, env={"CUDA_VISIBLE_DEVICES": "-1"}, timeout=120)
    assert ended.rc == 0, ended.stderr
    warned = [line for line in ended.stderr.splitlines() if WORDS in line]
    assert len(warned) == (kept == "lost")
    for line in warned:
        assert line.count("found, float32") == 1
        assert line.count("by_each, float32") == 1
        assert line.count("found_metric/total") == 1 or line.count("total, float32") == 1
        assert "replica_1" not in line
        assert "collective_instance" not in line
