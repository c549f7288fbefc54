from __future__ import annotations

import contextlib
import logging
from typing import Any

import keras
import numpy as np
import pytest

from tf_preempt.strategies import MirroredStrategy, keras_models, said
from tf_preempt.strategies.keras_models import limits_of, made_outside, prepare_model


@pytest.fixture(autouse=True)
def _nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(said, "_said", set())


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


def test_it_is_said_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras_models, "made_outside", lambda model: ())
    model = compiled(keras.layers.Dense(1), loss=weighted_mean())
    with caplog.at_level(logging.WARNING, "tf_preempt"):
        prepare_model(model.train_step, 2)
        prepare_model(model.test_step, 2)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_metrics_made_outside_the_scope_are_named() -> None:
    outside = keras.metrics.MeanAbsoluteError(name="outside")
    strategy = MirroredStrategy(["CPU:0"])
    with strategy.scope():
        model = keras.Sequential([keras.Input((7,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=["mae", outside])
        model.compute_metrics(None, np.zeros((2, 1)), np.zeros((2, 1)))
    (message,) = made_outside(model)
    assert message.startswith("metric variable 'outside/")
    assert "HINT: " in message


def test_a_class_that_looks_for_overflow_itself_is_left_alone() -> None:
    class Own(keras.optimizers.LossScaleOptimizer):
        def check_finite(self, grads: Any) -> Any:
            return super().check_finite(grads)

    for kind, changed in ((keras.optimizers.LossScaleOptimizer, True), (Own, False)):
        model = keras.Sequential([keras.Input((7,)), keras.layers.Dense(1)])
        model.compile(kind(keras.optimizers.SGD()), "mse")
        prepare_model(model.train_step, 2)
        assert ("check_finite" in vars(model.optimizer)) is changed


@pytest.mark.parametrize(("loss", "named"), [("mse", 0), ({"a": "mse", "b": "mae"}, 1)])
def test_losses_of_single_outputs_are_named_where_batches_are_uneven(loss: Any, named: int) -> None:
    inputs = keras.Input((7,))
    outputs = {"a": keras.layers.Dense(1)(inputs), "b": keras.layers.Dense(1)(inputs)}
    model = keras.Model(inputs, outputs)
    model.compile("sgd", loss)
    found = list(keras_models.uneven_limits_of(model))
    assert len(found) == named
    assert all("HINT: give each output a metric" in message for message in found)


def test_one_replica_needs_nothing() -> None:
    model = keras.Sequential([keras.Input((7,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), "mse")
    prepare_model(model.train_step, 1)
    assert "check_finite" not in vars(model.optimizer)


def test_other_functions_are_nobody_s_model(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "tf_preempt"):
        prepare_model(lambda x: x, 2)
        prepare_model([].append, 2)
    assert not caplog.records


@pytest.mark.parametrize("options", [{"gradient_accumulation_steps": 2}, {"use_ema": True}])
def test_optimizers_that_synchronize_in_branches_train_on_one_replica(options: dict[str, Any]) -> None:
    strategy = MirroredStrategy(["cpu:0"])
    extra = {"ema_overwrite_frequency": 2} if "use_ema" in options else {}
    results = []
    for scope in (strategy.scope(), contextlib.nullcontext()):
        with scope:
            model = keras.Sequential(
                [keras.layers.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")]
            )
            model.compile(keras.optimizers.SGD(0.5, **options, **extra), "mse")
        x = np.arange(16.0, dtype="float32").reshape(8, 2) / 16
        model.fit(x, x.sum(axis=1) + 1, batch_size=2, epochs=1, shuffle=False, verbose=0)
        results.append(model.get_weights())
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
