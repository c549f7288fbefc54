"""Trains on views of arrays that the program keeps, and writes what is then in the arrays.

Usage: kept_arrays.py DIRECTORY

On two devices of one process, or on the workers of ``TF_CONFIG``.  Writes ``<replicas | worker-i>.json``: for
each way to give the views, how many numbers of the arrays have changed, and the losses.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import tensorflow as tf

if "TF_CONFIG" in os.environ:
    from tf_preempt.strategies import MultiWorkerMirroredStrategy

    strategy: tf.distribute.Strategy = MultiWorkerMirroredStrategy()
    name = f"worker-{strategy.cluster_resolver.task_id}"
else:
    from tf_preempt.strategies import MirroredStrategy

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy, name = MirroredStrategy(["CPU:0", "CPU:1"]), "replicas"

import keras
import numpy as np

from tests.strategies.aligned import aligned

BATCH, STEPS = 32, 3
_RNG = np.random.default_rng(0)
FEATURES = _RNG.normal(size=(BATCH * STEPS, 16)).astype("float32")
TARGETS = FEATURES[:, :1] * 2
SIGNATURE = (tf.TensorSpec((None, 16)), tf.TensorSpec((None, 1)))

Views = Any  # a function that gives a batch of views


class Batches(keras.utils.PyDataset):
    def __init__(self, views: Views) -> None:
        super().__init__()
        self._views = views

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> Any:
        return self._views(index)


def from_generator(views: Views) -> tf.data.Dataset:
    return tf.data.Dataset.from_generator(lambda: map(views, range(STEPS)), output_signature=SIGNATURE)


def numpy_function(views: Views) -> tf.data.Dataset:
    def batch(index: tf.Tensor) -> Any:
        x, y = tf.numpy_function(views, [index], (tf.float32, tf.float32))
        return tf.ensure_shape(x, (None, 16)), tf.ensure_shape(y, (None, 1))

    return tf.data.Dataset.range(STEPS).map(batch)


def trained(make: Any) -> dict[str, Any]:
    x, y = aligned(FEATURES), aligned(TARGETS)

    def views(index: int) -> Any:
        rows = slice(index * BATCH, (index + 1) * BATCH)
        return x[rows], y[rows]

    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    losses = model.fit(make(views), epochs=3, shuffle=False, verbose=0).history["loss"]
    return {"changed": int((x != FEATURES).sum() + (y != TARGETS).sum()), "losses": losses}


found = {one.__name__: trained(one) for one in (Batches, from_generator, numpy_function)}
Path(sys.argv[1], f"{name}.json").write_text(json.dumps(found), "utf-8")
