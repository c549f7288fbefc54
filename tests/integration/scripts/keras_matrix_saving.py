"""Saving and loading whole models, weights and exports."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from tests.integration.scripts.keras_matrix_parts import (
    BATCH,
    QUIET,
    X_VAL,
    Arrays,
    Setting,
    X,
    Y,
    batches,
    fitted,
    outcome,
    small_model,
)


def _trained(setting: Setting) -> keras.Model:
    model = small_model(setting, "adam")
    model.fit(batches(X, Y), epochs=1, **QUIET)
    return model


def _built(setting: Setting) -> keras.Model:
    """A model whose optimizer has its variables, which else come with the first step."""
    model = small_model(setting, "adam")
    with setting.strategy.scope():
        model.optimizer.build(model.trainable_variables)
    return model


def save_and_load(setting: Setting) -> Arrays:
    """Each worker saves to a path of its own, loads inside the scope, and goes on training."""
    path = setting.own_path("model.keras")
    _trained(setting).save(path)
    with setting.scope():
        model = keras.models.load_model(path)
    return fitted(model, batches(X, Y), epochs=1)


def save_on_chief(setting: Setting) -> Arrays:
    """The chief alone saves, without the others' help, while they go on to train."""
    path = setting.common_path("chief.keras")
    model = _trained(setting)
    if setting.is_chief:
        model.save(path)
    found = fitted(model, batches(X, Y), epochs=1)
    with setting.scope():
        loaded = keras.models.load_model(path)
    return found | {f"loaded {key}": value for key, value in outcome(loaded).items()}


def load_without_strategy(setting: Setting) -> Arrays:
    """What was trained on replicas serves without them."""
    path = setting.own_path("served.keras")
    model = _trained(setting)
    model.save(path)
    loaded = keras.models.load_model(path)
    return {"predict": loaded.predict(X_VAL, batch_size=BATCH, **QUIET)}


def save_weights(setting: Setting) -> Arrays:
    path = setting.own_path("only.weights.h5")
    model = _trained(setting)
    model.save_weights(path)
    other = _built(setting)
    other.load_weights(path)
    return fitted(other, batches(X, Y), epochs=1)


def export(setting: Setting) -> Arrays:
    """A SavedModel of each worker, to a path of its own."""
    path = setting.own_path("exported")
    _trained(setting).export(path, **QUIET)
    served = tf.saved_model.load(path)
    return {"serve": np.array(served.serve(X_VAL))}


def tf_checkpoint(setting: Setting) -> Arrays:
    """``tf.train.Checkpoint`` of model and optimizer, restored into a new model."""
    model = _trained(setting)
    path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(setting.own_path("checkpoint"))
    other = _built(setting)
    restored = tf.train.Checkpoint(model=other, optimizer=other.optimizer).read(path)
    restored.assert_existing_objects_matched()
    return fitted(other, batches(X, Y), epochs=1)
