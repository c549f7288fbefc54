"""Kinds of models and layers."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.integration.scripts.keras_matrix_parts import (
    BATCH,
    QUIET,
    X_VAL,
    Y_VAL,
    Arrays,
    Setting,
    X,
    Y,
    batches,
    evaluated,
    fitted,
    layers,
)


def multi_output(setting: Setting) -> Arrays:
    """Two outputs by name, each with its loss, its weight and its metric."""
    targets = {"sign": Y, "size": np.abs(X[:, :2])}
    with setting.scope():
        inputs = keras.Input((6,))
        hidden = keras.layers.Dense(4, "tanh")(inputs)
        sign = keras.layers.Dense(1, "sigmoid", name="sign")(hidden)
        size = keras.layers.Dense(2, name="size")(hidden)
        model = keras.Model(inputs, {"sign": sign, "size": size})
        model.compile(
            "sgd",
            loss={"sign": "binary_crossentropy", "size": "mse"},
            loss_weights={"sign": 0.7, "size": 2.0},
            metrics={"sign": ["accuracy"], "size": ["mae"]},
        )
    data = batches(X, targets)
    predicted = model.predict(X_VAL, batch_size=BATCH, **QUIET)
    found = fitted(model, data) | evaluated(model, data)
    return found | {f"predict {name}": rows for name, rows in predicted.items()}


class ActivityLayer(keras.layers.Layer):
    """Adds a penalty on its input."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(inputs)))
        return inputs


def regularizers(setting: Setting) -> Arrays:
    """Penalties on weights, on an activity, and through ``add_loss``."""
    with setting.scope():
        regular = keras.layers.Dense(4, kernel_regularizer="l2", activity_regularizer="l1")
        model = keras.Sequential([keras.Input((6,)), regular, ActivityLayer(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    return fitted(model, batches(X, Y)) | evaluated(model, batches(X, Y))


def _normalized(setting: Setting, **options: Any) -> keras.Model:
    with setting.scope():
        normalization = keras.layers.BatchNormalization(momentum=0.5, name="normalization", **options)
        model = keras.Sequential([keras.Input((6,)), normalization, keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def sync_batch_normalization(setting: Setting) -> Arrays:
    """Statistics of the global batch, as one process has them."""
    model = _normalized(setting, synchronized=not setting.is_alone)
    return fitted(model, batches(X, Y)) | evaluated(model, batches(X_VAL, Y_VAL))


def batch_normalization(setting: Setting) -> Arrays:
    """Each replica takes the statistics of its rows, and keeps moving ones of its own.

    Alone, NumPy computes what two replicas of four rows come to.
    """
    if setting.is_alone:
        means, variances = np.zeros((2, 6)), np.ones((2, 6))
        for batch in X.reshape(3, 2, 4, 6):
            means = 0.5 * means + 0.5 * batch.mean(axis=1)
            variances = 0.5 * variances + 0.5 * batch.var(axis=1)
        return {"moving means": means, "moving variances": variances}
    model = _normalized(setting)
    model.fit(batches(X, Y), epochs=1, **QUIET)
    layer = model.get_layer("normalization")
    return {
        "moving means": _of_all_replicas(setting, layer.moving_mean),
        "moving variances": _of_all_replicas(setting, layer.moving_variance),
    }


def _of_all_replicas(setting: Setting, variable: keras.Variable) -> np.ndarray:
    """One row per replica."""
    values = setting.strategy.run(tf.function(lambda: tf.convert_to_tensor(variable.value)[None]))
    return setting.strategy.gather(values, axis=0).numpy()


def unit_normalizations(setting: Setting) -> Arrays:
    """Layers that normalize each row by itself, and a Normalization whose statistics were adapted."""
    with setting.scope():
        adapted = keras.layers.Normalization()
        adapted.adapt(X)
        model = keras.Sequential(
            [keras.Input((6,)), adapted, keras.layers.LayerNormalization(), *layers()[1:]]
        )
        model.compile("sgd", "mse")
    return fitted(model, batches(X, Y))


def recurrent(setting: Setting) -> Arrays:
    """A GRU over an embedding: loops inside the step, on each replica."""
    tokens = (np.abs(X[:, :4]) * 5).astype(np.int64) % 7
    with setting.scope():
        model = keras.Sequential(
            [keras.Input((4,), dtype="int64"), keras.layers.Embedding(7, 3), keras.layers.GRU(3)]
        )
        model.add(keras.layers.Dense(1))
        model.compile("adam", "mse")
    return fitted(model, batches(tokens, Y), epochs=1)


def dropout(setting: Setting) -> Arrays:
    """Every replica draws the same mask for its own rows; alone, a mask of half the rows is repeated."""
    with setting.scope():
        layer = keras.layers.Dropout(0.5, seed=3)
    rows = np.ones((BATCH, 12), np.float32)
    if setting.is_alone:
        return {"dropped": np.tile(layer(rows[: BATCH // 2], training=True), (2, 1))}

    @tf.function
    def step(batch: tf.Tensor) -> tf.Tensor:
        return setting.strategy.run(lambda part: layer(part, training=True), args=(batch,))

    data = iter(setting.strategy.experimental_distribute_dataset(batches(rows)))
    return {"dropped": setting.strategy.gather(step(next(data)), axis=0).numpy()}
