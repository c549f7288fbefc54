from __future__ import annotations

import inspect
import logging
import pathlib
from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

from tests.callbacks import lives
from tf_preempt.callbacks import PreemptionCheckpoint
from tf_preempt.checkpointing import step_randomness
from tf_preempt.checkpointing.handler import PreemptionCheckpointHandler
from tf_preempt.checkpointing.step_randomness import warn_of_random_ops

WORDS = "draws random numbers with ops whose state is in no checkpoint"


@pytest.fixture(autouse=True)
def _nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_randomness, "_warned", set())


@tf.function
def inner(x: tf.Tensor) -> tf.Tensor:
    return x + tf.random.uniform(tf.shape(x))


@pytest.mark.parametrize(
    ("step", "named"),
    [
        (lambda x: x + tf.random.normal(tf.shape(x)), "RandomStandardNormal"),
        (lambda x: inner(x), "RandomUniform"),
        (lambda x: tf.cond(x[0] > 0, lambda: tf.random.shuffle(x), lambda: x), "RandomShuffle"),
        (lambda x: tf.nn.dropout(x, 0.5), "RandomUniform"),
        (lambda x: x + tf.random.stateless_normal(tf.shape(x), seed=(1, 2)), None),
        (lambda x: x + keras.random.normal((2,), seed=1), None),
        (lambda x: x * 2, None),
    ],
)
def test_ops_that_count_in_their_kernel_are_named_with_the_cure(
    step: Callable[[Any], Any], named: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    traced = tf.function(step, autograph=False)
    traced(tf.constant([1.0, 2.0]))
    with caplog.at_level(logging.WARNING, "tf_preempt"):
        for _ in range(2):
            warn_of_random_ops([traced, step, None])
    warned = [message for message in caplog.messages if WORDS in message]
    assert len(warned) == (named is not None)
    assert all(f"({named} " in message and "HINT: use keras.random" in message for message in warned)
    assert all("tf.random." in message and "stateless_" in message for message in warned)


class Noise(keras.layers.Layer):
    """Noise as TensorFlow's older programs make it."""

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return x + tf.random.normal(tf.shape(x))


def test_layer_and_line_of_the_op_are_named(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    model = keras.Sequential([keras.Input((3,)), Noise(name="grain"), keras.layers.Dense(1)], name="net")
    model.compile("sgd", "mse")
    callback = PreemptionCheckpoint(tmp_path / "run", save_every=None)
    model.fit(lives.pipeline(), verbose=0, shuffle=False, callbacks=[callback])
    (message,) = [message for message in caplog.messages if WORDS in message]
    line = inspect.getsourcelines(Noise.call)[1] + 1
    assert f"(RandomStandardNormal in net_1/grain_1 at test_step_randomness.py:{line})" in message
    assert "tf.random.stateless_normal" in message


@pytest.mark.parametrize(("layer", "warned"), [(Noise, 1), (lambda: keras.layers.Dropout(0.5), 0)])
def test_fit_is_looked_at(
    layer: Callable[[], Any], warned: int, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = keras.Sequential([keras.Input((3,)), layer(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    callback = PreemptionCheckpoint(tmp_path / "run", save_every=None)
    model.fit(lives.pipeline(), verbose=0, shuffle=False, callbacks=[callback])
    assert sum(WORDS in message for message in caplog.messages) == warned


def test_a_custom_loop_is_looked_at(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoint = tf.train.Checkpoint(variable=tf.Variable(0.0))
    handler = PreemptionCheckpointHandler(None, checkpoint, tmp_path, save_every=None)
    try:
        for _ in range(2):
            handler.run(inner, tf.zeros((2,)))
    finally:
        handler.close()
    assert sum(WORDS in message for message in caplog.messages) == 1


@tf.function
def drawing_step(x: tf.Tensor) -> tf.Tensor:
    return x + tf.random.normal(tf.shape(x))


@tf.function
def plain_step(x: tf.Tensor) -> tf.Tensor:
    return x * 2


@pytest.mark.parametrize(
    "steps", [[lambda x: drawing_step(x)], [plain_step, drawing_step]], ids=["in a lambda", "second function"]
)
def test_every_function_of_a_loop_is_looked_at(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture, steps: list[Callable[[Any], Any]]
) -> None:
    handler = PreemptionCheckpointHandler(None, tf.train.Checkpoint(), tmp_path, save_every=None)
    with caplog.at_level(logging.WARNING, "tf_preempt"), handler.watch_preemption_scope():
        for _ in handler.steps(3):
            for step in steps:
                handler.run(step, tf.constant([1.0]))
    assert len([message for message in caplog.messages if WORDS in message]) == 1


class NoiseInValidation(keras.layers.Layer):
    def call(self, x: Any, training: bool = False) -> Any:
        return x if training else x + tf.random.normal(tf.shape(x))


def test_random_ops_of_the_validation_are_named(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    def build() -> keras.Model:
        model = keras.Sequential([keras.layers.Input((3,)), NoiseInValidation(), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        return model

    with caplog.at_level(logging.WARNING, "tf_preempt"):
        lives.Program(build=build, epochs=2).run(tmp_path)
    (warned,) = [message for message in caplog.messages if WORDS in message]
    assert warned.startswith("The validation draws")
    assert "RandomStandardNormal" in warned
