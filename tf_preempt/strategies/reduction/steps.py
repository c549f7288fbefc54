"""How values are added over replicas and workers.

A reduction has three steps.  Eagerly, the workers tell each other the shapes of what they hold, since the
elements that there are to add depend on ranks.  Each replica adds up its own elements and counts them.
Then the sums, and the counts, are added over replicas; in a graph, that waits until shapes that only running
it tells have been compared.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_preempt.strategies import _tf_internals
from tf_preempt.strategies.reduction import part_shapes
from tf_preempt.strategies.reduction.leaf import Leaf, finish, sum_and_count, with_own_axes

_SUM, _MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN


class Reducer:
    """Reductions of one strategy; keeps the functions that eager calls run, which saves most of their time.

    Args:
        strategy: whose replicas are meant.
        plain_reduce: TensorFlow's ``reduce`` of that strategy.
    """

    def __init__(self, strategy: Any, plain_reduce: Callable[..., Any]) -> None:
        self._strategy = strategy
        self._replicas: int = strategy.num_replicas_in_sync
        self._replicas_here: int = len(strategy.extended.worker_devices)
        self._is_one_process: bool = self._replicas == self._replicas_here
        self._plain_reduce = plain_reduce
        self._functions: dict[Any, Any] = {}

    def reduce_all(self, op: tf.distribute.ReduceOp, leaves: Sequence[Leaf]) -> list[Any]:
        """Reduces all leaves of a nest; shapes are compared in one go, before anything is added.

        Raises:
            ConfigError: parts differ in shape or have no such axis, or a sum does not fit into its dtype, and
                it is known now.
        """
        leaves = [
            with_own_axes(leaf, shapes)
            for leaf, shapes in zip(leaves, self._known_shapes(op, leaves), strict=True)
        ]
        results: list[Any] = [None] * len(leaves)
        to_add = []
        for index, leaf in enumerate(leaves):
            if leaf.is_slices:
                results[index] = self._plain_reduce(op, leaf.value, axis=None)
            elif self._is_its_own_mean(op, leaf):
                results[index] = tf.cast(tf.convert_to_tensor(leaf.parts[0]), leaf.arithmetic.result)
            else:
                to_add.append(index)
        for index, result in zip(to_add, self._add_all(op, [leaves[i] for i in to_add]), strict=True):
            results[index] = result
        return results

    def _add_all(self, op: tf.distribute.ReduceOp, leaves: Sequence[Leaf]) -> list[tf.Tensor]:
        totals, counts = self._add_elements(op, leaves)
        if not tf.executing_eagerly() and self._replicas > 1:
            totals = self._once_compared([leaf.name for leaf in leaves], totals)
        sums = self._add_replicas([*totals, *(count for count in counts if count is not None)])
        counted = iter(sums[len(totals) :])
        return [
            finish(leaf, op, total, self._replicas if count is None else next(counted))
            for leaf, total, count in zip(leaves, sums[: len(totals)], counts, strict=True)
        ]

    def _known_shapes(self, op: tf.distribute.ReduceOp, leaves: Sequence[Leaf]) -> list[list[tf.TensorShape]]:
        """Of each leaf the shapes of its parts: eagerly on all workers, in a graph those that it knows."""
        shapes = [leaf.shapes for leaf in leaves]
        if tf.executing_eagerly() and not self._is_one_process:
            asked = [
                index
                for index, leaf in enumerate(leaves)
                if not leaf.is_slices and not self._is_its_own_mean(op, leaf)
            ]
            everywhere = self._exchange([shapes[index] for index in asked])
            for index, found in zip(asked, everywhere, strict=True):
                shapes[index] = found
        return shapes

    def _exchange(self, shapes: Sequence[Sequence[tf.TensorShape]]) -> list[list[tf.TensorShape]]:
        """The shapes on all replicas, from those on this worker, in one collective.

        Args:
            shapes: for each leaf, fully known, of its parts in the order of the replicas, or of all as one.
        """
        if not shapes:
            return []
        places = iter(range(self._replicas_here))

        def own_rows(context: tf.distribute.InputContext) -> tf.Tensor:
            place = next(places)
            own = [parts[place] if len(parts) > 1 else parts[0] for parts in shapes]
            replica = int(context.replica_id_in_sync_group)
            return tf.constant(part_shapes.known_rows(own, replica, self._replicas))

        rows = self._strategy.experimental_distribute_values_from_function(own_rows)
        (table,) = self._run("shapes", self._sums, [rows])
        return [part_shapes.shapes_in(table[:, index].numpy()) for index in range(len(shapes))]

    def _is_its_own_mean(self, op: tf.distribute.ReduceOp, leaf: Leaf) -> bool:
        """Says whether all replicas must hold the same; plain tensors may differ between workers."""
        if op != _MEAN or leaf.axes is not None:
            return False
        if isinstance(leaf.value, tf.distribute.DistributedValues):
            return bool(isinstance(leaf.value, tf.types.experimental.distributed.Mirrored))
        return self._is_one_process

    def _is_ready(self, leaf: Leaf) -> bool:
        return leaf.is_ready and len(leaf.parts) == self._replicas_here

    def _add_elements(
        self, op: tf.distribute.ReduceOp, leaves: Sequence[Leaf]
    ) -> tuple[list[Any], list[Any]]:
        """On each replica: the sums over axes in the dtype for adding, and the numbers of elements in them.

        A number is None where each replica counts as one.
        """
        others = [leaf for leaf in leaves if not self._is_ready(leaf)]
        how = tuple((leaf.arithmetic, leaf.axes, op == _MEAN and leaf.axes is not None) for leaf in others)

        def add(*parts: Any) -> list[tuple[tf.Tensor, tf.Tensor | None]]:
            return [sum_and_count(part, *one) for part, one in zip(parts, how, strict=True)]

        found = iter(
            self._run(("elements", how), self._on_replicas(add), [self._argument(leaf) for leaf in others])
            if others
            else ()
        )
        pairs = [(leaf.value, None) if self._is_ready(leaf) else next(found) for leaf in leaves]
        return [total for total, _ in pairs], [count for _, count in pairs]

    def _argument(self, leaf: Leaf) -> Any:
        """The value in a form that a graph of its own may be given when it is called again.

        TensorFlow calls the graph that it traced for one distributed variable for others like it, with that
        variable's content.
        """
        is_distributed = isinstance(leaf.value, tf.distribute.DistributedValues)
        is_per_replica = isinstance(leaf.value, tf.types.experimental.distributed.PerReplica)
        is_variable = isinstance(leaf.parts[0], tf.Variable)
        if not tf.executing_eagerly() or not (is_variable or (is_distributed and not is_per_replica)):
            return leaf.value
        tensors = iter([tf.convert_to_tensor(part) for part in leaf.parts])
        if not is_distributed:
            return next(tensors)
        return self._strategy.experimental_distribute_values_from_function(lambda _: next(tensors))

    def _add_replicas(self, values: Sequence[Any]) -> list[tf.Tensor]:
        return list(self._run("replicas", self._sums, values)) if values else []

    def _sums(self, *values: Any) -> list[tf.Tensor]:
        return [self._plain_reduce(_SUM, value, axis=None) for value in values]

    def _on_replicas(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that runs `function` on each replica.

        Not through ``strategy.run``: that is where partial batches are weighted, and sums must not be.
        """

        def run(*values: Any) -> Any:
            with self._strategy.scope():
                return self._strategy.extended.call_for_each_replica(function, args=values)

        return run

    def _run(self, key: Any, function: Callable[..., Any], values: Sequence[Any]) -> Any:
        """Calls a function that builds a graph: in the graph that is being built, or else in one of its own.

        Args:
            key: what `function` does; together with dtypes and ranks of the values it stands for the graph.
            function: takes `values`.
            values: tensors, variables or per-replica values.
        """
        if not tf.executing_eagerly():
            return function(*values)
        firsts = [_tf_internals.per_replica_values(value)[0] for value in values]
        key = (key, *((first.dtype, first.shape.rank) for first in firsts))
        if key not in self._functions:
            # A partial, since TensorFlow's warning of too many tracings counts by code, which these share.
            function = functools.partial(function)
            self._functions[key] = tf.function(function, reduce_retracing=True, autograph=False)
        return self._functions[key](*values)

    def _once_compared(self, names: Sequence[str], totals: Sequence[Any]) -> list[Any]:
        """For graphs: the same totals; where shapes are not known, ones that wait until they are compared."""
        asked = [
            index
            for index, total in enumerate(totals)
            if not all(part.shape.is_fully_defined() for part in _tf_internals.per_replica_values(total))
        ]
        if not asked:
            return list(totals)
        table = self._shape_table(*(totals[index] for index in asked))
        compared = list(totals)
        for place, index in enumerate(asked):
            gate = part_shapes.assert_equal(names[index], table[:, place])
            compared[index] = self._on_replicas(_wait)(totals[index], gate)
        return compared

    def _shape_table(self, *values: Any) -> tf.Tensor:
        """The shapes of `values` on all replicas, the same table on each; see `part_shapes.rows_of`."""

        def rows(*parts: Any) -> tf.Tensor:
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            return part_shapes.rows_of(parts, replica, self._replicas)

        return self._plain_reduce(_SUM, self._on_replicas(rows)(*values), axis=None)


def _wait(part: Any, gate: tf.Tensor) -> tf.Tensor:
    """`part`, to be had only once `gate` was computed without an error."""
    with tf.control_dependencies([gate]):
        return tf.identity(part)
