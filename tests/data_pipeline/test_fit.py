"""`fit` over data sets that are read by index ends as if nobody had disturbed it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from tests.callbacks.lives import BATCH, STEPS, Interrupt, Program, arrays, assert_identical
from tests.data_pipeline.sources import Counted
from tf_preempt.checkpointing import determinism
from tf_preempt.data import from_arrays, from_source


class Rows(Counted):
    """The rows of the arrays that all these programs train on."""

    def __init__(self) -> None:
        self._x, self._y = arrays()
        super().__init__(len(self._x))

    def item(self, index: int) -> Any:
        return self._x[index], self._y[index]


def by_arrays() -> dict[str, Any]:
    x, y = arrays()
    return {
        "x": from_arrays(x, y, batch_size=BATCH, seed=3),
        "validation_data": from_arrays(x, y, batch_size=BATCH, seed=4),
    }


def by_source() -> dict[str, Any]:
    return {
        "x": from_source(Rows(), batch_size=BATCH, seed=3).prefetch(2),
        "validation_data": from_source(Rows(), batch_size=BATCH, shuffle=False),
    }


def repeated() -> dict[str, Any]:
    """Epochs of Keras and of the data begin at different steps."""
    data = from_source(Rows(), batch_size=BATCH, seed=3).repeat().prefetch(8)
    return {"x": data, "steps_per_epoch": STEPS - 2}


def shuffled_behind() -> dict[str, Any]:
    """The state of a shuffle is gone at the end of its epoch; what is done about it begins other epochs."""
    x, y = arrays()
    return {
        "x": from_arrays(x, y, batch_size=BATCH, seed=3).shuffle(2, seed=1).shuffle(2, seed=2).prefetch(9)
    }


@pytest.fixture(autouse=True)
def _determinism_was_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(determinism, "_warned", True)


@pytest.mark.parametrize("data", [by_arrays, by_source, repeated, shuffled_behind])
def test_interrupted_fit_is_identical(tmp_path: Path, data: Any, caplog: pytest.LogCaptureFixture) -> None:
    program = Program(data=data)
    whole = program.run(tmp_path / "whole")
    last = (data().get("steps_per_epoch") or STEPS) - 1
    for number, at in enumerate([(0, 0), (1, last)]):
        directory = tmp_path / str(number)
        assert program.run(directory, interrupt=Interrupt(*at)) is None, at
        with caplog.at_level(logging.WARNING, "tf_preempt"):
            caplog.clear()
            assert_identical(program.run(directory), whole)
        assert not caplog.messages


def test_fit_sees_the_same_epochs_as_a_loop() -> None:
    """Without a strategy, and with as many iterators as Keras makes."""
    import keras
    import tensorflow as tf

    seen: list[Any] = []

    def note(x: Any) -> Any:
        seen.append(x.tolist())
        return x

    data = from_arrays([[1.0], [2.0], [3.0], [4.0]], batch_size=2, seed=1)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    noted = data.map(lambda x: (tf.ensure_shape(tf.numpy_function(note, [x], tf.float32), [2, 1]), x))
    model.fit(noted, epochs=3, verbose=0, shuffle=False)
    again = from_arrays([[1.0], [2.0], [3.0], [4.0]], batch_size=2, seed=1)
    assert seen == [batch.numpy().tolist() for _ in range(3) for batch in again]
