"""Seeds for everything in a data set's graph that orders or chooses elements by chance and has none.

* A shuffle or a source of random numbers takes its two seeds as inputs.
* ``tf.random.shuffle`` in a function of ``map`` and its like is handed numbers (`graph_draws`).
* Chance in a function where no number can be handed in (a ``filter``, a function called by a function, a data
  set that a function builds) gets fixed seeds, and each iteration is then the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tf_preempt.strategies.sharding import graph_nodes
from tf_preempt.strategies.sharding.graph_draws import hand_in_draws

_DECIDES = ("FilterDataset", "ParallelFilterDataset", "TakeWhileDataset")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seeded:
    """What was given seeds.

    Args:
        anew: how many orders are the same wherever the graph runs, and new in each iteration if they were.
        repeated: how many are the same in each iteration, too.
    """

    anew: int
    repeated: int


def unseeded_nodes(graph: Any) -> list[Any]:
    """Shuffles and random sources without a seed, outside functions, in the order of `dataset_nodes`."""
    among = graph_nodes.constants(graph.node)
    return [node for node in graph_nodes.dataset_nodes(graph) if graph_nodes.is_unseeded(node, among)]


def seed_everything(
    graph: Any, of_nodes: Sequence[graph_nodes.Seeds], of_functions: graph_nodes.Seeds
) -> Seeded:
    """Gives every order in `graph` that is left to chance a seed, in place.

    Args:
        graph: a ``GraphDef`` that builds a data set.
        of_nodes: two seeds, not both 0, for each of `unseeded_nodes`, in their order.
        of_functions: likewise; each function gets its own from them.
    """
    anew, repeated = 0, 0
    for node, seeds in zip(unseeded_nodes(graph), of_nodes, strict=True):
        graph_nodes.set_seed_inputs(graph.node, node, seeds)
        graph_nodes.forget_generator(graph.node, node)
        anew += 1
    anew += hand_in_draws(graph, of_functions)
    for number, function in enumerate(graph_nodes.functions_in_order(graph)):
        repeated += _fix(graph, function, (of_functions[0], of_functions[1] + number))
    return Seeded(anew=anew, repeated=repeated)


def repeating(graph: Any) -> int:
    """How many orders `seed_everything` would make the same in each iteration; `graph` stays as it is.

    Args:
        graph: a ``GraphDef`` that builds a data set.
    """
    light = graph_nodes.without_arrays(graph)
    any_seeds = (1, 1)
    return seed_everything(light, [any_seeds] * len(unseeded_nodes(light)), any_seeds).repeated


def _fix(graph: Any, function: Any, seeds: graph_nodes.Seeds) -> int:
    """Sets the seeds of what is left to chance in one function; says how many there were."""
    among = graph_nodes.constants(function.node_def)
    sources = [node for node in function.node_def if graph_nodes.is_unseeded(node, among)]
    chances = graph_nodes.random_shuffles(function)
    if function.signature.name in _predicates(graph):
        chances = [node for node in function.node_def if graph_nodes.has_no_seed(node)]
    for node in sources:
        graph_nodes.set_seed_inputs(function.node_def, node, seeds, suffix=":output:0")
    for number, node in enumerate(chances):
        node.attr["seed"].i, node.attr["seed2"].i = seeds[0], seeds[1] + number
    return len(sources) + len(chances)


def _predicates(graph: Any) -> set[str]:
    return {node.attr["predicate"].func.name for node in graph.node if node.op.startswith(_DECIDES)}
