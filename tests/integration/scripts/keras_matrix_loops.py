"""Options of ``fit`` and ``compile`` that change the loop, and steps that users write themselves."""

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
    outcome,
    small_model,
)

ARRAYS = {"batch_size": BATCH, "shuffle": False}
SAMPLE_WEIGHT = np.linspace(0.1, 2.0, len(X), dtype=np.float32)


def _several_steps(setting: Setting, steps: int) -> Arrays:
    """Three batches per epoch with validation, then seven steps of an endless data set."""
    model = small_model(setting, steps_per_execution=steps)
    found = fitted(model, batches(X, Y), validation_data=batches(X_VAL, Y_VAL))
    endless = tf.data.Dataset.from_tensor_slices((X, Y)).repeat().batch(BATCH, drop_remainder=True)
    again = fitted(model, endless, epochs=1, steps_per_epoch=7)
    return found | {f"endless {key}": value for key, value in again.items()}


def steps_per_execution_1(setting: Setting) -> Arrays:
    return _several_steps(setting, 1)


def steps_per_execution_2(setting: Setting) -> Arrays:
    return _several_steps(setting, 2)


def steps_per_execution_4(setting: Setting) -> Arrays:
    return _several_steps(setting, 4)


def steps_per_execution_7(setting: Setting) -> Arrays:
    return _several_steps(setting, 7)


def validation_split(setting: Setting) -> Arrays:
    return fitted(small_model(setting), X, Y, validation_split=1 / 3, **ARRAYS)


def validation_data(setting: Setting) -> Arrays:
    """Arrays first, a data set then, with weights of its rows and a limit of its steps."""
    model = small_model(setting)
    found = fitted(model, X, Y, validation_data=(X_VAL, Y_VAL), **ARRAYS)
    weighted = batches(X_VAL, Y_VAL, SAMPLE_WEIGHT[: len(X_VAL)]).repeat()
    again = fitted(model, batches(X, Y), validation_data=weighted, validation_steps=2)
    return found | {f"again {key}": value for key, value in again.items()}


def validation_freq(setting: Setting) -> Arrays:
    data = batches(X_VAL, Y_VAL)
    return fitted(small_model(setting), batches(X, Y), epochs=3, validation_data=data, validation_freq=2)


def sample_weight(setting: Setting) -> Arrays:
    """Of arrays, and as the third part of a data set's elements."""
    model = small_model(setting, weighted_metrics=["mse"])
    found = fitted(model, X, Y, sample_weight=SAMPLE_WEIGHT, **ARRAYS)
    found |= evaluated(model, X, Y, sample_weight=SAMPLE_WEIGHT, batch_size=BATCH)
    again = fitted(model, batches(X, Y, SAMPLE_WEIGHT), epochs=1)
    return found | {f"again {key}": value for key, value in again.items()}


def class_weight(setting: Setting) -> Arrays:
    model = small_model(setting, loss="binary_crossentropy")
    return fitted(model, X, Y, class_weight={0: 0.5, 1: 2.0}, **ARRAYS)


def batch_methods(setting: Setting) -> Arrays:
    """train_on_batch, test_on_batch and predict_on_batch: every replica gets the whole batch."""
    model = small_model(setting)
    trained = [model.train_on_batch(X[:8], Y[:8], return_dict=True) for _ in range(2)]
    tested = model.test_on_batch(X_VAL[:8], Y_VAL[:8], return_dict=True)
    predicted = model.predict_on_batch(X_VAL[:8])
    found = outcome(model) | {"predict": np.tile(predicted, (2, 1)) if setting.is_alone else predicted}
    found |= {f"train {key}": [logs[key] for logs in trained] for key in trained[0]}
    return found | {f"test {key}": value for key, value in tested.items()}


class OwnSteps(keras.Model):
    """Writes train_step and test_step itself, with ``compute_loss`` and the metrics of ``compile``."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=predicted)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return self._log(loss, x, y, predicted)

    def test_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        predicted = self(x, training=False)
        return self._log(self.compute_loss(x=x, y=y, y_pred=predicted), x, y, predicted)

    def _log(self, loss: tf.Tensor, x: tf.Tensor, y: tf.Tensor, predicted: tf.Tensor) -> dict[str, Any]:
        """The loss is this replica's share of the batch's loss, hence the factor."""
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss * replicas, sample_weight=tf.shape(x)[0])
            else:
                metric.update_state(y, predicted)
        return {metric.name: metric.result() for metric in self.metrics}


def own_train_step(setting: Setting) -> Arrays:
    with setting.scope():
        sequence = keras.Sequential(layers())
        model = OwnSteps(sequence.inputs, sequence.outputs[0])
        model.compile("sgd", "mse", metrics=[keras.metrics.MeanAbsoluteError(name="mae")])
    return fitted(model, batches(X, Y), validation_data=batches(X_VAL, Y_VAL))


class OwnLoss(keras.Model):
    """Computes its loss itself: the sum over its rows, divided by the number of rows of the global batch."""

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        error = keras.ops.sum(keras.ops.square(y_pred - y), axis=-1)
        return keras.ops.sum(error) / BATCH


def own_compute_loss(setting: Setting) -> Arrays:
    with setting.scope():
        sequence = keras.Sequential(layers())
        model = OwnLoss(sequence.inputs, sequence.outputs[0])
        model.compile("sgd")
    return fitted(model, batches(X, Y), validation_data=batches(X_VAL, Y_VAL))


def run_eagerly(setting: Setting) -> Arrays:
    return fitted(small_model(setting, run_eagerly=True), batches(X, Y), epochs=1)


def repeated_fit(setting: Setting) -> Arrays:
    """`initial_epoch`, a second ``fit`` and a new ``compile`` of one model."""
    model = small_model(setting)
    model.fit(batches(X, Y), epochs=1, **QUIET)
    found = fitted(model, batches(X, Y), initial_epoch=1, epochs=2)
    with setting.strategy.scope():
        model.compile("adam", "mae")
    again = fitted(model, batches(X, Y), epochs=1)
    return found | {f"again {key}": value for key, value in again.items()}
