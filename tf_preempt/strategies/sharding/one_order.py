"""One order on all workers for a data set whose order is left to chance.

Sharding by elements lets every worker run the whole pipeline and keep each n-th element.  That divides the
data only if all workers see it in one order.  So a data set with a shuffle without a seed, or with parallel
steps that give what is ready first, is built again from its graph: with seeds that the workers have agreed
on, and in order.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import tensorflow as tf

from tf_preempt.strategies._tf_internals import dataset_graphs
from tf_preempt.strategies._tf_internals.orders import has_unseeded_shuffle
from tf_preempt.strategies.sharding import graph_arrays, graph_nodes, graph_seeds

# A graph with its arrays, at most 2 GB, stands in memory several times until they are taken out of it.
_LARGEST_BYTES = 2**30

# What a graph holds a copy of, so that a change of the original would no longer be seen.
_COPIED_STATE = ("VarHandleOp", "MutableHashTable", "MutableDenseHashTable")

# Attribute of a user's data set: a `_Rebuilt`, so that all its iterators share one row of seeds.
_REBUILT = "_tf_preempt_in_agreed_order"

# The seeds of shuffles that two data sets have in common, as take(n) and skip(n) of one shuffled data set do:
# both must see one order.
_agreed: weakref.WeakKeyDictionary[Any, tuple[int, int]] = weakref.WeakKeyDictionary()


class _Rebuilt(NamedTuple):
    dataset: tf.data.Dataset
    repeated: bool


class Reordering:
    """A data set that is ordered by chance, on its way to an agreed order.

    Args:
        dataset: the user's.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """

    def __init__(self, dataset: tf.data.Dataset) -> None:
        self._dataset = dataset
        self._graph: Any = None
        before: _Rebuilt | None = getattr(dataset, _REBUILT, None)
        self.obstacle: str | None = self._look() if before is None else None
        """Why it cannot be built again; None if it can."""
        self.repeated = before.repeated if before is not None else self._repeats()
        """Whether what its functions do by chance will be the same in each iteration."""

    def _look(self) -> str | None:
        """Says what is in the way, and keeps the graph only if nothing is: it is as large as its arrays."""
        size = dataset_graphs.constant_bytes(self._dataset)
        if size > _LARGEST_BYTES:
            return f"the data set holds {size / 2**20:.0f} MiB of arrays, too much to build it again"
        steps = dataset_graphs.steps_in_graph(self._dataset)
        if steps > dataset_graphs.MOST_STEPS:
            return f"the data set has {steps} steps, counted as often as they are read, too many"
        try:
            graph = dataset_graphs.dataset_graph(self._dataset)
        except tf.errors.OpError as error:
            return f"TensorFlow cannot write the data set as a graph ({error.message[:200]})"
        if any(node.op.startswith(_COPIED_STATE) for node in graph.node):
            return "its functions use a variable or a table that may change"
        self._graph = graph
        return None

    def _repeats(self) -> bool:
        return self._graph is not None and graph_seeds.repeating(self._graph) > 0

    def apply(self, draw: int) -> tf.data.Dataset:
        """The data set in the agreed order; the same one each time it is asked for.

        To be called only where no worker has an `obstacle`.

        Args:
            draw: a positive number, the same on all workers.

        Raises:
            tf.errors.OpError: TensorFlow does not take the changed graph.
            InternalsChangedError: TensorFlow's private names have changed.
        """
        if getattr(self._dataset, _REBUILT, None) is None:
            rebuilt = _Rebuilt(dataset=self._rebuilt(draw), repeated=self.repeated)
            setattr(self._dataset, _REBUILT, rebuilt)
            self._graph = None
        found: _Rebuilt = getattr(self._dataset, _REBUILT)
        return found.dataset

    def _rebuilt(self, draw: int) -> tf.data.Dataset:
        graph_seeds.seed_everything(self._graph, self._seeds_of_nodes(draw), (draw, 1))
        graph_nodes.give_in_order(self._graph)
        arrays = graph_arrays.take_out_arrays(self._graph, dataset_graphs.held_arrays(self._dataset))
        rebuilt = graph_arrays.dataset_with_arrays(self._graph, arrays, self._dataset.element_spec)
        return dataset_graphs.standing_in_for(self._dataset, rebuilt)

    def _seeds_of_nodes(self, draw: int) -> list[tuple[int, int]]:
        in_graph = graph_seeds.unseeded_nodes(self._graph)
        built = [node for node in dataset_graphs.dataset_tree(self._dataset) if has_unseeded_shuffle(node)]
        if len(built) != len(in_graph):  # a step that Python does not show: nothing to share with others
            return [(draw, number + 2) for number in range(len(in_graph))]
        return agreed_seeds(built, draw)


def agreed_seeds(shuffles: list[Any], draw: int) -> list[tuple[int, int]]:
    """Two seeds for each shuffle: those that it was given before, or new ones.

    Args:
        shuffles: what is to be seeded; the same one may come more than once, and then gets others each time.
        draw: a positive number from which new seeds are made.
    """
    seeds: list[tuple[int, int]] = []
    times: dict[int, int] = {}
    for shuffle in shuffles:
        first, second = _agreed.setdefault(shuffle, (draw, len(seeds) + 2))
        again = times[id(shuffle)] = times.get(id(shuffle), -1) + 1
        seeds.append((first, second + (again << 32)))
    return seeds
