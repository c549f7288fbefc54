"""Programs of every kind end, interrupted in the middle of an epoch, with the bits of the undisturbed run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.callbacks import lives
from tests.callbacks.lives import Program, assert_identical, new_process

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning"  # Keras's own LearningRateScheduler with NumPy 2
)


class OwnStep(keras.Model):
    """A subclassed model with its own `train_step`, metric and random layer."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.dropout = keras.layers.Dropout(0.5)
        self.mean = keras.metrics.Mean(name="own")

    def call(self, inputs: Any, training: bool = False) -> Any:
        return self.dense(self.dropout(inputs, training=training))

    @property
    def metrics(self) -> list[Any]:
        return [self.mean]

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.abs(y - self(x, training=True)))
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self.mean.update_state(loss)
        return {"own": self.mean.result()}

    def test_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        self.mean.update_state(tf.abs(y - self(x)))
        return {"own": self.mean.result()}


def own_step() -> keras.Model:
    model = OwnStep()
    model.compile("adam")
    return model


def two_outputs() -> keras.Model:
    inputs = keras.layers.Input((3,))
    hidden = keras.layers.Dropout(0.5)(keras.layers.Dense(4)(inputs))
    model = keras.Model(inputs, {"a": keras.layers.Dense(1)(hidden), "b": keras.layers.Dense(2)(hidden)})
    model.compile("adam", {"a": "mse", "b": "mae"}, metrics={"a": ["mae"], "b": ["mse"]})
    return model


def without_input() -> keras.Model:
    model = keras.Sequential(
        [keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    )
    model.compile("adam", "mse", metrics=["mae"])
    return model


def with_sample_weights() -> dict[str, Any]:
    x, y = lives.arrays()
    weights = np.linspace(0.5, 2.0, lives.ROWS, dtype="float32")
    rows = tf.data.Dataset.from_tensor_slices((x, y, weights))
    train, validation = (rows.shuffle(20, seed=seed).batch(lives.BATCH) for seed in (3, 4))
    return {"x": train, "validation_data": validation}


def classes() -> dict[str, Any]:
    x, _ = lives.arrays()
    y = (np.arange(lives.ROWS) % 2).astype("float32")[:, None]
    train = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(20, seed=3).batch(lives.BATCH)
    return {"x": train, "class_weight": {0: 1.0, 1: 3.0}}


def two_targets() -> dict[str, Any]:
    x, y = lives.arrays()
    targets = {"a": y, "b": np.concatenate([y, -y], axis=1)}
    return {"x": tf.data.Dataset.from_tensor_slices((x, targets)).shuffle(20, seed=3).batch(lives.BATCH)}


def unshuffled_arrays() -> dict[str, Any]:
    x, y = lives.arrays()
    return {"x": x, "y": y, "batch_size": lives.BATCH, "shuffle": False, "validation_split": 0.2}


def multiply(epoch: int, rate: float) -> float:
    return rate * 0.5


def mixed_precision() -> keras.Model:
    policy = keras.mixed_precision.DTypePolicy("mixed_bfloat16")
    model = keras.Sequential(
        [keras.layers.Input((3,)), keras.layers.Dense(4, dtype=policy), keras.layers.Dense(1)]
    )
    model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)), "mse")
    return model


class Named(keras.Model):
    """A subclassed model whose layers are attributes of the given names."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names = names
        for name in names:
            setattr(self, name, keras.layers.Dense(3))

    def call(self, inputs: Any) -> Any:
        for name in self.names:
            inputs = getattr(self, name)(inputs)
        return inputs[:, :1]


def named(*names: str) -> Callable[[], keras.Model]:
    def build() -> keras.Model:
        model = Named(*names)
        model.compile("adam", "mse")
        return model

    return build


PROGRAMS = {
    "pipeline": Program(),
    "sample_weight": Program(
        data=with_sample_weights, build=lambda: lives.dense_model(weighted_metrics=["mae"])
    ),
    "class_weight": Program(data=classes),
    "unshuffled arrays": Program(data=unshuffled_arrays),
    "two outputs": Program(build=two_outputs, data=two_targets),
    "own train_step": Program(build=own_step),
    "run_eagerly": Program(build=lambda: lives.dense_model(run_eagerly=True), epochs=2),
    "jit_compile off": Program(build=lambda: lives.dense_model(jit_compile=False)),
    "no Input layer": Program(build=without_input),
    "two steps per execution": Program(build=lambda: lives.dense_model(steps_per_execution=2)),
    "weight EMA": Program(
        build=lambda: lives.dense_model(
            keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=3)
        )
    ),
    "rate multiplied each epoch": Program(
        build=lambda: lives.dense_model(keras.optimizers.SGD(0.5)),
        callbacks=lambda ours: [keras.callbacks.LearningRateScheduler(multiply), ours],
    ),
    "rate multiplied after us": Program(
        build=lambda: lives.dense_model(keras.optimizers.SGD(0.5)),
        callbacks=lambda ours: [ours, keras.callbacks.LearningRateScheduler(multiply)],
    ),
    "rate schedule": Program(
        build=lambda: lives.dense_model(
            keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.9))
        )
    ),
    "loss scale and bfloat16": Program(build=mixed_precision),
    "validation every second epoch": Program(more={"validation_freq": 2}),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_interrupted_in_an_epoch(tmp_path: Path, name: str) -> None:
    program = PROGRAMS[name]
    whole = program.run(tmp_path / "whole")
    batch = 1 if name == "two steps per execution" else 2
    assert_identical(program.run_interrupted(tmp_path / "lives", batch=batch), whole)


def test_resumed_with_attributes_of_other_names(tmp_path: Path) -> None:
    """Variables are told apart by their order and shape: refactoring a model does not lose its training."""
    whole = Program(build=named("a", "b")).run(tmp_path / "whole")
    assert Program(build=named("a", "b")).run(tmp_path / "lives", interrupt=lives.Interrupt(1, 2)) is None
    assert_identical(Program(build=named("first", "second")).run(tmp_path / "lives"), whole)


@pytest.mark.parametrize("position", ["before", "after"])
def test_early_stopping_stops_where_it_would_have(tmp_path: Path, position: str) -> None:
    def callbacks(ours: Any) -> list[Any]:
        early = keras.callbacks.EarlyStopping("loss", mode="max", patience=2, restore_best_weights=True)
        return [early, ours] if position == "before" else [ours, early]

    program = Program(callbacks=callbacks, epochs=8)
    whole = program.run(tmp_path / "whole")
    assert whole is not None
    assert 3 <= len(whole.epochs) < 8
    assert_identical(program.run_interrupted(tmp_path / "lives"), whole)


@pytest.mark.parametrize("position", ["before", "after"])
def test_stopped_early_and_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, position: str
) -> None:
    trained: list[int] = []

    def callbacks(ours: Any) -> list[Any]:
        early = keras.callbacks.EarlyStopping("loss", mode="max", patience=1, restore_best_weights=True)
        count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: trained.append(batch))
        return [early, ours, count] if position == "before" else [ours, early, count]

    program = Program(callbacks=callbacks, epochs=8)
    whole = program.run(tmp_path)
    steps = len(trained)
    new_process(monkeypatch)
    again = program.run(tmp_path)
    assert len(trained) == steps < 8 * lives.STEPS
    assert_identical(again, whole)


def test_complete_run_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(epochs=2)
    whole = program.run(tmp_path)
    new_process(monkeypatch)
    files = sorted(path.name for path in tmp_path.glob("ckpt*"))
    assert_identical(program.run(tmp_path), whole)
    assert sorted(path.name for path in tmp_path.glob("ckpt*")) == files


def test_complete_run_goes_on_with_more_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Program(epochs=4).run(tmp_path / "whole")
    Program(epochs=2).run(tmp_path / "lives")
    new_process(monkeypatch)
    assert_identical(Program(epochs=4).run(tmp_path / "lives"), whole)


def test_shuffled_arrays_are_warned_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    x, y = lives.arrays()
    program = Program(data=lambda: {"x": x, "y": y, "batch_size": lives.BATCH, "shuffle": True}, epochs=2)
    with caplog.at_level(logging.WARNING, "tf_preempt"):
        program.run(tmp_path)
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 1
    assert "shuffle=True" in warnings[0]
    assert "HINT" in warnings[0]


@pytest.mark.parametrize("verbose", [1, 2])
def test_progress_bar_begins_at_the_resumed_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verbose: int
) -> None:
    program = Program(more={"verbose": verbose}, epochs=2)
    whole = program.run(tmp_path / "whole")
    assert program.run(tmp_path / "lives", interrupt=lives.Interrupt(1, 2)) is None
    capsys.readouterr()
    assert_identical(program.run(tmp_path / "lives"), whole)
    printed = capsys.readouterr().out
    assert "Epoch 2/2" in printed
    assert "Epoch 1/2" not in printed
    assert f"{lives.STEPS}/{lives.STEPS}" in printed
    if verbose == 1:
        assert "4/5" in printed
    for step in (1, 2, 3):
        assert f"{step}/5" not in printed
