"""What ``reduce`` accepts, and in which dtype it adds: decisions only, no tensors.

Collectives between processes add a few dtypes only.  The others are added in a dtype that has a kernel and
holds every sum exactly, or they are refused.  The same dtypes are used within one process, so that a result
does not depend on where the replicas are.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

import tensorflow as tf

from tf_preempt import errors

Axes = tuple[int, ...] | None

# float16 and bfloat16 lose counts above 2048 and 256; an integer of 32 bits or less has its sum in an int64,
# whatever the number of replicas.  uint64 shares its bits with int64, modulo 2**64 as TensorFlow adds it.
_ADDED_IN = {
    tf.float16: tf.float32,
    tf.bfloat16: tf.float32,
    tf.float32: tf.float32,
    tf.float64: tf.float64,
    tf.complex64: tf.complex64,
    tf.complex128: tf.complex128,
    tf.int8: tf.int64,
    tf.int16: tf.int64,
    tf.int32: tf.int64,
    tf.int64: tf.int64,
    tf.uint8: tf.int64,
    tf.uint16: tf.int64,
    tf.uint32: tf.int64,
    tf.uint64: tf.int64,
}

_LARGEST_BYTES_OF_FLOAT32_MEAN = (
    2  # as tf.truediv divides integers: up to 16 bits in float32, else in float64
)

_CURES = {
    tf.bool: "tf.cast(value, tf.int32) first: SUM then counts the True values, MEAN gives their share.",
    tf.string: "reduce numbers; strategy.experimental_local_results(value) gives this worker's strings.",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """The dtypes of one reduction.

    Args:
        value: dtype of the values, one that `arithmetic_of` accepts.
        result: dtype of the result.
    """

    value: tf.DType
    result: tf.DType

    @property
    def added_in(self) -> tf.DType:
        """The dtype in which they are added: one that collectives know, and that loses nothing."""
        return _ADDED_IN[self.value]

    @property
    def can_overflow(self) -> bool:
        """Says whether the sum may not fit into the result, although it is known."""
        return bool(self.result.is_integer and self.result.size < self.added_in.size)


def parse_op(reduce_op: Any) -> tf.distribute.ReduceOp:
    """The ``tf.distribute.ReduceOp`` that is meant.

    Args:
        reduce_op: a ``tf.distribute.ReduceOp``, or its name in upper or lower case.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(reduce_op, tf.distribute.ReduceOp):
        return reduce_op
    if isinstance(reduce_op, str) and reduce_op.upper() in tf.distribute.ReduceOp.__members__:
        return tf.distribute.ReduceOp[reduce_op.upper()]
    raise errors.ConfigError(
        f"reduce_op={reduce_op!r} ({type(reduce_op).__name__}): expected 'SUM', 'MEAN' or a "
        "tf.distribute.ReduceOp.",
        hint="for a maximum, minimum or product, strategy.gather(value, axis=0) and then tf.reduce_max, …",
    )


def parse_axis(axis: Any) -> Axes:
    """Axes as a tuple; None where nothing but the replicas is reduced.

    Args:
        axis: None, an int, or a tuple or list of ints; negative ones count from the last axis.

    Raises:
        ConfigError: it is something else.
    """
    if axis is None:
        return None
    axes = axis if isinstance(axis, tuple | list) else [axis]
    try:
        numbers = tuple(operator.index(one) for one in axes if not isinstance(one, bool))
    except TypeError:
        numbers = ()
    if len(numbers) != len(axes):
        raise errors.ConfigError(
            f"axis={axis!r} ({type(axis).__name__}): expected None, an int, or a tuple or list of ints.",
            hint="axis=0 reduces over the elements of the batch as well, axis=None over the replicas only.",
        )
    return numbers or None


def axes_of(axes: Axes, rank: int | None) -> Axes:
    """The axes that one value is reduced along.

    Args:
        axes: from `parse_axis`.
        rank: of one replica's value; None if it is not known while a graph is built.

    Returns:
        Non-negative axes if the rank is known.  None if there are none; also for the first axis of a scalar:
        Keras asks for that in every step.

    Raises:
        ConfigError: the value has no such axis, or an axis is named twice.
    """
    if axes is None or rank is None:
        return axes
    if rank == 0 and axes in ((0,), (-1,)):
        return None
    wrong = [axis for axis in axes if not -rank <= axis < rank]
    if wrong:
        raise errors.ConfigError(
            f"axis={wrong[0]}: the value has rank {rank} on each replica: expected {_range_of_axes(rank)}.",
            hint="axis=None reduces over the replicas only.",
        )
    positive = tuple(axis % rank for axis in axes)
    if len(set(positive)) < len(positive):
        raise errors.ConfigError(
            f"axis={axes}: an axis of a value of rank {rank} is named twice.", hint="name each axis once."
        )
    return positive


def _range_of_axes(rank: int) -> str:
    return f"{-rank} to {rank - 1}" if rank else "None"


def arithmetic_of(dtype: tf.DType, op: tf.distribute.ReduceOp) -> Arithmetic:
    """Decides in which dtype values are added, and which dtype comes out.

    A sum has the values' dtype.  A mean has it for floating-point and complex values; for integers of up to
    16 bits it is a float32, for longer ones a float64, as ``tf.truediv`` has it.

    Args:
        dtype: of the values.
        op: what is to be computed.

    Raises:
        ConfigError: there is no sum of this dtype.
    """
    if dtype not in _ADDED_IN:
        raise errors.ConfigError(
            f"values of dtype {dtype.name} cannot be reduced with {op.name}: expected numbers.",
            hint=_CURES.get(dtype, "cast the value to a dtype that TensorFlow adds, such as tf.float32."),
        )
    result = dtype
    if op == tf.distribute.ReduceOp.MEAN and dtype.is_integer:
        result = tf.float32 if dtype.size <= _LARGEST_BYTES_OF_FLOAT32_MEAN else tf.float64
    return Arithmetic(value=dtype, result=result)
