"""Trains two workers with callbacks that write files; in the first life worker 1 is told to leave.

Usage: on_chief.py DIRECTORY (first | second)

All workers are given the same callbacks.  The loss falls and the highest one counts as the best, so the best
epoch is the first, and only who forgets it saves again.  Writes ``<life>-<worker>.json``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from tf_preempt.strategies import MultiWorkerMirroredStrategy

strategy = MultiWorkerMirroredStrategy()
worker = strategy.cluster_resolver.task_id

import keras  # noqa: E402 (the strategy comes first)
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from tf_preempt.callbacks import OnChief, PreemptionCheckpoint  # noqa: E402
from tf_preempt.errors import Preempted  # noqa: E402

EPOCHS, ROWS, BATCH = 4, 24, 8


class Leave(keras.callbacks.Callback):
    """Tells this process in the second epoch that it has to go."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1:
            os.kill(os.getpid(), signal.SIGTERM)


def callbacks(directory: Path, life: str) -> list[Any]:
    best = keras.callbacks.ModelCheckpoint(
        str(directory / f"best-{worker}-{{epoch}}.weights.h5"),
        monitor="loss",
        mode="max",
        save_best_only=True,
        save_weights_only=True,
    )
    anew = keras.callbacks.CSVLogger(str(directory / f"anew-{worker}.csv"))
    bare = keras.callbacks.CSVLogger(str(directory / f"bare-{worker}.csv"), append=True)
    leave = [Leave()] if (life, worker) == ("first", 1) else [keras.callbacks.Callback()]
    ours = PreemptionCheckpoint(directory / "run", on_preemption="raise")
    return [OnChief(best), OnChief(anew), bare, *leave, ours]


def main(directory: Path, life: str) -> None:
    keras.utils.set_random_seed(1)
    x = np.random.default_rng(1).normal(size=(ROWS, 4)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(BATCH)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    given = callbacks(directory, life)
    preempted = False
    try:
        model.fit(data, epochs=EPOCHS, verbose=0, shuffle=False, callbacks=given)
    except Preempted:
        preempted = True
    found = {"preempted": preempted, "best": given[0].best, "losses": model.history.history.get("loss")}
    (directory / f"{life}-{worker}.json").write_text(json.dumps(found), "utf-8")


main(Path(sys.argv[1]), sys.argv[2])
