"""Where TensorFlow cut a data set that it was told to shard: read from the graph that it made of it.

TensorFlow puts a ``ShardDataset`` node with an attribute that users' own ``shard`` has not: before each
reader of files when it shards by files, at the very end when it shards by elements.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_preempt.strategies._tf_internals.dataset_graphs import dataset_from_graph
from tf_preempt.strategies.sharding.graph_nodes import copy_of, element_types, node_name

# What TensorFlow leaves behind the cut when it shards by elements.
_BEHIND_ELEMENTS = ("PrefetchDataset", "OptionsDataset", "RebatchDataset", "FinalizeDataset", "ModelDataset")

# As many names of files are gone through at most to count them.
_COUNT_UP_TO = 100_000


def file_lists(graph: Any) -> list[str]:
    """The nodes that give the names of files, if TensorFlow divides those among the workers.

    Args:
        graph: a ``GraphDef`` that TensorFlow made under policy AUTO.

    Returns:
        A name for each reader of files; none if elements are divided, also where TensorFlow has begun to
        divide files before it met a source that has none.
    """
    by_name = {node.name: node for node in graph.node}
    cuts = [node for node in graph.node if _is_cut(node)]
    if any(node.name == _last_step(graph, by_name).name for node in cuts):
        return []
    return [node_name(node.input[0]) for node in cuts]


def _is_cut(node: Any) -> bool:
    return node.op == "ShardDataset" and bool(node.attr["require_non_empty"].b)


def _last_step(graph: Any, by_name: dict[str, Any]) -> Any:
    node = next(one for one in graph.node if one.op == "_Retval")
    while node.op == "_Retval" or node.op.startswith(_BEHIND_ELEMENTS):
        node = by_name[node_name(node.input[0])]
    return node


def element_count(graph: Any, name: str) -> int | None:
    """How many elements the data set of one node of a graph has; None: endless, or too many to count.

    Args:
        graph: a ``GraphDef`` that builds a data set.
        name: of the node.
    """
    node = next(one for one in graph.node if one.name == name)
    components = element_types(node)
    if components is None:
        return None
    types, shapes = components
    spec = tuple(
        tf.TensorSpec(tf.TensorShape(shape), dtype)
        for shape, dtype in zip(shapes.list.shape, types.list.type, strict=True)
    )
    part = copy_of(graph)
    next(one for one in part.node if one.op == "_Retval").input[:] = [name]
    names = dataset_from_graph(part, spec)
    count = int(names.cardinality())
    if count == tf.data.UNKNOWN_CARDINALITY:
        counted = int(names.take(_COUNT_UP_TO).reduce(0, lambda found, *_: found + 1))
        return counted if counted < _COUNT_UP_TO else None
    return count if count >= 0 else None
