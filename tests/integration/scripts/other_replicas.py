"""Trains on two logical CPUs until notice, goes on with one, which is refused, and with two.

Arguments: a checkpoint directory, and a file for what became of each life.
"""

import json
import os
import pathlib
import signal
import sys

import keras
import numpy as np
import tensorflow as tf

import tf_preempt
from tf_preempt.errors import CheckpointMismatchError, Preempted

CPU = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(CPU, [tf.config.LogicalDeviceConfiguration()] * 2)
tf.config.experimental.enable_op_determinism()
X = np.arange(80, dtype="float32").reshape(20, 4) / 80


def life(replicas: int, *, told: bool) -> str:
    keras.utils.set_random_seed(1)
    strategy = tf_preempt.strategies.MirroredStrategy([f"cpu:{number}" for number in range(replicas)])
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=["mae"])

    def notice(batch: int, logs: object) -> None:
        if told and batch == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    callbacks = [
        keras.callbacks.LambdaCallback(on_train_batch_end=notice),
        tf_preempt.callbacks.PreemptionCheckpoint(sys.argv[1], save_every=None, on_preemption="raise"),
    ]
    data = tf_preempt.data.from_arrays(X, X.sum(axis=1), batch_size=4, seed=1)
    try:
        model.fit(data, epochs=2, verbose=0, callbacks=callbacks)
    except (Preempted, CheckpointMismatchError) as error:
        return f"{type(error).__name__}: {error}"
    return "finished"


lives = [life(2, told=True), life(1, told=False), life(2, told=False)]
pathlib.Path(sys.argv[2]).write_text(json.dumps(lives))
