"""``Strategy.reduce`` for whatever a replica function may return: nests, every number dtype, uneven parts."""

from __future__ import annotations

import functools
import numbers
from typing import Any

import tensorflow as tf

from tf_preempt import errors
from tf_preempt.strategies.reduction import rules
from tf_preempt.strategies.reduction.leaf import read_leaf
from tf_preempt.strategies.reduction.steps import Reducer


class ReduceMixin:
    """Gives a ``tf.distribute.Strategy`` a ``reduce`` that is exact or says why not.

    The ``reduce`` that users call is that of `keras_compat.KerasReduceMixin`, which AutoGraph leaves alone.
    """

    def reduce(self, reduce_op: Any, value: Any, axis: Any = None) -> Any:
        """Reduces `value` over replicas, and with `axis` over its elements too.

        Every worker must call it with the same structure and dtypes, in the same order.  It works eagerly and
        inside a ``tf.function``, and never in a replica function.

        Beyond TensorFlow's ``reduce``:

        * `value` may be nested; the result has the same structure.  A list of Python numbers is one tensor.
        * What is no per-replica value counts once per replica: a tensor, a variable, a number, an array.
        * A scalar with ``axis=0`` is reduced over replicas only.
        * Every number dtype works on several workers.  Halves are added in float32; integers of up to 32 bits
          in int64, with an error if the sum does not fit into their own dtype.  Sums of 64 bits wrap around.
        * Parts of different shape are an error on every worker.  For that, the workers exchange shapes: when
          called eagerly, or with sizes that the graph does not know.  A rank or shape that the graph knows,
          such as a scalar's, is believed: what it would cost is a collective in every step.

        Example:
            >>> per_replica = strategy.run(step, args=(next(iterator),))  # [0, 1, 2, 3] and [4, 5]
            >>> strategy.reduce("MEAN", per_replica, axis=0)
            <tf.Tensor: shape=(), dtype=float32, numpy=2.5>

        Args:
            reduce_op: ``tf.distribute.ReduceOp``, or its name in upper or lower case.
            value: per-replica values, tensors, variables or numbers, or a nest of them.
            axis: int, or tuple or list of ints: axes of each replica's value to reduce as well; None: none.

        Returns:
            A tensor, or a nest of tensors.  A sum has its values' dtype; a mean has it too, except for
            integers: float32 for up to 16 bits, else float64.  A mean of no elements is NaN.
            ``tf.IndexedSlices`` without `axis` stay what they are.

        Raises:
            ConfigError: `reduce_op` or `axis` is none; the value has no such axis; it is a bool or a string,
                ragged or sparse, or no tensor; its parts differ in shape between replicas, or its sum does
                not fit into its dtype, and this is known at once; or it is called in a replica function.
            tf.errors.InvalidArgumentError: the parts differ in shape, or the sum does not fit, and only
                running the graph could tell.
            InternalsChangedError: TensorFlow's private names have changed.
        """
        op, axes = rules.parse_op(reduce_op), rules.parse_axis(axis)
        _check_context(self)
        if not tf.nest.is_nested(value) or _is_list_of_numbers(value):
            return self._reducer.reduce_all(op, [read_leaf("value", value, op, axes)])[0]
        leaves = [
            read_leaf(f"leaf {index} of value", leaf, op, axes)
            for index, leaf in enumerate(tf.nest.flatten(value))
        ]
        return tf.nest.pack_sequence_as(value, self._reducer.reduce_all(op, leaves))

    @functools.cached_property
    def _reducer(self) -> Reducer:
        return Reducer(self, super().reduce)  # type: ignore[misc]


def _check_context(strategy: Any) -> None:
    context = tf.distribute.get_replica_context()
    if context is not None and context.strategy is strategy:
        raise errors.ConfigError(
            "strategy.reduce was called in a replica function, where there is one replica's value only: "
            "expected a call outside strategy.run.",
            hint="in a replica function, tf.distribute.get_replica_context().all_reduce(reduce_op, value).",
        )


def _is_list_of_numbers(value: Any) -> bool:
    leaves = tf.nest.flatten(value)
    return (
        isinstance(value, list | tuple)
        and not hasattr(value, "_fields")
        and bool(leaves)
        and all(isinstance(leaf, numbers.Number) for leaf in leaves)
    )
