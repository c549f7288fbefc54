"""Which variables of a `fit` are warned of: those that change and that no checkpoint holds, and no others."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Iterable
from typing import Any

import keras
import pytest
import tensorflow as tf

from tests.callbacks import lives
from tf_preempt.callbacks import OnChief, PreemptionCheckpoint

WORDS = "uses variables that change and that no checkpoint holds"


class Around(keras.layers.Layer):
    """Calls a function that has its state from around it, as functions in modules have."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def call(self, x: Any) -> Any:
        return self.function(x)


class Trains(keras.Model):
    """A model whose ``train_step`` does something more."""

    def __init__(self, more: Callable[[Any], None]) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.more = more

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def train_step(self, data: Any) -> Any:
        self.more(data[0])
        return self.step(data)

    def step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        variables = self.dense.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"loss": loss}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """What is trained.

    Args:
        model: not compiled.
        callbacks: beside ours.
        loss: that it is compiled with.
    """

    model: keras.Model
    callbacks: Iterable[Any] = ()
    loss: Any = "mse"


def around(function: Callable[[Any], Any], **more: Any) -> Program:
    model = keras.Sequential([keras.layers.Input((3,)), Around(function), keras.layers.Dense(1)])
    return Program(model=model, **more)


def counted(variable: Any) -> Callable[[Any], Any]:
    def count(x: Any) -> Any:
        variable.assign(variable + 1)
        return x

    return count


def a_global_variable() -> Program:
    return around(counted(tf.Variable(0.0, name="found")))


def a_variable_of_keras() -> Program:
    return around(counted(keras.Variable(0.0, trainable=False, name="found")))


def in_a_nested_function() -> Program:
    return around(tf.function(counted(tf.Variable(0.0, name="found"))))


def in_a_branch() -> Program:
    count = counted(tf.Variable(0.0, name="found"))
    return around(lambda x: tf.cond(x[0, 0] >= 0, lambda: count(x), lambda: x))


def in_a_loop() -> Program:
    count = counted(tf.Variable(0.0, name="found"))
    return around(lambda x: tf.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, count(y)), (0, x))[1])


def in_the_loss() -> Program:
    count = counted(tf.Variable(0.0, name="found"))
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    return Program(model=model, loss=lambda y, predicted: (count(predicted) - y) ** 2)


def a_generator_of_tensorflow() -> Program:
    generator = tf.random.Generator.from_seed(1)
    return around(lambda x: x + generator.normal((3,)))


def a_generator_of_keras() -> Program:
    generator = keras.random.SeedGenerator(1)
    return around(lambda x: x + keras.random.normal((3,), seed=generator))


def second_model() -> keras.Model:
    return keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1, name="found")])


def trained_with(model: Any, optimizer: Any) -> Callable[[Any], None]:
    optimizer.build(model.trainable_variables)

    def train(x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - 1.0) ** 2)
        optimizer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
        )

    return train


def a_second_model() -> Program:
    return Program(model=Trains(trained_with(second_model(), keras.optimizers.SGD())))


def a_second_optimizer() -> Program:
    other = second_model()
    trains = Trains(trained_with(other, keras.optimizers.Adam(name="found")))
    trains.other = other
    return Program(model=trains)


def a_metric_outside_of_compile() -> Program:
    metric = keras.metrics.Mean(name="found")
    return Program(model=Trains(lambda x: metric.update_state(x)))


class Assigns(keras.callbacks.Callback):
    """Changes a variable after each epoch."""

    def __init__(self, variable: Any) -> None:
        super().__init__()
        self.variable = variable

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.variable.assign(self.variable * 0.5)


def changed_by_a_callback() -> Program:
    rate = tf.Variable(1.0, name="found")
    return around(lambda x: x * rate, callbacks=[Assigns(rate)])


class Validates(Trains):
    def train_step(self, data: Any) -> Any:
        return self.step(data)

    def test_step(self, data: Any) -> Any:
        self.more(data[0])
        return super().test_step(data)


def in_the_validation() -> Program:
    return Program(model=Validates(counted(tf.Variable(0.0, name="found"))))


def of_a_large_one_a_few() -> Program:
    """Of a table of 2 MiB, the rows that a batch names."""
    table = tf.Variable(tf.zeros((2**15, 16)), name="found")

    def count(x: Any) -> Any:
        rows = tf.cast(x[:, :1] * 2**15, tf.int64)
        table.scatter_nd_add(rows, tf.ones((tf.shape(x)[0], 16)))
        return x

    return around(count)


FOUND = [
    a_global_variable,
    a_variable_of_keras,
    in_a_nested_function,
    in_a_branch,
    in_a_loop,
    in_the_loss,
    a_generator_of_tensorflow,
    a_generator_of_keras,
    a_second_model,
    a_second_optimizer,
    a_metric_outside_of_compile,
    changed_by_a_callback,
    in_the_validation,
    of_a_large_one_a_few,
]
NAMES = {a_generator_of_tensorflow: "StateVar", a_generator_of_keras: "seed_generator_state"}


def a_frozen_teacher() -> Program:
    teacher = second_model()
    return around(lambda x: x + teacher(x))


def an_attribute_of_a_layer() -> Program:
    made = around(counted(tf.Variable(0.0)))
    layer = made.model.layers[0]
    layer.counter = tf.Variable(0.0)
    layer.function = lambda x: counted(layer.counter)(x)
    return made


def attributes_of_the_model() -> Program:
    other, optimizer, metric = second_model(), keras.optimizers.Adam(), keras.metrics.Mean()
    generators = [tf.random.Generator.from_seed(1), keras.random.SeedGenerator(1)]
    train = trained_with(other, optimizer)

    def more(x: Any) -> None:
        train(x + generators[0].normal((3,)) + keras.random.normal((3,), seed=generators[1]))
        metric.update_state(x)

    made = Trains(more)
    made.other, made.second_optimizer, made.metric, made.generators = other, optimizer, metric, generators
    return Program(model=made)


def global_generators() -> Program:
    tf.random.set_global_generator(tf.random.Generator.from_seed(1))
    return around(lambda x: x + keras.random.normal((3,)) + tf.random.get_global_generator().normal((3,)))


class Keeps(Assigns):
    """Saves what it changes."""

    def get_state(self) -> float:
        return float(self.variable)

    def set_state(self, state: float) -> None:
        self.variable.assign(state)


def changed_by_a_callback_that_keeps_it() -> Program:
    rate = tf.Variable(1.0)
    return around(lambda x: x * rate, callbacks=[Keeps(rate)])


def changed_by_a_callback_that_keeps_it_on_the_chief() -> Program:
    rate = tf.Variable(1.0)
    return around(lambda x: x * rate, callbacks=[OnChief(Keeps(rate))])


def changed_by_a_callback_that_keeps_a_global_one() -> Program:
    rate = tf.Variable(1.0)

    class Kept(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            rate.assign(rate * 0.5)

        def get_state(self) -> float:
            return float(rate)

        def set_state(self, state: float) -> None:
            rate.assign(state)

    return around(lambda x: x * rate, callbacks=[Kept()])


def layers_with_state() -> Program:
    layers = [keras.layers.BatchNormalization(), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
    return Program(model=keras.Sequential([keras.layers.Input((3,)), *layers]))


NOT_FOUND = [
    a_frozen_teacher,
    an_attribute_of_a_layer,
    attributes_of_the_model,
    global_generators,
    changed_by_a_callback_that_keeps_it,
    changed_by_a_callback_that_keeps_it_on_the_chief,
    changed_by_a_callback_that_keeps_a_global_one,
    layers_with_state,
]


def train(program: Program, directory: pathlib.Path, *, optimizer: Any = "adam", **compiled: Any) -> None:
    program.model.compile(optimizer, program.loss, metrics=["mae"], **compiled)
    x, y = lives.arrays()
    ours = PreemptionCheckpoint(directory, save_every=3)
    program.model.fit(
        x,
        y,
        batch_size=lives.BATCH,
        epochs=2,
        validation_data=(x, y),
        shuffle=False,
        verbose=0,
        callbacks=[ours, *program.callbacks],
    )


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if WORDS in message]


@pytest.mark.parametrize("program", FOUND)
def test_what_changes_and_is_not_kept_is_warned_of_once(
    program: Callable[[], Program], tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(program(), tmp_path / "run")
    (message,) = warnings(caplog)
    assert NAMES.get(program, "found") in message
    assert "HINT: make each an attribute of the model" in message


@pytest.mark.parametrize("program", NOT_FOUND)
def test_what_is_kept_or_does_not_change_is_not_warned_of(
    program: Callable[[], Program], tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(program(), tmp_path / "run")
    assert warnings(caplog) == []


WAYS: dict[str, Callable[[], dict[str, Any]]] = {
    "eagerly": lambda: {"run_eagerly": True},
    "several steps": lambda: {"steps_per_execution": 2},
    "compiled": lambda: {"jit_compile": True},
    "averaged and accumulated": lambda: {
        "optimizer": keras.optimizers.Adam(use_ema=True, gradient_accumulation_steps=2)
    },
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("program", "found"), [(a_global_variable, 1), (attributes_of_the_model, 0)])
def test_however_the_step_is_run(
    way: str,
    program: Callable[[], Program],
    found: int,
    tmp_path: pathlib.Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    train(program(), tmp_path / "run", **WAYS[way]())
    assert len(warnings(caplog)) == found


def test_name_dtype_shape_and_line_are_told(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    train(a_global_variable(), tmp_path / "run")
    (message,) = warnings(caplog)
    line = counted.__code__.co_firstlineno + 2
    assert "(found, float32 of shape (), changed in sequential" in message
    assert f"at {pathlib.Path(__file__).name}:{line})" in message


def test_many_are_not_all_named(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    variables = [tf.Variable(0.0, name=f"number_{number}") for number in range(7)]

    def count(x: Any) -> Any:
        for variable in variables:
            variable.assign_add(1.0)
        return x

    train(around(count), tmp_path / "run")
    (message,) = warnings(caplog)
    assert message.count("number_") == 5
    assert "and 2 more" in message


def test_one_that_changes_later_is_warned_of_then(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    early, late = tf.Variable(0.0, name="early"), tf.Variable(0.0, name="late")

    def count(x: Any) -> Any:
        early.assign_add(1.0)
        late.assign_add(tf.cast(early > 8.0, tf.float32))
        return x

    train(around(count), tmp_path / "run")
    first, second = warnings(caplog)
    assert "early" in first
    assert "late" in second
    assert "early" not in second


def weighing(*, attribute: bool) -> Callable[[], keras.Model]:
    """Makes models that multiply by the number of the step, which they count in a variable."""

    def build() -> keras.Model:
        variable = tf.Variable(0.0)

        def weigh(x: Any) -> Any:
            variable.assign_add(1.0)
            return x * variable

        model = around(weigh).model
        if attribute:
            model.layers[0].counter = variable
        model.compile("adam", "mse")
        return model

    return build


@pytest.mark.parametrize("attribute", [False, True])
def test_the_cure_makes_a_resume_exact(
    attribute: bool, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    program = lives.Program(build=weighing(attribute=attribute))
    whole = program.run(tmp_path / "whole")
    caplog.clear()
    resumed = program.run_interrupted(tmp_path / "interrupted")
    assert whole is not None
    alike = [one.tobytes() for _, one in whole.variables] == [one.tobytes() for _, one in resumed.variables]
    assert alike == attribute
    assert bool(warnings(caplog)) == (not attribute)
