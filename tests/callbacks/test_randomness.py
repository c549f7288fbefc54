"""Programs that draw random numbers in every way that can be saved: interrupted, they draw the same ones."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.callbacks import lives
from tests.callbacks.lives import Program, assert_identical

pytestmark = pytest.mark.filterwarnings(
    "ignore:Your input ran out of data:UserWarning"  # Keras's, of data of unknown length
)
SCRIPT = Path(__file__).parent / "scripts" / "random_validation.py"
NO_GPU = {"CUDA_VISIBLE_DEVICES": "-1"}
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


def augmented(draw: Callable[[], Callable[[Any], Any]], *, prefetch: int = 0) -> Callable[[], dict[str, Any]]:
    """Data for training and for the validation, with random numbers in both.

    Args:
        draw: makes a function that draws noise for a batch.
        prefetch: batches that are read ahead.
    """

    def data() -> dict[str, Any]:
        train, validation = draw(), draw()
        return {
            "x": with_noise(lives.pipeline(), train).prefetch(prefetch),
            "validation_data": with_noise(lives.pipeline(seed=4), validation),
        }

    return data


def with_noise(dataset: tf.data.Dataset, draw: Callable[[Any], Any]) -> tf.data.Dataset:
    return dataset.map(lambda x, y: (x + draw(tf.shape(x)), y))


def layer_noise() -> Callable[[Any], Any]:
    layer = keras.layers.RandomBrightness(0.5, value_range=(0.0, 1.0), seed=3)
    return lambda shape: layer(tf.ones((2, 2, 3)), training=True)[0, 0]


def generator_noise() -> Callable[[Any], Any]:
    generator = tf.random.Generator.from_seed(7)
    return lambda shape: generator.normal(shape)


def shared_noise() -> Callable[[], dict[str, Any]]:
    """Training and validation draw from one layer."""

    def data() -> dict[str, Any]:
        draw = layer_noise()
        return augmented(lambda: draw)()

    return data


def nested_noise() -> dict[str, Any]:
    """Drawn in a data set within the data set."""
    draw = generator_noise()

    def rows(x: Any, y: Any) -> tf.data.Dataset:
        return tf.data.Dataset.range(1).map(lambda _: (x + draw((3,)), y))

    return {"x": lives.pipeline().unbatch().flat_map(rows).batch(lives.BATCH)}


def unknown_length() -> dict[str, Any]:
    draw = layer_noise()
    train = with_noise(lives.pipeline().filter(lambda x, y: True), draw)
    return {"x": train, "validation_data": lives.pipeline(seed=4)}


PROGRAMS = {
    "keras.random without a seed, in a layer": Program(build=model_with(GlobalSeed)),
    "keras.random without a seed, in a callback": disturbed(lambda: keras.random.normal(())),
    "tf.random.Generator of a layer": Program(build=model_with(OwnGenerator)),
    "tf.random.get_global_generator": Program(build=model_with(GlobalGenerator)),
    "tf.random in a callback": disturbed(lambda: tf.random.normal(())),
    "NumPy in a callback": disturbed(np.random.random),
    "random layers in the data": Program(data=augmented(layer_noise)),
    "random layers in data that are read ahead": Program(data=augmented(layer_noise, prefetch=2)),
    "one random layer in both data sets": Program(data=shared_noise()),
    "a generator in the data": Program(data=augmented(generator_noise)),
    "a generator in a data set within the data": Program(data=nested_noise),
    "a random layer in data of unknown length": Program(data=unknown_length),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_resumed_program_draws_what_the_undisturbed_one_draws(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    program = PROGRAMS[name]
    assert_identical(program.run_interrupted(tmp_path / "lives"), program.run(tmp_path / "whole"))
    assert not [message for message in caplog.messages if "HINT" in message]


@pytest.mark.parametrize("batch", [0, lives.STEPS - 1])
@pytest.mark.parametrize(
    "name", ["one random layer in both data sets", "a random layer in data of unknown length"]
)
def test_random_layers_in_the_data_wherever_the_interruption_falls(
    tmp_path: Path, name: str, batch: int
) -> None:
    program = PROGRAMS[name]
    whole = program.run(tmp_path / "whole")
    assert_identical(program.run_interrupted(tmp_path / "lives", batch=batch), whole)


def test_random_layers_in_the_validation_data_under_a_strategy(tmp_path: Path, run_script: Any) -> None:
    """Keras begins an iterator before each validation, which draws a batch that nobody sees."""

    def run(name: str, *more: str) -> Any:
        result = tmp_path / f"{name}.json"
        ended = run_script(SCRIPT, str(tmp_path / name), str(result), *more, env=NO_GPU, timeout=120)
        return ended.rc, json.loads(result.read_text()) if result.exists() else None

    whole = run("whole")
    assert run("lives", "interrupt") == (42, None)
    assert run("lives") == whole
    assert whole[0] == 0
