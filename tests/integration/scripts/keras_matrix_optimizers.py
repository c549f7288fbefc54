"""Optimizers, and what they do with gradients: clip, scale, gather, average."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from tests.integration.scripts.keras_matrix_parts import (
    QUIET,
    Arrays,
    Setting,
    X,
    Y,
    batches,
    fitted,
    outcome,
    policy_model,
    small_model,
)


def mixed_bfloat16(setting: Setting) -> Arrays:
    return fitted(policy_model(setting, "mixed_bfloat16", "sgd"), batches(X, Y))


def mixed_float16(setting: Setting) -> Arrays:
    """The loss is scaled, and the scale grows at every second step."""
    with setting.scope():
        optimizer = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(), initial_scale=256.0, dynamic_growth_steps=2
        )
    model = policy_model(setting, "mixed_float16", optimizer)
    return fitted(model, batches(X, Y)) | {"scale": optimizer.dynamic_scale.numpy()}


def gradient_accumulation(setting: Setting) -> Arrays:
    def make() -> keras.optimizers.Optimizer:
        return keras.optimizers.Adam(0.01, gradient_accumulation_steps=2)

    return fitted(small_model(setting, make), batches(X, Y))


def moving_average(setting: Setting) -> Arrays:
    """Weights are replaced by their moving average at every second step and at the end."""

    def make() -> keras.optimizers.Optimizer:
        return keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=2)

    return fitted(small_model(setting, make), batches(X, Y))


def clipped_gradients(setting: Setting) -> Arrays:
    """Keras clips on each replica, before the gradients are added; alone, the same is done by hand."""

    def make() -> keras.optimizers.Optimizer:
        return keras.optimizers.SGD(1.0, momentum=0.9, global_clipnorm=None if setting.is_alone else 0.05)

    model = small_model(setting, make)
    if not setting.is_alone:
        model.fit(batches(X, Y), epochs=1, **QUIET)
        return outcome(model)
    for x, y in zip(X.reshape(3, 2, 4, 6), Y.reshape(3, 2, 4, 1), strict=True):
        halves = [_clipped(model, *half) for half in zip(x, y, strict=True)]
        model.optimizer.apply([sum(pair) for pair in zip(*halves, strict=True)], model.trainable_variables)
    return outcome(model)


def _clipped(model: keras.Model, x: np.ndarray, y: np.ndarray) -> list[tf.Tensor]:
    """Gradients of one replica's part of the loss, clipped to their common norm."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x) - y)) / 2
    gradients = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
    return tf.clip_by_global_norm(gradients, 0.05)[0]


def schedule(setting: Setting) -> Arrays:
    def make() -> keras.optimizers.Optimizer:
        rate = keras.optimizers.schedules.ExponentialDecay(0.1, decay_steps=2, decay_rate=0.5, staircase=True)
        return keras.optimizers.SGD(rate)

    return fitted(small_model(setting, make), batches(X, Y))
