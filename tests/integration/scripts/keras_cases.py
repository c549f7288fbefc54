"""Trains the same small models alone or, with ``TF_CONFIG``, as one of several workers.

Usage: keras_cases.py DIRECTORY.  Writes ``alone.npz`` or ``worker-<index>.npz``: arrays ``<case>/<name>``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tf_preempt.strategies import MultiWorkerMirroredStrategy

Arrays = dict[str, np.ndarray]

STRATEGY = MultiWorkerMirroredStrategy() if os.environ.get("TF_CONFIG") else tf.distribute.get_strategy()

import keras  # noqa: E402  (creates tensors in some versions: the strategy must come first)

RNG = np.random.default_rng(11)
X = RNG.normal(size=(48, 6)).astype(np.float32)
Y = (X[:, :1] + 0.3 * X[:, 1:2] > 0).astype(np.float32)
X_VAL, Y_VAL = X[32:], Y[32:]
X_TRAIN, Y_TRAIN = X[:32], Y[:32]
IMAGES = RNG.integers(0, 256, size=(24, 6, 6, 1), dtype=np.uint8)
DIGITS = RNG.integers(0, 3, size=(24,), dtype=np.int64)
WORDS = np.array(["red", "green", "blue", "red"] * 6)
BATCH = 8


def classifier(optimizer: str = "sgd") -> keras.Model:
    keras.utils.set_random_seed(5)
    with STRATEGY.scope():
        model = keras.Sequential(
            [keras.Input((6,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1, "sigmoid")]
        )
        model.compile(optimizer, "binary_crossentropy", metrics=["accuracy", keras.metrics.AUC(name="auc")])
    return model


def outcome(model: keras.Model, history: keras.callbacks.History | None = None) -> Arrays:
    found = {f"weight {index}": weight for index, weight in enumerate(model.get_weights())}
    logs = history.history if history is not None else {}
    return found | {f"history {key}": np.array(values) for key, values in logs.items()}


def tf_data() -> Arrays:
    """One order for all epochs: Keras creates one iterator more where there is a strategy."""
    data = tf.data.Dataset.from_tensor_slices((X_TRAIN, Y_TRAIN))
    data = data.shuffle(32, seed=3, reshuffle_each_iteration=False).batch(BATCH).prefetch(2)
    model = classifier("adam")
    found = outcome(model, model.fit(data, epochs=3, verbose=0))
    return found | {"evaluate": np.array(model.evaluate(data, verbose=0))}


def drop_remainder_and_steps() -> Arrays:
    data = tf.data.Dataset.from_tensor_slices((X, Y)).repeat().batch(BATCH, drop_remainder=True)
    model = classifier()
    return outcome(model, model.fit(data, epochs=2, steps_per_epoch=5, verbose=0))


def unknown_cardinality() -> Arrays:
    data = tf.data.Dataset.from_tensor_slices((X_TRAIN, Y_TRAIN)).filter(lambda x, y: True).batch(BATCH)
    model = classifier()
    return outcome(model, model.fit(data, epochs=2, verbose=0))


def numpy_arrays() -> Arrays:
    model = classifier()
    found = outcome(model, model.fit(X_TRAIN, Y_TRAIN, batch_size=BATCH, epochs=2, shuffle=False, verbose=0))
    loss = model.evaluate(X_VAL, Y_VAL, batch_size=BATCH, verbose=0)
    return found | {"evaluate": np.array(loss), "predict": model.predict(X_VAL, batch_size=BATCH, verbose=0)}


def validation_arrays() -> Arrays:
    model = classifier()
    arguments = {"batch_size": BATCH, "epochs": 2, "shuffle": False, "verbose": 0}
    return outcome(model, model.fit(X_TRAIN, Y_TRAIN, validation_data=(X_VAL, Y_VAL), **arguments))


def validation_data_set() -> Arrays:
    train = tf.data.Dataset.from_tensor_slices((X_TRAIN, Y_TRAIN)).batch(BATCH)
    val = tf.data.Dataset.from_tensor_slices((X_VAL, Y_VAL)).batch(BATCH)
    model = classifier()
    return outcome(model, model.fit(train, validation_data=val, epochs=2, verbose=0))


def uint8_images() -> Arrays:
    data = tf.data.Dataset.from_tensor_slices((IMAGES, DIGITS)).batch(BATCH)
    keras.utils.set_random_seed(5)
    with STRATEGY.scope():
        model = keras.Sequential(
            [
                keras.Input((6, 6, 1), dtype="uint8"),
                keras.layers.Rescaling(1 / 255),
                keras.layers.Conv2D(4, 3, activation="relu"),
                keras.layers.Flatten(),
                keras.layers.Dense(3),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss, metrics=["accuracy"])
    return outcome(model, model.fit(data, epochs=2, verbose=0)) | {"predict": model.predict(data, verbose=0)}


def strings_and_numbers() -> Arrays:
    features = {"word": WORDS[:, None], "number": X[:24], "flag": X[:24, :1] > 0}
    data = tf.data.Dataset.from_tensor_slices((features, Y[:24])).batch(BATCH)
    keras.utils.set_random_seed(5)
    with STRATEGY.scope():
        word = keras.Input((1,), dtype="string", name="word")
        number = keras.Input((6,), name="number")
        flag = keras.Input((1,), dtype="bool", name="flag")
        one_hot = keras.layers.StringLookup(vocabulary=["red", "green", "blue"], output_mode="one_hot")(word)
        as_number = keras.layers.Lambda(lambda x: keras.ops.cast(x, "float32"))(flag)
        output = keras.layers.Dense(1)(keras.layers.Concatenate()([one_hot, number, as_number]))
        model = keras.Model({"word": word, "number": number, "flag": flag}, output)
        model.compile("sgd", "mse")
    return outcome(model, model.fit(data, epochs=2, verbose=0))


class TokenModel(keras.Model):
    """Built from its first batch; would not take the mean of integers, which is no integer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = self.add_weight(shape=(3, 4), initializer="glorot_uniform")
        self.head = keras.layers.Dense(1)

    def call(self, tokens: tf.Tensor) -> tf.Tensor:
        return self.head(tf.gather(self.table, tokens))


def integer_tokens() -> Arrays:
    data = tf.data.Dataset.from_tensor_slices((DIGITS, Y[:24])).batch(BATCH)
    keras.utils.set_random_seed(5)
    with STRATEGY.scope():
        model = TokenModel()
        model.compile("sgd", "mse")
    return outcome(model, model.fit(data, epochs=2, verbose=0))


def predict_with_uneven_tails() -> Arrays:
    model = classifier()
    found = {}
    for rows in (1, 7, 17, 21):
        data = tf.data.Dataset.from_tensor_slices(X[:rows]).batch(BATCH)
        found[f"array of {rows}"] = model.predict(X[:rows], batch_size=BATCH, verbose=0)
        found[f"data set of {rows}"] = model.predict(data, verbose=0)
    return found


def uneven_first_batch() -> Arrays:
    """Keras weighs parts of different size wrongly in the loss; metrics that count rows are right."""
    model = classifier()
    logs = model.evaluate(X[:7], Y[:7], batch_size=7, verbose=0, return_dict=True)
    model.fit(X[:7], Y[:7], batch_size=7, epochs=2, verbose=0)
    return {
        "accuracy": np.array(logs["accuracy"]),
        "auc": np.array(logs["auc"]),
        "steps": model.optimizer.iterations.numpy(),
    }


def one_file() -> Arrays:
    """AUTO with one file: TensorFlow alone fails on one of two workers and feeds zeros to the other."""
    path = os.path.join(sys.argv[1], f"one-file-{os.getpid()}.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        for x, y in zip(X_TRAIN, Y_TRAIN, strict=True):
            writer.write(np.concatenate([x, y]).tobytes())

    def parse(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        row = tf.reshape(tf.io.decode_raw(record, tf.float32), [7])
        return row[:6], row[6:]

    data = tf.data.TFRecordDataset([path]).map(parse).batch(BATCH)
    model = classifier()
    return outcome(model, model.fit(data, epochs=2, verbose=0))


CASES: list[Callable[[], Arrays]] = [
    tf_data,
    drop_remainder_and_steps,
    unknown_cardinality,
    numpy_arrays,
    validation_arrays,
    validation_data_set,
    uint8_images,
    strings_and_numbers,
    integer_tokens,
    predict_with_uneven_tails,
    uneven_first_batch,
    one_file,
]


def main() -> None:
    results: Arrays = {}
    for case in CASES:
        print("case", case.__name__, flush=True)
        results |= {f"{case.__name__}/{name}": value for name, value in case().items()}
    in_cluster = isinstance(STRATEGY, MultiWorkerMirroredStrategy)
    name = f"worker-{STRATEGY.cluster_resolver.task_id}.npz" if in_cluster else "alone.npz"
    np.savez(os.path.join(sys.argv[1], name), **results)


if __name__ == "__main__":
    main()
