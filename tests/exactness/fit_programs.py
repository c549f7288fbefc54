"""The programs of the matrix that train with `fit`: each is made of a kind of data and arguments of `fit`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.exactness.lives import Life, Program, all_variables

BATCH = 8
TRAIN_ROWS, VALIDATION_ROWS = 4 * BATCH, 2 * BATCH


def arrays(rows: int = TRAIN_ROWS) -> tuple[np.ndarray, np.ndarray]:
    """Features, and targets that tell each row from the others."""
    features = np.random.default_rng(0).random((rows, 3), dtype="float32")
    return features, np.arange(rows, dtype="float32")[:, None] / rows


@keras.saving.register_keras_serializable(package="exactness")
class Order(keras.metrics.Metric):
    """A number that depends on which rows came in which order."""

    def __init__(self, name: str = "order") -> None:
        super().__init__(name=name)
        self.digest = self.add_weight(name="digest", initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        rows = tf.reshape(tf.cast(y_true, tf.float32), [-1])
        place = tf.range(1, tf.size(rows) + 1, dtype=tf.float32)
        self.digest.assign(0.5 * self.digest + tf.reduce_sum(rows * place))

    def result(self) -> Any:
        return tf.identity(self.digest.value)


def model(life: Life, *, name: str = "model", **compile_arguments: Any) -> keras.Model:
    """Dropout and momentum: what a weights-only checkpoint forgets."""
    with life.scope():
        made = keras.Sequential(
            [
                keras.layers.Input((3,)),
                keras.layers.Dense(4, "relu"),
                keras.layers.Dropout(0.5),
                keras.layers.Dense(1),
            ],
            name=name,
        )
        made.compile(
            **{
                "optimizer": optimizer(life),
                "loss": "mse",
                "metrics": ["mae", Order()],
                **compile_arguments,
            }
        )
    return made


def optimizer(life: Life) -> keras.optimizers.Optimizer:
    """Adam; where a process has several replicas one that does not use its count of steps.

    Keras counts the step that finds no more data on some of them only (docs/exactness.md), and Adam's weights
    of the next epoch follow from that: seen on a loaded machine.
    """
    with life.scope():
        if isinstance(life.strategy, tf.distribute.MirroredStrategy):
            return keras.optimizers.SGD(0.05, momentum=0.9)
        return keras.optimizers.Adam(0.05)


def rows(count: int = TRAIN_ROWS, *, seed: int = 3) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(arrays(count)).shuffle(count, seed=seed)


def ordered_once(count: int) -> tf.data.Dataset:
    data = tf.data.Dataset.from_tensor_slices(arrays(count))
    return data.shuffle(count, seed=4, reshuffle_each_iteration=False)


def pipeline(count: int = TRAIN_ROWS, *, seed: int = 3) -> tf.data.Dataset:
    return rows(count, seed=seed).batch(BATCH).prefetch(2)


def validation() -> tf.data.Dataset:
    return pipeline(VALIDATION_ROWS, seed=4)


def of_unknown_length(data: tf.data.Dataset) -> tf.data.Dataset:
    return data.filter(lambda *_: True)


class Sequence(keras.utils.PyDataset):
    """Batches from Python, by index."""

    def __init__(self) -> None:
        super().__init__()
        self._arrays = arrays()

    def __len__(self) -> int:
        return TRAIN_ROWS // BATCH

    def __getitem__(self, index: int) -> Any:
        return tuple(array[index * BATCH : (index + 1) * BATCH] for array in self._arrays)


def generated() -> tf.data.Dataset:
    """Batches from a Python generator, whose place no checkpoint reaches."""
    features, targets = arrays()
    signature = tuple(tf.TensorSpec((None, size), tf.float32) for size in (3, 1))

    def batches() -> Any:
        for begin in range(0, TRAIN_ROWS, BATCH):
            yield features[begin : begin + BATCH], targets[begin : begin + BATCH]

    return tf.data.Dataset.from_generator(batches, output_signature=signature)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fit:
    """A program with one `fit`.

    Args:
        data: makes the arguments of `fit` that are data.
        more: its other arguments.
        compiled: arguments of `compile`.
    """

    data: Callable[[], dict[str, Any]] = lambda: {"x": pipeline(), "validation_data": validation()}
    more: dict[str, Any] = dataclasses.field(default_factory=dict)
    compiled: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __call__(self, life: Life) -> list[Any]:
        made = model(life, **self.compiled)
        life.fit(made, **self.data(), **self.more)
        return all_variables(made)


def unknown() -> dict[str, Any]:
    return {"x": of_unknown_length(pipeline()), "validation_data": of_unknown_length(validation())}


def repeated() -> dict[str, Any]:
    return {"x": rows().repeat().batch(BATCH).prefetch(2), "validation_data": validation()}


def plain_arrays() -> dict[str, Any]:
    x, y = arrays()
    return {"x": x, "y": y, "batch_size": BATCH}


STEPS = {"steps_per_epoch": 3}
TWO, THREE = {"steps_per_execution": 2}, {"steps_per_execution": 3}

FITS: dict[str, Program] = {
    "known length": Fit(),
    "unknown length": Fit(data=unknown),
    "no validation": Fit(data=lambda: {"x": pipeline()}),
    "unknown length, no validation": Fit(data=lambda: {"x": of_unknown_length(pipeline())}),
    "repeat, steps_per_epoch": Fit(data=repeated, more=STEPS),
    "known length, fewer steps_per_epoch": Fit(more={**STEPS, "epochs": 4}),
    "unknown length, fewer steps_per_epoch": Fit(data=unknown, more={**STEPS, "epochs": 4}),
    "known length, more steps_per_epoch": Fit(more={"steps_per_epoch": 6}),
    "unknown length, more steps_per_epoch": Fit(data=unknown, more={"steps_per_epoch": 6}),
    "2 steps_per_execution": Fit(compiled=TWO),
    "3 steps_per_execution": Fit(compiled=THREE),
    "3 steps_per_execution, unknown length": Fit(data=unknown, compiled=THREE),
    "2 steps_per_execution, repeat, steps_per_epoch": Fit(data=repeated, more=STEPS, compiled=TWO),
    "initial_epoch": Fit(more={"initial_epoch": 1, "epochs": 3}),
    "validation_freq": Fit(more={"validation_freq": 2, "epochs": 3}),
    "validation_freq as a list": Fit(more={"validation_freq": [2], "epochs": 3}),
    "validation_steps": Fit(more={"validation_steps": 1}),
    "validation_steps of repeat": Fit(
        data=lambda: {
            "x": pipeline(),
            # A shuffle that orders each pass anew makes the undisturbed run itself differ from time to time:
            # a validation leaves it in the midst of a pass, with the next one begun in advance or not.
            "validation_data": ordered_once(VALIDATION_ROWS).repeat().batch(BATCH),
            "validation_steps": 3,
        }
    ),
    "arrays": Fit(data=plain_arrays),
    "arrays, validation_split": Fit(data=plain_arrays, more={"validation_split": 0.25}),
    "arrays, validation_data": Fit(
        data=lambda: {**plain_arrays(), "validation_data": arrays(VALIDATION_ROWS)}
    ),
    "PyDataset": Fit(data=lambda: {"x": Sequence()}),
    "Python generator": Fit(data=lambda: {"x": generated()}),
}
