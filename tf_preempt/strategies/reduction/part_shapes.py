"""Whether the parts of a value have one shape on all replicas: what is known, and how to ask the others.

A collective over parts of different shape fails on one worker, and the others wait until they are told that
it is dead.  So the question is put beforehand, with a table of fixed shape that every replica fills one row
of: after one sum over replicas, all of them have all shapes, and the same error.

Whether to ask must not depend on the answer.  Eagerly, several workers ask about every value, scalars too,
since another worker may hold a vector.  In a graph that would cost a collective in every step: there, what
the graph knows is believed, and only shapes that are not fully known are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_preempt import errors
from tf_preempt.strategies.reduction.rules import Axes

# Sizes of a shape that the table holds.  TensorFlow's kernels take 8 axes at most; further ones of a value
# that is only added are not compared.
_SIZES = 8

_HINT = "axis=0 reduces over the batch's elements as well, and divides by their true number for MEAN."


def check_ranks(name: str, shapes: Sequence[tf.TensorShape]) -> None:
    """Refuses parts that have not all the same number of axes: no axis means the same in them.

    Args:
        name: of the value, for the message.
        shapes: of its parts, in the order of the replicas, as far as they are known.

    Raises:
        ConfigError: they differ for sure.
    """
    if len({shape.rank for shape in shapes} - {None}) > 1:
        raise errors.ConfigError(
            f"{name} has parts with different numbers of axes: expected one number on all replicas, found "
            f"{_shown(shapes)}.",
            hint="return values of one rank from the replica function, for each replica a scalar or for "
            "each a vector.",
        )


def check_sizes(name: str, shapes: Sequence[tf.TensorShape], axes: Axes) -> None:
    """Refuses parts of one rank that have different sizes, other than along the axes to reduce.

    Args:
        name: of the value, for the message.
        shapes: of its parts, in the order of the replicas, as far as they are known.
        axes: non-negative, or None; any if a rank is unknown.

    Raises:
        ConfigError: they differ for sure.
    """
    if any(shape.rank is None for shape in shapes):
        return
    left = [
        tf.TensorShape([size for axis, size in enumerate(shape) if axis not in (axes or ())])
        for shape in shapes
    ]
    if not all(shape.is_compatible_with(left[0]) for shape in left):
        raise errors.ConfigError(f"{_message(name)}{_shown(left)}.", hint=_HINT)


def _shown(shapes: Sequence[tf.TensorShape]) -> str:
    return " and ".join("(unknown)" if one.rank is None else str(tuple(one)) for one in shapes)


def _message(name: str) -> str:
    return (
        f"{name} has parts of different shape, and only replicas are to be reduced: expected one shape on "
        "all replicas, found "
    )


def known_rows(shapes: Sequence[tf.TensorShape], replica: int, replicas: int) -> npt.NDArray[np.int64]:
    """What one replica adds to the table of shapes, if it knows its own: as `rows_of`, without a graph.

    A graph of the table would differ between workers with values of different rank, and so would the numbers
    that TensorFlow gives their collectives.

    Args:
        shapes: of this replica's values, fully known, one for each leaf of a nest.
        replica: number of this replica.
        replicas: how many there are.

    Returns:
        int64, [replicas, leaves, 1 + 8].
    """
    rows = np.zeros([replicas, len(shapes), 1 + _SIZES], np.int64)
    for leaf, shape in enumerate(shapes):
        sizes = shape.as_list()[:_SIZES]
        rows[replica, leaf, : 1 + len(sizes)] = [shape.rank, *sizes]
    return rows


def rows_of(parts: Sequence[tf.Tensor], replica: Any, replicas: int) -> tf.Tensor:
    """What one replica adds to the table of shapes: its own row, and zeros elsewhere.

    Args:
        parts: this replica's values, one for each leaf of a nest.
        replica: number of this replica, an int or a scalar tensor.
        replicas: how many there are.

    Returns:
        int64, [replicas, leaves, 1 + 8]: the rank, and the first sizes, filled up with zeros.
    """
    own = tf.stack([_row(part) for part in parts])
    return tf.one_hot(replica, replicas, dtype=tf.int64)[:, tf.newaxis, tf.newaxis] * own


def _row(part: tf.Tensor) -> tf.Tensor:
    sizes = tf.shape(part, out_type=tf.int64)[:_SIZES]
    rank = tf.cast(tf.rank(part), tf.int64)
    return tf.concat([[rank], sizes, tf.zeros([_SIZES - tf.size(sizes)], tf.int64)], axis=0)


def shapes_in(rows: npt.NDArray[np.int64]) -> list[tf.TensorShape]:
    """The shapes that one leaf has on all replicas; sizes that the table does not hold are None.

    Args:
        rows: int64, [replicas, 1 + 8], from the sum of all `known_rows`.
    """
    return [_shape_in(int(rank), [int(size) for size in sizes]) for rank, *sizes in rows]


def _shape_in(rank: int, sizes: list[int]) -> tf.TensorShape:
    return tf.TensorShape([*sizes[:rank], *[None] * (rank - _SIZES)])


def assert_equal(name: str, rows: tf.Tensor) -> tf.Tensor:
    """For graphs: a scalar that is computed only if all shapes are equal.

    Args:
        name: of the value, for the message.
        rows: int64, [replicas, 1 + 8], from the sum of all `rows_of`.

    Returns:
        A bool.  Where the shapes differ, computing it raises ``tf.errors.InvalidArgumentError``.
    """
    equal = tf.reduce_all(rows == rows[:1])

    def fail() -> tf.Tensor:
        sizes = tf.RaggedTensor.from_tensor(
            tf.strings.as_string(rows[:, 1:]), lengths=tf.minimum(rows[:, 0], _SIZES)
        )
        shapes = "(" + tf.strings.reduce_join(sizes, axis=-1, separator=", ") + ")"
        shown = [_message(name), tf.strings.reduce_join(shapes, separator=" and "), f"HINT: {_HINT}"]
        with tf.control_dependencies([tf.debugging.Assert(equal, shown)]):
            return tf.identity(equal)

    return tf.cond(equal, lambda: tf.identity(equal), fail)
