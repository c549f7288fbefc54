"""Keras's callbacks: decisions that all workers take alike, and files."""

from __future__ import annotations

import csv
import dataclasses
import os
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.integration.scripts.keras_matrix_parts import (
    X_VAL,
    Y_VAL,
    Arrays,
    Setting,
    X,
    Y,
    batches,
    fitted,
    outcome,
    small_model,
)
from tf_preempt.callbacks import OnChief


def learning_rate_scheduler(setting: Setting) -> Arrays:
    scheduler = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)
    return fitted(small_model(setting), batches(X, Y), epochs=3, callbacks=[scheduler])


def early_stopping(setting: Setting) -> Arrays:
    """The validation's targets are turned round: training makes it worse from the first epoch."""
    stopping = keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True)
    wrong = batches(X, 1 - Y)
    found = fitted(small_model(setting), batches(X, Y), epochs=6, validation_data=wrong, callbacks=[stopping])
    return found | {"stopped": stopping.stopped_epoch, "best": stopping.best_epoch}


def reduce_lr_on_plateau(setting: Setting) -> Arrays:
    reducing = keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1)
    wrong = batches(X, 1 - Y)
    model = small_model(setting)
    found = fitted(model, batches(X, Y), epochs=4, validation_data=wrong, callbacks=[reducing])
    return found | {"rate": model.optimizer.learning_rate.numpy()}


def lambda_callback(setting: Setting) -> Arrays:
    """The logs of every batch, and who is called how often."""
    seen: list[float] = []
    called = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(logs["loss"]),
        on_epoch_end=lambda epoch, logs: seen.append(logs["val_loss"]),
    )
    data = batches(X_VAL, Y_VAL)
    fitted(small_model(setting), batches(X, Y), validation_data=data, callbacks=[called])
    return {"seen": seen}


def _paths(setting: Setting, name: str) -> tuple[str, str]:
    """A path of this worker's own, so that it is seen who writes, and that of the chief."""
    return setting.own_path(name), dataclasses.replace(setting, worker=0).own_path(name)


def _who_wrote(setting: Setting, path: str) -> Arrays:
    """Waits for all; whether this worker has written to its path, if it is the chief, and not else."""
    _wait_for_all(setting)
    return {"chief alone wrote": os.path.exists(path) == setting.is_chief}


def model_checkpoint(setting: Setting) -> Arrays:
    """The chief alone writes; all workers read the best weights afterwards."""
    path, of_chief = _paths(setting, "best.weights.h5")
    saving = keras.callbacks.ModelCheckpoint(path, "loss", save_best_only=True, save_weights_only=True)
    model = small_model(setting)
    found = fitted(model, batches(X, Y), callbacks=[OnChief(saving)])
    found |= _who_wrote(setting, path)
    model.load_weights(of_chief)
    return found | {f"best {key}": value for key, value in outcome(model).items()}


def csv_logger(setting: Setting) -> Arrays:
    path, of_chief = _paths(setting, "log.csv")
    fitted(small_model(setting), batches(X, Y), callbacks=[OnChief(keras.callbacks.CSVLogger(path))])
    found = _who_wrote(setting, path)
    with open(of_chief) as file:
        rows = list(csv.DictReader(file))
    return found | {key: [float(row[key]) for row in rows] for key in ("epoch", "loss", "mae")}


def tensorboard(setting: Setting) -> Arrays:
    """With histograms, and a line per step: the chief reads weights while the others go on."""
    path, of_chief = _paths(setting, "board")
    board = keras.callbacks.TensorBoard(path, histogram_freq=1, update_freq=1, write_graph=False)
    found = fitted(small_model(setting), batches(X, Y), callbacks=[OnChief(board)])
    found |= _who_wrote(setting, path)
    return found | {"epoch losses": _scalars(os.path.join(of_chief, "train"), "epoch_loss")}


def _scalars(directory: str, tag: str) -> np.ndarray:
    """Values of one tag in TensorBoard's files."""
    values: list[Any] = []
    for name in sorted(os.listdir(directory)):
        for record in tf.data.TFRecordDataset(os.path.join(directory, name)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            values += [tf.make_ndarray(one.tensor) for one in event.summary.value if one.tag == tag]
    return np.array(values)


def _wait_for_all(setting: Setting) -> None:
    """A barrier: no worker is past it before all have come to it."""
    if not setting.is_alone:
        setting.strategy.reduce("SUM", setting.strategy.run(lambda: tf.constant(1.0)), axis=None)
