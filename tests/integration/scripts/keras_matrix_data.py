"""Kinds of input: every one that ``fit``, ``evaluate`` and ``predict`` take."""

from __future__ import annotations

import math
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
    outcome,
    small_model,
)

WORDS = np.array(["red", "green", "blue", "red"] * 6)
DIGITS = np.arange(24, dtype=np.int64) * 7 % 3
IMAGES = np.arange(24 * 36, dtype=np.int64).reshape(24, 6, 6, 1).astype(np.uint8)
LENGTHS = [1, 3, 2, 5, 1, 1, 4, 2] * 3


def tf_data(setting: Setting) -> Arrays:
    """One order for all epochs: Keras creates one iterator more where there is a strategy."""
    data = tf.data.Dataset.from_tensor_slices((X, Y))
    data = data.shuffle(24, seed=3, reshuffle_each_iteration=False).batch(BATCH).prefetch(2)
    model = small_model(setting, "adam", loss="binary_crossentropy", metrics=["accuracy", "auc"])
    return fitted(model, data) | evaluated(model, data) | {"predict": model.predict(data, **QUIET)}


def numpy_arrays(setting: Setting) -> Arrays:
    model = small_model(setting)
    found = fitted(model, X, Y, batch_size=BATCH, shuffle=False)
    found |= evaluated(model, X_VAL, Y_VAL, batch_size=BATCH)
    return found | {"predict": model.predict(X_VAL, batch_size=BATCH, **QUIET)}


class Rows(keras.utils.PyDataset):
    """The training rows, batch by batch, as views of the arrays."""

    def __len__(self) -> int:
        return math.ceil(len(X) / BATCH)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        rows = slice(index * BATCH, (index + 1) * BATCH)
        return X[rows], Y[rows]


def py_dataset(setting: Setting) -> Arrays:
    model = small_model(setting)
    return fitted(model, Rows(), shuffle=False) | evaluated(model, Rows())


def generator(setting: Setting) -> Arrays:
    """One batch again and again: under a strategy, Keras takes some from the generator to learn shapes."""

    def rows() -> Any:
        while True:
            yield Rows()[0]

    return fitted(small_model(setting), rows(), steps_per_epoch=3)


def dict_inputs(setting: Setting) -> Arrays:
    features = {"left": X[:, :2], "right": X[:, 2:], "flag": X[:, :1] > 0}
    with setting.scope():
        inputs = {
            "left": keras.Input((2,), name="left"),
            "right": keras.Input((4,), name="right"),
            "flag": keras.Input((1,), dtype="bool", name="flag"),
        }
        flag = keras.ops.cast(inputs["flag"], "float32")
        joined = keras.layers.Concatenate()([inputs["left"], inputs["right"], flag])
        model = keras.Model(inputs, keras.layers.Dense(1)(joined))
        model.compile("sgd", "mse")
    found = fitted(model, batches(features, Y))
    found |= {f"array {key}": value for key, value in evaluated(model, features, Y, batch_size=BATCH).items()}
    return found | {"predict": model.predict(features, batch_size=BATCH, **QUIET)}


def string_lookup(setting: Setting) -> Arrays:
    """The vocabulary is adapted inside the scope, and strings travel through the strategy."""
    with setting.scope():
        lookup = keras.layers.StringLookup(output_mode="one_hot")
        lookup.adapt(WORDS)
        model = keras.Sequential([keras.Input((1,), dtype="string"), lookup, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    data = batches(WORDS[:, None], Y)
    return fitted(model, data) | {"predict": model.predict(data, **QUIET)}


def uint8_images(setting: Setting) -> Arrays:
    with setting.scope():
        model = keras.Sequential(
            [
                keras.Input((6, 6, 1), dtype="uint8"),
                keras.layers.Rescaling(1 / 255),
                keras.layers.Conv2D(2, 3, activation="relu"),
                keras.layers.Flatten(),
                keras.layers.Dense(3),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss, metrics=["accuracy"])
    return fitted(model, batches(IMAGES, DIGITS))


class TokenModel(keras.Model):
    """Built from its first batch; would not take the mean of integers, which is no integer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = self.add_weight(shape=(3, 4), initializer="glorot_uniform")
        self.head = keras.layers.Dense(1)

    def call(self, tokens: tf.Tensor) -> tf.Tensor:
        return self.head(tf.gather(self.table, tokens))


def integer_tokens(setting: Setting) -> Arrays:
    with setting.scope():
        model = TokenModel()
        model.compile("sgd", "mse")
    return fitted(model, batches(DIGITS, Y))


class RowMeans(keras.Model):
    """Takes rows of different length."""

    def __init__(self) -> None:
        super().__init__()
        self.head = keras.layers.Dense(1)

    def call(self, rows: tf.RaggedTensor) -> tf.Tensor:
        return self.head(tf.reduce_mean(rows, axis=1)[:, None])


def ragged_tensors(setting: Setting) -> Arrays:
    rows = tf.RaggedTensor.from_row_lengths(np.linspace(-1, 1, sum(LENGTHS), dtype=np.float32), LENGTHS)
    with setting.scope():
        model = RowMeans()
        model.compile("sgd", "mse")
    data = batches(rows, Y)
    return fitted(model, data) | {"predict": model.predict(data, **QUIET)}


def ragged_last_batch(setting: Setting) -> Arrays:
    """17 rows in batches of 8: at the end one replica has one row, the other none."""
    model = small_model(setting)
    found = fitted(model, batches(X[:17], Y[:17]), epochs=3) | evaluated(model, batches(X[:17], Y[:17]))
    return found | {"predict": model.predict(batches(X[:17]), **QUIET)}


def uneven_first_batch(setting: Setting) -> Arrays:
    """7 rows in one batch: 4 for one replica, 3 for the other, where Keras learns the shapes."""
    model = small_model(setting)
    return fitted(model, X[:7], Y[:7], batch_size=7) | evaluated(model, X[:7], Y[:7], batch_size=7)


def unknown_cardinality(setting: Setting) -> Arrays:
    data = tf.data.Dataset.from_tensor_slices((X, Y)).filter(lambda x, y: True).batch(BATCH)
    return fitted(small_model(setting), data)


def steps_per_epoch(setting: Setting) -> Arrays:
    """Two epochs of four steps over an endless data set of three batches."""
    data = tf.data.Dataset.from_tensor_slices((X, Y)).repeat().batch(BATCH, drop_remainder=True)
    return fitted(small_model(setting), data, steps_per_epoch=4)


def one_file(setting: Setting) -> Arrays:
    """AUTO with one file: TensorFlow alone fails on one of two workers and feeds zeros to the other."""
    path = setting.own_path("rows.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        for x, y in zip(X, Y, strict=True):
            writer.write(np.concatenate([x, y]).tobytes())

    def parse(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        row = tf.reshape(tf.io.decode_raw(record, tf.float32), [7])
        return row[:6], row[6:]

    return fitted(small_model(setting), tf.data.TFRecordDataset([path]).map(parse).batch(BATCH))


def predict_uneven_tails(setting: Setting) -> Arrays:
    model = small_model(setting)
    found = {}
    for rows in (1, 7, 17, 21):
        found[f"array of {rows}"] = model.predict(X[:rows], batch_size=BATCH, **QUIET)
        found[f"data set of {rows}"] = model.predict(batches(X[:rows]), **QUIET)
    return found


def distributed_before_fit(setting: Setting) -> Arrays:
    """A data set that the user has distributed, as custom loops do."""
    data = batches(X, Y)
    if not setting.is_alone:
        data = setting.strategy.experimental_distribute_dataset(data)
    model = small_model(setting)
    return outcome(model, model.fit(data, epochs=2, steps_per_epoch=3, **QUIET))
