"""Attributes of layers that change during `fit` are warned of: no checkpoint holds them."""

from __future__ import annotations

import logging
import pathlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

import tf_preempt

WARNING = "Attributes of the model or of its layers have changed during fit"


class Inner(keras.layers.Layer):
    def __init__(self) -> None:
        super().__init__(name="inner")
        self.scale, self._calls, self.traces = 1.0, 0, 0
        self.unknown = float("nan")

    def call(self, x: Any) -> Any:
        self.traces += 1
        return x * self.scale


class Counting(keras.Model):
    """Counts the steps that are run eagerly in an attribute of its own."""

    def __init__(self) -> None:
        super().__init__(name="outer")
        self.head = keras.Sequential([Inner(), keras.layers.Dropout(0.5, name="drop")], name="head")
        self.dense = keras.layers.Dense(1, name="dense")
        self.counts, self._seen = False, 0

    def call(self, x: Any, training: bool = False) -> Any:
        return self.dense(self.head(x, training=training))

    def train_step(self, data: Any) -> Any:
        if self.counts:
            self._seen += 1
        return super().train_step(data)


class AtStep(keras.callbacks.Callback):
    def __init__(self, number: int, act: Callable[[Any], None]) -> None:
        super().__init__()
        self.number, self.act = number, act

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == self.number:
            self.act(self.model)


def warnings_of(
    directory: pathlib.Path,
    caplog: pytest.LogCaptureFixture,
    act: Callable[[Any], None] = lambda model: None,
    *,
    counts: bool = False,
    eagerly: bool = False,
) -> list[str]:
    model = Counting()
    model.counts = counts
    model.compile("sgd", "mse", run_eagerly=eagerly)
    x = np.ones((8, 2), np.float32)
    callback = tf_preempt.callbacks.PreemptionCheckpoint(directory, save_every=2, verbose=0)
    with caplog.at_level(logging.WARNING, "tf_preempt"):
        model.fit(
            *(x, x[:, :1]),
            batch_size=2,
            epochs=2,
            shuffle=False,
            verbose=0,
            validation_data=(x, x[:, :1]),
            callbacks=[AtStep(2, act), callback],
        )
    return [message for message in caplog.messages if message.startswith(WARNING)]


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda model: setattr(model.dense, "trainable", False), "dense.trainable was True and is False"),
        (lambda model: setattr(model.head.layers[1], "rate", 0.25), "drop.rate was 0.5 and is 0.25"),
        (lambda model: setattr(model.head.layers[0], "_calls", 3), "inner._calls was 0 and is 3"),
        (lambda model: setattr(model, "note", "new"), "outer.note was None and is 'new'"),
    ],
    ids=["trainable", "rate", "own-and-nested", "added"],
)
def test_an_attribute_that_a_callback_changes_is_named_once(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture, act: Callable[[Any], None], said: str
) -> None:
    (warning,) = warnings_of(tmp_path, caplog, act)
    assert said in warning
    assert "HINT: change them between two calls of fit" in warning


def test_a_counter_of_a_step_that_is_run_eagerly_is_named(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    (warning,) = warnings_of(tmp_path, caplog, counts=True, eagerly=True)
    assert "outer._seen was 1 and is " in warning


def test_what_the_first_step_sets_in_being_traced_is_not_named(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor what stays NaN, nor `stop_training`."""

    def act(model: Any) -> None:
        model.stop_training = True

    assert warnings_of(tmp_path, caplog, act, counts=True) == []


def test_of_many_three_are_named(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    def act(model: Any) -> None:
        for number in range(5):
            setattr(model, f"note{number}", number)

    (warning,) = warnings_of(tmp_path, caplog, act)
    assert "outer.note2 was None and is 2; 2 more)" in warning
