"""Per-replica values that know how many rows all replicas have together, wherever they are passed.

TensorFlow's iterators ask in every step whether any replica has data left.  The number of rows travels in the
same reduction, and from there with the batch: through ``tf.function``, ``tf.cond`` and ``tf.while_loop``, as
one more component of its first value.
"""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from tf_preempt.strategies._tf_internals.access import attribute, private_module
from tf_preempt.strategies.said import warn_once

_TOTAL_IS_LOST = (
    "a distributed batch is passed to a tf.function that was given another type specification or was traced "
    "with values of another origin: the last, smaller batch of a data set is weighted by replicas there, not "
    "by rows.\nHINT: take the input signature from the distributed data set's element_spec."
)


@functools.cache
def counted_types() -> tuple[type, type]:
    """The class of counted per-replica values, and that of their type specifications.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    module = private_module("tensorflow.python.distribute.values")
    per_replica = attribute(module, "PerReplica", "values")
    per_replica_spec = attribute(module, "PerReplicaSpec", "values")
    total_spec = tf.TensorSpec([], tf.int64)

    class CountedPerReplica(per_replica):  # type: ignore[misc, valid-type]
        """A ``PerReplica`` with the number of rows of all replicas together, ``total``: a scalar, int64."""

        def __init__(self, values: Any, total: Any) -> None:
            super().__init__(values)
            self.total = total

        @property
        def _type_spec(self) -> Any:
            return CountedPerReplicaSpec(*super()._type_spec._component_specs)

    class CountedPerReplicaSpec(per_replica_spec):  # type: ignore[misc, valid-type]
        @property
        def value_type(self) -> type:
            return CountedPerReplica

        @property
        def _component_specs(self) -> Any:
            return (*super()._component_specs, total_spec)

        def _to_components(self, value: Any) -> Any:
            return (*super()._to_components(value), value.total)

        def _from_components(self, components: Any) -> Any:
            *values, total = components
            return CountedPerReplica(tuple(values), total)

        def is_subtype_of(self, other: Any) -> bool:
            """Whoever asks for per-replica values may be given counted ones."""
            if type(other) is per_replica_spec:
                fits = bool(per_replica_spec(*super()._component_specs).is_subtype_of(other))
                if fits:
                    warn_once(_TOTAL_IS_LOST)
                return fits
            return bool(super().is_subtype_of(other))

    return CountedPerReplica, CountedPerReplicaSpec


def with_total(batch: Any, total: tf.Tensor) -> Any:
    """`batch` again, its first value holding the number of rows; a batch without per-replica values as it is.

    Args:
        batch: a nest of per-replica values.
        total: rows of all replicas together, a scalar of dtype int64.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    counted, _ = counted_types()
    leaves = tf.nest.flatten(batch)
    first = next((index for index, leaf in enumerate(leaves) if has_rows(leaf)), None)
    if first is None:
        return batch
    leaves[first] = counted(leaves[first].values, total)
    return tf.nest.pack_sequence_as(batch, leaves)


def spec_with_total(spec: Any) -> Any:
    """The type specification of ``with_total(batch, total)``, given that of `batch`.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    plain = attribute(private_module("tensorflow.python.distribute.values"), "PerReplicaSpec", "values")
    _, counted = counted_types()
    leaves = tf.nest.flatten(spec)
    first = next(
        (index for index, leaf in enumerate(leaves) if isinstance(leaf, plain) and _rows_spec(leaf)), None
    )
    if first is None:
        return spec
    leaves[first] = counted(*leaves[first]._component_specs)
    return tf.nest.pack_sequence_as(spec, leaves)


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def counted_values(arguments: Any) -> list[Any]:
    """The counted values in a nest of arguments, one for each batch.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    counted, _ = counted_types()
    found: list[Any] = [leaf for leaf in tf.nest.flatten(arguments) if isinstance(leaf, counted)]
    return list({id(leaf.total): leaf for leaf in found}.values())


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def may_be_uneven(arguments: Any) -> bool:
    """Says whether a nest holds per-replica values of which replicas may have different numbers of rows.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    values = [leaf.values for leaf in tf.nest.flatten(arguments) if has_rows(leaf)]
    sizes = [{part.shape[0] if part.shape.rank else None for part in parts} for parts in values]
    return any(None in found or len(found) > 1 for found in sizes)


def rows_of(value: Any) -> tf.Tensor:
    """The size of the first axis of one replica's value: a scalar of dtype int64.

    Args:
        value: a dense, ragged or sparse tensor of rank 1 or more.
    """
    if isinstance(value, tf.RaggedTensor):
        return tf.cast(value.nrows(), tf.int64)
    if isinstance(value, tf.SparseTensor):
        return value.dense_shape[0]
    return tf.shape(value, out_type=tf.int64)[0]


def has_rows(leaf: Any) -> bool:
    """Says whether a value of a batch is a per-replica one of tensors with a first axis; None is not."""
    module = private_module("tensorflow.python.distribute.values")
    if not isinstance(leaf, attribute(module, "PerReplica", "values")):
        return False
    shape = getattr(leaf.values[0], "shape", None)
    return shape is not None and shape.rank != 0


def _rows_spec(spec: Any) -> Any | None:
    """One replica's type specification of a per-replica value with rows; else None."""
    one = spec._component_specs[0]
    shape = getattr(one, "shape", None)
    return one if shape is not None and shape.rank != 0 else None


def first_rows_spec(spec: Any) -> Any | None:
    """One replica's type specification of the first value of a batch that has rows; None if none has.

    Args:
        spec: of a batch; a nest of specifications of per-replica values.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    plain = attribute(private_module("tensorflow.python.distribute.values"), "PerReplicaSpec", "values")
    found = (_rows_spec(leaf) for leaf in tf.nest.flatten(spec) if isinstance(leaf, plain))
    return next((one for one in found if one is not None), None)


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def rows_per_replica(counted: Any) -> Any:
    """Rows of each replica that this process feeds, as a per-replica value: scalars of dtype int64.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    module = private_module("tensorflow.python.distribute.values")
    return attribute(module, "PerReplica", "values")(tuple(rows_of(value) for value in counted.values))
