"""What Keras 3 asks of ``Strategy.reduce`` beyond what TensorFlow's multi-worker strategies accept.

Keras 3 calls ``reduce`` in two ways that TensorFlow refuses on several workers:

* once before training, to learn shapes and dtypes of the input: ``reduce("MEAN", batch, axis=None)``,
  eagerly, with the whole nested batch.  Besides the nest, the batch may hold dtypes that no collective can
  carry (strings, images in uint8), and it may be cut into parts of different size.  A collective over parts
  of different size hangs one worker and kills another.
* in every step, for the logs: ``reduce("MEAN", scalar, axis=0)``.

References:
    https://github.com/keras-team/keras/issues/20585 (seen 2026-11).
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_preempt.strategies import _tf_internals

_log = logging.getLogger("tf_preempt")

# What the mean of a batch can be computed for, on every device and by every collective implementation.
# Integers have a kernel, but their mean is a float64: Keras would build the model for another dtype.
_AVERAGED_DTYPES = frozenset({tf.float16, tf.bfloat16, tf.float32, tf.float64})

_DIFFER_HERE = 0  # stands for "the parts on this worker differ"; real fingerprints are odd


class KerasReduceMixin:
    """Makes ``reduce`` of a ``tf.distribute.Strategy`` serve Keras 3; put it before the strategy class.

    Where TensorFlow's own ``reduce`` gives a result, this one gives the same; except for a list or tuple of
    tensors of one shape, which TensorFlow stacks if they are not per-replica values: it is a nest here.
    """

    def reduce(self, reduce_op: Any, value: Any, axis: Any = None) -> Any:
        """Reduces `value` over replicas, and with `axis` over its elements too.

        Every worker must call it with the same structure, in the same order.

        Beyond TensorFlow's ``reduce``:

        * `value` may be nested; the result has the same structure.
        * A value of rank 0 with ``axis=0`` is reduced over replicas only.
        * The eager mean of a nest over replicas (``"MEAN"``, ``axis=None``), which Keras takes to learn
          shapes and dtypes, gives this worker's first part back, unreduced, for dtypes that are not
          floating-point, and for all of the nest if its parts differ in shape between replicas.

        Args:
            reduce_op: ``tf.distribute.ReduceOp``, or its name.
            value: per-replica values, tensors or numbers, or a nest of them.
            axis: int or tuple of ints: axes of each replica's value to reduce as well; None: none.

        Raises:
            ValueError: `axis` is out of range, or the dtype cannot be reduced (TensorFlow's own errors).
        """
        plain_reduce = super().reduce  # type: ignore[misc]
        if not _is_nest_of_tensors(value):
            return plain_reduce(reduce_op, value, axis=None if _is_scalar_axis(value, axis) else axis)
        if axis is None and tf.executing_eagerly() and _is_mean(reduce_op):
            return _eager_mean(self, plain_reduce, value)
        return tf.nest.map_structure(lambda leaf: self.reduce(reduce_op, leaf, axis=axis), value)


def _is_nest_of_tensors(value: Any) -> bool:
    """Lists of plain numbers stay TensorFlow's: it makes one tensor of them."""
    return tf.nest.is_nested(value) and any(
        isinstance(leaf, tf.distribute.DistributedValues) or tf.is_tensor(leaf)
        for leaf in tf.nest.flatten(value)
    )


def _is_mean(reduce_op: Any) -> bool:
    return reduce_op == tf.distribute.ReduceOp.MEAN or str(reduce_op).upper() == "MEAN"


def _is_scalar_axis(value: Any, axis: Any) -> bool:
    """Says whether `axis` is the first axis of a value that has none."""
    if axis != 0:
        return False
    return all(_rank(part) == 0 for part in _tf_internals.per_replica_values(value))


def _rank(part: Any) -> int | None:
    """Rank of one replica's value; None if it is not known while a graph is built."""
    if tf.is_tensor(part) or isinstance(part, tf.Variable):
        rank: int | None = part.shape.rank
        return rank
    return int(np.ndim(part))


def _eager_mean(strategy: Any, plain_reduce: Any, nest: Any) -> Any:
    """Mean over replicas of each leaf, or this worker's own part where there is no mean to take.

    Which leaves are reduced follows from dtypes and from an exchange between the workers, never from what one
    worker sees alone: all must run the same collectives.
    """
    leaves = tf.nest.flatten(nest)
    same_shapes = _shapes_agree(strategy, plain_reduce, leaves)
    if not same_shapes:
        _log.debug("Parts of the batch differ in shape between replicas: their mean is not taken.")
    means = [
        plain_reduce(tf.distribute.ReduceOp.MEAN, leaf, axis=None)
        if same_shapes and _has_mean(leaf)
        else _tf_internals.per_replica_values(leaf)[0]
        for leaf in leaves
    ]
    return tf.nest.pack_sequence_as(nest, means)


def _has_mean(leaf: Any) -> bool:
    first = _tf_internals.per_replica_values(leaf)[0]
    if isinstance(first, tf.Tensor | tf.Variable):
        return first.dtype in _AVERAGED_DTYPES
    return isinstance(first, float | np.floating)


def _shapes_agree(strategy: Any, plain_reduce: Any, leaves: Sequence[Any]) -> bool:
    """Says, with the same answer on every worker, whether each leaf has one shape on all replicas.

    A sum and a sum of squares say whether all workers sent the same number: by Cauchy and Schwarz,
    n * sum(x**2) == sum(x)**2 holds then and only then.
    """
    parts = [_tf_internals.per_replica_values(leaf) for leaf in leaves]
    mine = shapes_fingerprint([[_shape(part) for part in of_leaf] for of_leaf in parts])
    workers = strategy.num_replicas_in_sync // len(strategy.extended.worker_devices)
    if workers == 1:
        return mine != _DIFFER_HERE
    sent = tf.constant([mine, mine * mine], tf.int64)
    total, squares = (int(x) for x in plain_reduce(tf.distribute.ReduceOp.SUM, sent, axis=None).numpy())
    return mine != _DIFFER_HERE and workers * squares == total * total


def _shape(part: Any) -> tuple[int, ...]:
    """Shape of one replica's value; none for sparse and ragged ones, which are not reduced, and numbers."""
    return tuple(part.shape) if isinstance(part, tf.Tensor | tf.Variable | np.ndarray) else ()


def shapes_fingerprint(shapes: Iterable[Sequence[tuple[int, ...]]]) -> int:
    """A small number that says which shapes this worker holds.

    Args:
        shapes: for each leaf of the nest, the shape on each replica of this worker.

    Returns:
        0 if the replicas of this worker differ among themselves; else an odd number below 2**24, so that sums
        of its squares over 2**15 workers fit into an int64.
    """
    first_parts = []
    for parts in shapes:
        if any(part != parts[0] for part in parts):
            return _DIFFER_HERE
        first_parts.append(parts[0])
    return (zlib.crc32(repr(first_parts).encode()) >> 8) | 1
