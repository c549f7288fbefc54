"""Whether the parts of a value have one shape on all replicas: what is known, and how to ask the others.

A collective over parts of different shape fails on one worker, and the others wait until they are told that
it is dead.  So the question is put beforehand, with a table of fixed shape that every replica fills one row
of: after one sum over replicas, all of them have all shapes, and the same error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_preempt import errors

# Sizes of a shape that the table holds.  TensorFlow's kernels take 8 axes at most; further ones of a value
# that is only added are not compared.
_SIZES = 8

_HINT = "axis=0 reduces over the batch's elements as well, and divides by their true number for MEAN."


def must_ask(shapes: Sequence[tf.TensorShape], *, eagerly: bool, one_process: bool) -> bool:
    """Says whether the replicas have to exchange shapes; all of them must come to the same answer.

    Args:
        shapes: of the parts on this worker, as far as they are known.
        eagerly: no graph is being built.  In a graph, shapes that it knows are believed on all workers.
        one_process: the parts on this worker are all there are.
    """
    if all(shape.rank == 0 for shape in shapes):
        return False
    known = all(shape.is_fully_defined() for shape in shapes)
    return not known or (eagerly and not one_process)


def check_equal(name: str, shapes: Sequence[Sequence[int]]) -> None:
    """Refuses parts of different shape.

    Args:
        name: of the value, for the message.
        shapes: of its parts, in the order of the replicas, fully known.

    Raises:
        ConfigError: they differ.
    """
    if any(tuple(shape) != tuple(shapes[0]) for shape in shapes):
        raise unequal(name, shapes)


def unequal(name: str, shapes: Sequence[Sequence[int | None]]) -> errors.ConfigError:
    """The error that shows all shapes.

    Args:
        name: of the value.
        shapes: of its parts, in the order of the replicas.
    """
    return errors.ConfigError(
        f"{_message(name)}{' and '.join(str(tuple(one)) for one in shapes)}.", hint=_HINT
    )


def _message(name: str) -> str:
    return (
        f"{name} has parts of different shape, and only replicas are to be reduced: expected one shape on "
        "all replicas, found "
    )


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


def shapes_in(rows: Any) -> list[tuple[int, ...]]:
    """The shapes that one leaf has on all replicas.

    Args:
        rows: int64 array, [replicas, 1 + 8], from the sum of all `rows_of`.
    """
    return [tuple(int(size) for size in row[1 : 1 + min(int(row[0]), _SIZES)]) for row in rows]


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
