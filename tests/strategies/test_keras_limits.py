from __future__ import annotations

import logging
from typing import Any

import keras
import pytest

from tf_preempt.strategies import keras_limits
from tf_preempt.strategies.keras_limits import limits_of, warn_of_limits


@pytest.fixture(autouse=True)
def _nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras_limits, "_said", set())


def compiled(*layers: Any, loss: Any = "mse") -> keras.Model:
    model = keras.Sequential([keras.Input((7,)), *layers])
    model.compile("sgd", loss)
    return model


def with_masks() -> keras.Model:
    inner = keras.Sequential([keras.layers.Embedding(5, 4, mask_zero=True)])
    return compiled(inner, keras.layers.Dense(1))


def weighted_mean() -> keras.losses.Loss:
    return keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: compiled(keras.layers.Dense(1)), []),
        (lambda: compiled(keras.layers.Embedding(5, 4), keras.layers.Dense(1)), []),
        (with_masks, ["'embedding'"]),
        (lambda: compiled(keras.layers.Reshape((7, 1)), keras.layers.Masking(0.0)), ["'masking'"]),
        (lambda: compiled(keras.layers.Dense(1), loss=weighted_mean()), ["mean_with_sample_weight"]),
        (lambda: compiled(keras.layers.Dense(1), loss=[weighted_mean()]), ["mean_with_sample_weight"]),
    ],
)
def test_what_is_not_a_mean_over_rows_is_named_with_the_cure(make: Any, named: list[str]) -> None:
    keras.utils.clear_session()
    found = list(limits_of(make()))
    assert len(found) == len(named)
    assert all(name in message and "HINT: " in message for name, message in zip(named, found, strict=True))


def test_it_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    model = compiled(keras.layers.Dense(1), loss=weighted_mean())
    with caplog.at_level(logging.WARNING, "tf_preempt"):
        warn_of_limits(model.train_step)
        warn_of_limits(model.test_step)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_other_functions_are_nobody_s_model(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "tf_preempt"):
        warn_of_limits(lambda x: x)
        warn_of_limits([].append)
    assert not caplog.records
