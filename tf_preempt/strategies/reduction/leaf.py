"""One value to reduce: what is known of it, what each replica adds, and what becomes of the sum."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_preempt import errors
from tf_preempt.strategies import _tf_internals
from tf_preempt.strategies.reduction import part_shapes, rules

_SUM = tf.distribute.ReduceOp.SUM


@dataclasses.dataclass(frozen=True, kw_only=True)
class Leaf:
    """One value to reduce.

    Args:
        value: what TensorFlow's functions take.
        parts: its components on this worker, in the order of its replicas; or itself alone.
        arithmetic: in which dtype to add.
        axes: of each part to reduce as well; None: none.  As the caller named them, until `with_own_axes`.
        name: for messages.
    """

    value: Any
    parts: Sequence[Any]
    arithmetic: rules.Arithmetic
    axes: rules.Axes
    name: str

    @property
    def is_slices(self) -> bool:
        """Says whether TensorFlow's own reduction is for it, which gathers slices."""
        return isinstance(self.parts[0], tf.IndexedSlices) and self.axes is None

    @property
    def shapes(self) -> list[tf.TensorShape]:
        """Of the parts: as far as a graph knows them; eagerly all, but for slices to be gathered."""
        if tf.executing_eagerly() and not self.is_slices:
            return [_known_shape(part) for part in self.parts]
        return [part.shape for part in self.parts]

    @property
    def is_ready(self) -> bool:
        """Says whether the parts can be added as they are."""
        return bool(
            self.axes is None
            and self.arithmetic.added_in is self.arithmetic.value
            and not self.arithmetic.value.is_complex
            and isinstance(self.parts[0], tf.Tensor)
            and not isinstance(self.value, tf.types.experimental.distributed.Mirrored)
        )


def with_own_axes(leaf: Leaf, shapes: Sequence[tf.TensorShape]) -> Leaf:
    """The same value with the axes that one of its rank is reduced along.

    Args:
        leaf: as `read_leaf` made it.
        shapes: of its parts on all replicas, as far as they are known.

    Raises:
        ConfigError: the parts differ in shape, or have no such axis.
    """
    part_shapes.check_ranks(leaf.name, shapes)
    axes = rules.axes_of(leaf.axes, shapes[0].rank)
    part_shapes.check_sizes(leaf.name, shapes, axes)
    return dataclasses.replace(leaf, axes=axes)


def _known_shape(part: Any) -> tf.TensorShape:
    # A variable may have been made for any shape, and slices without one; what they hold now has one.
    return part.shape if part.shape.is_fully_defined() else tf.convert_to_tensor(part).shape


def read_leaf(name: str, given: Any, op: tf.distribute.ReduceOp, axes: rules.Axes) -> Leaf:
    """Looks at one value, and refuses what has no sum at all.

    Args:
        name: of the value, for messages.
        given: what the caller wants reduced.
        op: what is to be computed.
        axes: from `rules.parse_axis`.

    Raises:
        ConfigError: it is a bool or a string, ragged or sparse, or no tensor.
    """
    inner = getattr(given, "value", None)  # a Keras variable keeps its tf.Variable there
    value = inner if isinstance(inner, tf.Variable) else given
    if not isinstance(value, tf.distribute.DistributedValues | tf.Variable | tf.IndexedSlices):
        value = _as_tensor(name, value)
    parts = _tf_internals.per_replica_values(value)
    for part in parts:
        _check_dense(name, part)
    return Leaf(
        value=value,
        parts=parts,
        arithmetic=rules.arithmetic_of(parts[0].dtype, op),
        axes=axes,
        name=name,
    )


def _as_tensor(name: str, value: Any) -> tf.Tensor:
    _check_dense(name, value)
    try:
        return tf.convert_to_tensor(value)
    except (TypeError, ValueError) as error:
        raise errors.ConfigError(
            f"{name}={value!r} ({type(value).__name__}) cannot be reduced: expected a per-replica value, a "
            f"tensor, a variable, a number or a NumPy array, or a nest of them ({error}).",
            hint="return tensors from the function that strategy.run calls.",
        ) from error


def _check_dense(name: str, part: Any) -> None:
    if isinstance(part, tf.SparseTensor | tf.RaggedTensor):
        dense = "tf.sparse.to_dense" if isinstance(part, tf.SparseTensor) else "value.to_tensor()"
        raise errors.ConfigError(
            f"{name} is a {type(part).__name__}: expected dense values.",
            hint=f"make it dense in the replica function ({dense}), or reduce it to a scalar there.",
        )


def sum_and_count(
    part: Any, arithmetic: rules.Arithmetic, axes: rules.Axes, counting: bool
) -> tuple[tf.Tensor, tf.Tensor | None]:
    """One replica's sum over `axes`, and the number of elements in each sum (int64), if it is wanted.

    Returns:
        The sum is of dtype ``arithmetic.added_in``.  No collective adds complex numbers: their real and
        imaginary parts stand on a new last axis.
    """
    part = tf.convert_to_tensor(part)
    if arithmetic.value == tf.uint64:
        total = tf.bitcast(part, tf.int64)
    else:
        total = tf.cast(part, arithmetic.added_in)
    count = None
    if counting:
        sizes = tf.shape(part, out_type=tf.int64)
        count = tf.reduce_prod(tf.gather(sizes, [_place(axis, part) for axis in axes or ()]))
    if axes is not None:
        total = tf.reduce_sum(total, axis=axes)
    if total.dtype.is_complex:
        total = tf.stack([tf.math.real(total), tf.math.imag(total)], axis=-1)
    # A new tensor on each replica: one that all replicas shared would not count once for each.
    return tf.identity(total), count


def _place(axis: int, part: tf.Tensor) -> Any:
    """`axis` counted from the first one; only a graph that does not know the rank has negative ones left."""
    return axis if axis >= 0 else axis + tf.rank(part)


def finish(leaf: Leaf, op: tf.distribute.ReduceOp, total: tf.Tensor, count: Any) -> tf.Tensor:
    """The sum or mean in its own dtype, from the sum over all replicas and the number of elements."""
    arithmetic = leaf.arithmetic
    if arithmetic.value.is_complex:
        total = tf.complex(total[..., 0], total[..., 1])
    if arithmetic.value == tf.uint64:
        total = tf.bitcast(total, tf.uint64)
    if op == _SUM:
        return tf.cast(_check_range(leaf, total), arithmetic.result)
    if arithmetic.value.is_integer:
        total = tf.cast(total, tf.float64)
    return tf.cast(total / tf.cast(count, total.dtype), arithmetic.result)


def _check_range(leaf: Leaf, total: tf.Tensor) -> tf.Tensor:
    """`total`, if it fits into the dtype of the result.

    Raises:
        ConfigError: it does not fit, and this is known at once.
    """
    dtype = leaf.arithmetic.result
    if not leaf.arithmetic.can_overflow:
        return total
    fits = tf.reduce_all((total >= int(dtype.min)) & (total <= int(dtype.max)))
    message = f"the SUM of {leaf.name} does not fit into its dtype, {dtype.name} ({dtype.min} to {dtype.max})"
    hint = "tf.cast(value, tf.int64) before reduce."
    if not tf.executing_eagerly():
        with tf.control_dependencies([tf.debugging.Assert(fits, [f"{message}: ", total, f"HINT: {hint}"])]):
            return tf.identity(total)
    if not fits:
        raise errors.ConfigError(f"{message}: {total.numpy().tolist()}.", hint=hint)
    return total
