"""Overflow in float16; a group of its own, as workers that disagree on it lose their collectives.

Keras's own optimizer believes what the first replica of each worker has found: on two workers, one updates
and waits for the other; on two devices, an overflow of the second replica is applied to the weights.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tests.integration.scripts.keras_matrix_parts import Arrays, Setting, X, Y, batches, fitted, policy_model


class AgreeingLossScaleOptimizer(keras.optimizers.LossScaleOptimizer):
    """Skips a step on all replicas if the gradients of one are not finite."""

    def check_finite(self, grads: Any) -> tf.Tensor:
        finite = tf.cast(super().check_finite(grads), tf.float32)
        context = tf.distribute.get_replica_context()
        return context.all_reduce("SUM", finite) == float(context.num_replicas_in_sync)


def float16_overflow(setting: Setting) -> Arrays:
    """A row of the first replica overflows at the second step, one of the other at the third: no update."""
    y = Y.copy()
    y[8] = y[20] = 1e5
    with setting.scope():
        optimizer = AgreeingLossScaleOptimizer(keras.optimizers.SGD(), initial_scale=2.0**10)
    model = policy_model(setting, "mixed_float16", optimizer)
    found = fitted(model, batches(X, y), epochs=1)
    return found | {
        "scale": optimizer.dynamic_scale.numpy(),
        "updates": optimizer.inner_optimizer.iterations.numpy(),
    }
