"""Programs that train more than once, or on the same objects again; each start is a new process.

``programs.py PROGRAM DIRECTORY RESULT [KILL_AT]`` trains and writes weights and histories to RESULT (JSON).
KILL_AT, as ``fit.epoch.batch``, makes the process end there by a SIGTERM to itself; ``fit.-1.0`` kills it in
the first epoch of that fit.
"""

from __future__ import annotations

import json
import logging
import os
import pathlib
import signal
import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.callbacks import lives
from tf_preempt.callbacks import PreemptionCheckpoint
from tf_preempt.errors import Preempted

trained: list[str] = []


class KillHard(keras.callbacks.Callback):
    """Kills this process in the first epoch, without notice."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 2:
            os.kill(os.getpid(), signal.SIGKILL)


class Count(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        trained.append(f"{self.model.name} {batch}")


class Fits:
    """Trains under the callback; interrupts the fit that is asked for."""

    def __init__(self, directory: str, kill_at: str) -> None:
        self._directory = directory
        self._kill_at = [int(number) for number in kill_at.split(".")] if kill_at else [-1, 0, 0]
        self._number = 0
        self.histories: list[Any] = []

    def fit(self, model: keras.Model, data: dict[str, Any], *, on_preemption: Any = "exit") -> None:
        which, epoch, batch = self._kill_at
        kill: list[Any] = []
        if which == self._number:
            kill = [KillHard() if epoch < 0 else lives.Interrupt(epoch, batch)]
        self._number += 1
        ours = PreemptionCheckpoint(self._directory, save_every=None, on_preemption=on_preemption)
        history = model.fit(**data, epochs=3, verbose=0, shuffle=False, callbacks=[ours, Count(), *kill])
        self.histories.append([history.epoch, history.history])


def one_fit(fits: Fits) -> list[keras.Model]:
    model = lives.dense_model()
    fits.fit(model, lives.fit_pipeline())
    return [model]


def two_fits_of_one_model(fits: Fits) -> list[keras.Model]:
    """The second one on other data."""
    model = lives.dense_model()
    fits.fit(model, lives.fit_pipeline())
    fits.fit(model, {"x": lives.pipeline(seed=8)})
    return [model]


def two_fits_on_one_data_set(fits: Fits) -> list[keras.Model]:
    """The order of the second depends on how many epochs the first one made."""
    model, data = lives.dense_model(), {"x": nested()}
    fits.fit(model, data)
    fits.fit(model, data)
    return [model]


def nested() -> tf.data.Dataset:
    """Shuffles behind each other, whose seeds an iterator's state has lost early: a prefetch looks ahead."""
    rows = tf.data.Dataset.from_tensor_slices(lives.arrays())
    return rows.shuffle(lives.ROWS, seed=3).shuffle(lives.ROWS, seed=5).batch(lives.BATCH).prefetch(8)


def random_numbers_between_fits(fits: Fits) -> list[keras.Model]:
    """The second fit's data depend on NumPy's state after the first, which a callback has moved."""

    class Draw(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            np.random.random()

    model = lives.dense_model()
    data = lives.fit_pipeline()
    ours = PreemptionCheckpoint(fits._directory, save_every=None)
    model.fit(**data, epochs=3, verbose=0, shuffle=False, callbacks=[ours, Draw()])
    fits._number += 1
    x, y = lives.arrays()
    fits.fit(model, {"x": x * np.random.random(), "y": y, "batch_size": lives.BATCH})
    return [model]


def same_cell_again(fits: Fits) -> list[keras.Model]:
    """As in a notebook: after the interruption the same model and data are trained again."""
    return trained_again(fits, lives.fit_pipeline())


def same_cell_with_nested_shuffles(fits: Fits) -> list[keras.Model]:
    return trained_again(fits, {"x": nested()})


def trained_again(fits: Fits, data: dict[str, Any]) -> list[keras.Model]:
    model = lives.dense_model()
    try:
        fits.fit(model, data, on_preemption="raise")
    except Preempted:
        fits.fit(model, data, on_preemption="raise")
    return [model]


def main(program: str, directory: str, result: str, kill_at: str = "") -> None:
    logging.basicConfig(level=logging.INFO)
    keras.utils.set_random_seed(1)
    fits = Fits(directory, kill_at)
    models = globals()[program](fits)
    weights = [
        variable.numpy().tobytes().hex()
        for model in models
        for variable in [*model.variables, *model.optimizer.variables]
    ]
    content = {"weights": weights, "histories": fits.histories, "trained": len(trained)}
    pathlib.Path(result).write_text(json.dumps(content))


if __name__ == "__main__":
    main(*sys.argv[1:])
