"""Overflow in float16; a group of its own, as workers that disagree on it lose their collectives.

Without help, Keras's optimizer believes what the first replica of each worker has found: on two workers, one
updates and waits for the other; on two devices, an overflow of the second is applied to the weights.
"""

from __future__ import annotations

import keras

from tests.integration.scripts.keras_matrix_parts import Arrays, Setting, X, Y, batches, fitted, policy_model


def float16_overflow(setting: Setting) -> Arrays:
    """A row of the first replica overflows at the second step, one of the other at the third: no update."""
    y = Y.copy()
    y[8] = y[20] = 1e5
    with setting.scope():
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(), initial_scale=2.0**10)
    model = policy_model(setting, "mixed_float16", optimizer)
    found = fitted(model, batches(X, y), epochs=1)
    return found | {
        "scale": optimizer.dynamic_scale.numpy(),
        "updates": optimizer.inner_optimizer.iterations.numpy(),
    }
