"""What Keras 3 asks of ``Strategy.reduce`` beyond a reduction.

Keras 3 calls ``reduce`` in two ways that TensorFlow refuses on several workers:

* once before training, to learn shapes and dtypes of the input: ``reduce("MEAN", batch, axis=None)``,
  eagerly, with the whole nested batch.  The batch may hold dtypes that have no mean (strings), or whose mean
  has another dtype (integers, images in uint8), and it may be cut into parts of different size.
* in every step, for the logs: ``reduce("MEAN", scalar, axis=0)``.

The second is a reduction, and `reduction.ReduceMixin` does it.  The first is none.

References:
    https://github.com/keras-team/keras/issues/20585 (seen 2026-11).
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_preempt.strategies import _tf_internals
from tf_preempt.strategies.reduction import ReduceMixin


class KerasReduceMixin(ReduceMixin):
    """Makes ``reduce`` of a ``tf.distribute.Strategy`` serve Keras 3; put it before the strategy class."""

    @_tf_internals.let_errors_through
    def reduce(self, reduce_op: Any, value: Any, axis: Any = None) -> Any:
        """Reduces `value` over replicas, and with `axis` over its elements too.

        As `reduction.ReduceMixin.reduce`, whose documentation holds here, with one exception: where Keras
        itself asks for a batch's mean to learn shapes and dtypes, it gets this worker's first part of the
        batch.  Keras uses nothing else of it, and so no collective has to run.

        Args:
            reduce_op: ``tf.distribute.ReduceOp``, or its name in upper or lower case.
            value: per-replica values, tensors, variables or numbers, or a nest of them.
            axis: int, or tuple or list of ints: axes of each replica's value to reduce as well; None: none.

        Raises:
            ConfigError: see `reduction.ReduceMixin.reduce`.
            tf.errors.InvalidArgumentError: see there.
            InternalsChangedError: TensorFlow's private names have changed.
        """
        if axis is None and tf.executing_eagerly() and _tf_internals.called_by_keras_build():
            return tf.nest.map_structure(lambda leaf: _tf_internals.per_replica_values(leaf)[0], value)
        return super().reduce(reduce_op, value, axis=axis)
