"""The programs of the matrix that do more than one `fit`: they train again, evaluate and predict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from tests.exactness import fit_programs as parts
from tests.exactness.lives import Life, Program, all_variables

VALIDATED: dict[str, Callable[[], Any]] = {"x": parts.pipeline, "validation_data": parts.validation}


def validated() -> dict[str, Any]:
    return {name: make() for name, make in VALIDATED.items()}


def fine_tuning(life: Life) -> list[Any]:
    """Trains the head on frozen layers; then all layers, with another optimizer, loss and data set."""
    model = parts.model(life)
    model.layers[0].trainable = False
    with life.scope():
        model.compile(parts.optimizer(life), "mse", metrics=["mae"])
    life.fit(model, **validated(), epochs=1)
    model.layers[0].trainable = True
    with life.scope():
        model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mae", metrics=["mse", parts.Order()])
    life.fit(model, x=parts.of_unknown_length(parts.pipeline(seed=8)), epochs=2)
    return all_variables(model)


def layers_added(life: Life) -> list[Any]:
    """The second model is made of layers of the first."""
    first = parts.model(life, name="first")
    life.fit(first, x=parts.pipeline(), epochs=1)
    with life.scope():
        second = keras.Sequential([*first.layers[:-1], keras.layers.Dense(3), keras.layers.Dense(1)])
        second.compile(parts.optimizer(life), "mse", metrics=[parts.Order()])
    life.fit(second, **validated(), epochs=2)
    return all_variables(first, second)


def goes_on_with_the_same(life: Life) -> list[Any]:
    """One model and one data set, two fits: optimizer, seeds and order go on."""
    model, data = parts.model(life), validated()
    life.fit(model, **data, epochs=1)
    life.fit(model, **data, epochs=3, initial_epoch=1)
    return all_variables(model)


def evaluates_between(life: Life) -> list[Any]:
    """What is done between two fits is done again by each life, and has to give the same."""
    model = parts.model(life)
    data = {"x": parts.pipeline(), "validation_data": parts.validation()}
    life.fit(model, **data, epochs=1)
    life.result(model.evaluate(data["validation_data"], verbose=0, callbacks=[Outside(life, "evaluate")]))
    predicted = model.predict(data["validation_data"], verbose=0, callbacks=[Outside(life, "predict")])
    life.result(np.asarray(predicted).tolist())
    life.fit(model, **data, epochs=2)
    life.result(model.evaluate(parts.validation(), verbose=0))
    return all_variables(model)


class Outside(keras.callbacks.Callback):
    """Moments in which no `fit` runs."""

    def __init__(self, life: Life, what: str) -> None:
        super().__init__()
        self._life, self._what = life, what

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._life.moment(f"outside {self._what} {batch}")

    def on_predict_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._life.moment(f"outside {self._what} {batch}")


class Slow(keras.callbacks.Callback):
    """Predicts and evaluates while `fit` waits.

    Args:
        life: is told of moments in the midst of it.
        hook: the name of the method in which it does so.
    """

    def __init__(self, life: Life, hook: str) -> None:
        super().__init__()
        self._life, self._hook = life, hook
        setattr(self, hook, self._work)

    def _work(self, number: int, logs: Any = None) -> None:
        place = f"{self._hook} {number}"
        x, y = parts.arrays(parts.VALIDATION_ROWS)
        predicted = self.model.predict(x, batch_size=parts.BATCH, verbose=0)
        self._life.moment(f"{place} predicted")
        found = self.model.evaluate(x, y, batch_size=parts.BATCH, verbose=0)
        if self._hook != "on_epoch_begin":  # who goes on in an epoch does again what belongs to its beginning
            self._life.saw(place, {"predicted": predicted.sum(), **dict(enumerate(found))})
        self._life.moment(f"{place} evaluated")

    def get_state(self) -> None:
        """It has none."""

    def set_state(self, state: None) -> None:
        """It has none."""


def with_slow_callback(hook: str, *, unknown: bool = False) -> Program:
    def program(life: Life) -> list[Any]:
        model = parts.model(life)
        data = parts.unknown() if unknown else validated()
        life.fit(model, Slow(life, hook), **data)
        return all_variables(model)

    return program


SEVERAL: dict[str, Program] = {
    "fine-tuning": fine_tuning,
    "layers of a trained model": layers_added,
    "the same fit again": goes_on_with_the_same,
    "evaluate and predict between": evaluates_between,
    "evaluate in on_epoch_begin": with_slow_callback("on_epoch_begin"),
    "evaluate in on_train_batch_end": with_slow_callback("on_train_batch_end"),
    "evaluate in on_train_batch_end, unknown length": with_slow_callback("on_train_batch_end", unknown=True),
    "evaluate in on_epoch_end": with_slow_callback("on_epoch_end"),
}
