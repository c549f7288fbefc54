"""How values are added over replicas and workers.

A reduction has three steps.  Each replica adds up its own elements and counts them.  Where nothing else says
so, the replicas tell each other the shapes of what they hold.  Then the sums, and the counts, are added over
replicas.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_preempt.strategies import _tf_internals
from tf_preempt.strategies.reduction import part_shapes
from tf_preempt.strategies.reduction.leaf import Leaf, finish, sum_and_count

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
            ConfigError: parts differ in shape, or a sum does not fit into its dtype, and it is known now.
        """
        results: list[Any] = [None] * len(leaves)
        to_add = []
        for index, leaf in enumerate(leaves):
            if leaf.is_slices:
                results[index] = self._plain_reduce(op, leaf.value, axis=None)
            elif op == _MEAN and leaf.axes is None and self._is_same_everywhere(leaf.value):
                results[index] = tf.cast(tf.convert_to_tensor(leaf.parts[0]), leaf.arithmetic.result)
            else:
                to_add.append(index)
        for index, result in zip(to_add, self._add_all(op, [leaves[i] for i in to_add]), strict=True):
            results[index] = result
        return results

    def _add_all(self, op: tf.distribute.ReduceOp, leaves: Sequence[Leaf]) -> list[tf.Tensor]:
        totals, counts = self._add_elements(op, leaves)
        totals = self._with_equal_shapes([leaf.name for leaf in leaves], totals)
        sums = self._add_replicas([*totals, *(count for count in counts if count is not None)])
        counted = iter(sums[len(totals) :])
        return [
            finish(leaf, op, total, self._replicas if count is None else next(counted))
            for leaf, total, count in zip(leaves, sums[: len(totals)], counts, strict=True)
        ]

    def _is_same_everywhere(self, value: Any) -> bool:
        """Says whether all replicas must hold the same; plain tensors may differ between workers."""
        if isinstance(value, tf.distribute.DistributedValues):
            return bool(isinstance(value, tf.types.experimental.distributed.Mirrored))
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
        def add(*values: Any) -> list[tf.Tensor]:
            return [self._plain_reduce(_SUM, value, axis=None) for value in values]

        return list(self._run("replicas", add, values)) if values else []

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

    def _with_equal_shapes(self, names: Sequence[str], totals: Sequence[Any]) -> list[Any]:
        """The same totals, if each has one shape on all replicas; in a graph, ones that wait for the answer.

        Raises:
            ConfigError: it is known already that shapes differ.
        """
        settled, asked, eagerly = list(totals), [], tf.executing_eagerly()
        for index, (name, total) in enumerate(zip(names, totals, strict=True)):
            shapes = [part.shape for part in _tf_internals.per_replica_values(total)]
            if part_shapes.must_ask(shapes, eagerly=eagerly, one_process=self._is_one_process):
                asked.append(index)
            else:
                part_shapes.check_equal(name, shapes)
        if not asked or self._replicas == 1:
            return settled
        table = self._run("shapes", self._shape_table, [totals[index] for index in asked])
        for place, index in enumerate(asked):
            if eagerly:
                part_shapes.check_equal(names[index], part_shapes.shapes_in(table[:, place].numpy()))
            else:
                gate = part_shapes.assert_equal(names[index], table[:, place])
                settled[index] = self._on_replicas(_wait)(totals[index], gate)
        return settled

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
