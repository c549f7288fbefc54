"""Programs that are trained undisturbed and interrupted, in this process, and compared bit by bit."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_preempt.callbacks import PreemptionCheckpoint
from tf_preempt.errors import Preempted

ROWS, BATCH = 20, 4
STEPS = ROWS // BATCH


def arrays() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.random((ROWS, 3), dtype="float32"), rng.random((ROWS, 1), dtype="float32")


def pipeline(*, seed: int = 3) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(arrays()).shuffle(ROWS, seed=seed).batch(BATCH).prefetch(2)


def dense_model(optimizer: Any = "adam", **compile_arguments: Any) -> keras.Model:
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    model.compile(optimizer, "mse", **compile_arguments)
    return model


class Reported(logging.Handler):
    """Hears the log line that tells that a round was opened, and at which boundary this worker is."""

    def __init__(self) -> None:
        super().__init__()
        self.heard = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("The workers agree where to save (SIGTERM)"):
            self.heard.set()


def give_notice() -> None:
    """Sends this process a SIGTERM; returns when the next boundary is the last."""
    reported, log = Reported(), logging.getLogger("tf_preempt")
    level = log.level
    log.addHandler(reported)
    log.setLevel(logging.INFO)
    os.kill(os.getpid(), signal.SIGTERM)
    assert reported.heard.wait(30)
    log.setLevel(level)
    log.removeHandler(reported)


class Interrupt(keras.callbacks.Callback):
    """Sends this process a SIGTERM at the end of a training batch, so that the next boundary is the last.

    Args:
        epoch: in this epoch.
        batch: after this batch.
    """

    def __init__(self, epoch: int, batch: int) -> None:
        super().__init__()
        self._at = (epoch, batch)
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if (self._epoch, batch) == self._at:
            give_notice()

    def get_state(self) -> list[int]:
        return list(self._at)

    def set_state(self, state: list[int]) -> None:
        """Where to interrupt is given by the program."""


def fit_pipeline() -> dict[str, Any]:
    return {"x": pipeline(), "validation_data": pipeline(seed=4)}


@dataclasses.dataclass(kw_only=True)
class Program:
    """A training program; each run of it makes everything anew.

    Args:
        build: makes and compiles the model.
        data: makes the data arguments of `fit`.
        callbacks: makes the callbacks, our own among them.
        epochs: for `fit`.
        more: other arguments of `fit`.
    """

    build: Callable[[], keras.Model] = dense_model
    data: Callable[[], dict[str, Any]] = fit_pipeline
    callbacks: Callable[[PreemptionCheckpoint], list[Any]] = lambda ours: [ours]
    epochs: int = 3
    more: dict[str, Any] = dataclasses.field(default_factory=dict)

    def run(self, directory: Path, *, interrupt: Interrupt | None = None) -> Trained | None:
        """Runs the program; None if it was preempted."""
        keras.backend.clear_session()
        keras.utils.set_random_seed(1)
        model = self.build()
        ours = PreemptionCheckpoint(directory, save_every=None, on_preemption="raise")
        callbacks = [*self.callbacks(ours), *([interrupt] if interrupt else [])]
        arguments = {"epochs": self.epochs, "verbose": 0, "shuffle": False, **self.more, **self.data()}
        try:
            model.fit(callbacks=callbacks, **arguments)
        except Preempted:
            return None
        return Trained(model=model)

    def run_interrupted(self, directory: Path, *, epoch: int = 1, batch: int = 2) -> Trained:
        """Runs it, interrupted in its first life."""
        assert self.run(directory, interrupt=Interrupt(epoch, batch)) is None
        resumed = self.run(directory)
        assert resumed is not None
        return resumed


class Trained:
    """What a program that ran to its end left."""

    def __init__(self, *, model: keras.Model) -> None:
        optimizer = model.optimizer
        self.model = model
        self.history = model.history.history
        self.epochs = model.history.epoch
        self.variables = [
            (variable.path, variable.numpy())
            for variable in [*model.variables, *(optimizer.variables if optimizer else [])]
        ]


def assert_identical(found: Trained | None, expected: Trained | None) -> None:
    assert found is not None
    assert expected is not None
    assert (found.epochs, found.history) == (expected.epochs, expected.history)
    assert len(found.variables) == len(expected.variables)
    for (path, value), (_, wanted) in zip(found.variables, expected.variables, strict=True):
        assert value.tobytes() == wanted.tobytes(), path


def newest_manifest(directory: Path) -> dict[str, Any]:
    manifests = [json.loads(path.read_text()) for path in directory.glob("*.manifest.json")]
    newest: dict[str, Any] = max(manifests, key=lambda one: one["number"])
    return newest


def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgets which trainings this process has finished, as a new process has."""
    monkeypatch.setattr("tf_preempt.callbacks.preemption_checkpoint._finished_fits", {})
