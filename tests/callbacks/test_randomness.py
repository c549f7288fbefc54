"""Programs that draw random numbers in every way that can be saved: interrupted, they draw the same ones."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.callbacks.lives import Program, assert_identical

STATEFUL = importlib.import_module("tensorflow.python.ops.stateful_random_ops")


@pytest.fixture(autouse=True)
def _no_global_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(STATEFUL, "global_generator", None)


class GlobalSeed(keras.layers.Layer):
    """Draws from Keras's global seed generator."""

    def call(self, x: Any) -> Any:
        return x + keras.random.normal((3,))


class OwnGenerator(keras.layers.Layer):
    """Draws from generators of TensorFlow: one that is tracked, one in a list, one in a plain object."""

    def __init__(self) -> None:
        super().__init__()
        self.tracked = tf.random.Generator.from_seed(1)
        self.listed = [tf.random.Generator.from_seed(2)]

    def call(self, x: Any) -> Any:
        return x + self.tracked.normal((3,)) + self.listed[0].normal((3,))


class GlobalGenerator(keras.layers.Layer):
    """Draws from TensorFlow's global generator."""

    def __init__(self) -> None:
        super().__init__()
        tf.random.set_global_generator(tf.random.Generator.from_seed(4))

    def call(self, x: Any) -> Any:
        return x + tf.random.get_global_generator().normal((3,))


def model_with(*layers: Callable[[], Any]) -> Callable[[], keras.Model]:
    def build() -> keras.Model:
        model = keras.Sequential([keras.Input((3,)), *(layer() for layer in layers), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        return model

    return build


class Disturb(keras.callbacks.Callback):
    """Moves the bias by a number that it draws at each step, outside of the model."""

    def __init__(self, draw: Callable[[], Any]) -> None:
        super().__init__()
        self._draw = draw

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.layers[-1].bias.assign_add([float(self._draw())])


def disturbed(draw: Callable[[], Any]) -> Program:
    return Program(callbacks=lambda ours: [Disturb(draw), ours])


PROGRAMS = {
    "keras.random without a seed, in a layer": Program(build=model_with(GlobalSeed)),
    "keras.random without a seed, in a callback": disturbed(lambda: keras.random.normal(())),
    "tf.random.Generator of a layer": Program(build=model_with(OwnGenerator)),
    "tf.random.get_global_generator": Program(build=model_with(GlobalGenerator)),
    "tf.random in a callback": disturbed(lambda: tf.random.normal(())),
    "NumPy in a callback": disturbed(np.random.random),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_resumed_program_draws_what_the_undisturbed_one_draws(tmp_path: Path, name: str) -> None:
    program = PROGRAMS[name]
    assert_identical(program.run_interrupted(tmp_path / "lives"), program.run(tmp_path / "whole"))
