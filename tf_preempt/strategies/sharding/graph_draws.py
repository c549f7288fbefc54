"""Shuffles inside a function that follow numbers handed in from outside.

``tf.random.shuffle`` in a function of ``map`` (as Keras orders arrays) keeps its state where nobody can reach
it, and given a seed, it would start over in each iteration.  So what the function reads is zipped with a
source of random numbers, which has seeds, draws anew in each iteration and is part of an iterator's state;
and the function shuffles by the number that it gets.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_preempt.strategies._tf_internals.dataset_graphs import dataset_graph
from tf_preempt.strategies.sharding import graph_nodes

# Functions of these get each element's components, and may be handed one more.
_GIVES_ELEMENTS = (
    "MapDataset",
    "ParallelMapDataset",
    "FlatMapDataset",
    "InterleaveDataset",
    "ParallelInterleave",
)
_DRAW = "agreed_draw"


def hand_in_draws(graph: Any, seeds: graph_nodes.Seeds) -> int:
    """Lets unseeded shuffles in functions of ``map`` and its like follow a seeded source, in place.

    Args:
        graph: a ``GraphDef`` that builds a data set.
        seeds: not both 0; each node gets its own from them.

    Returns:
        How many shuffles there were.
    """
    candidates = [node for node in graph.node if node.op.startswith(_GIVES_ELEMENTS) and "f" in node.attr]
    done = sum(_hand_in(graph, node, (seeds[0], seeds[1] + number)) for number, node in enumerate(candidates))
    graph_nodes.drop_unused_functions(graph)
    return done


def _hand_in(graph: Any, node: Any, seeds: graph_nodes.Seeds) -> int:
    function = graph_nodes.find_function(graph, node.attr["f"].func.name)
    before = next(one for one in graph.node if one.name == graph_nodes.node_name(node.input[0]))
    components = graph_nodes.element_types(before)
    if function is None or components is None or not graph_nodes.random_shuffles(function):
        return 0
    node.input[0] = _zipped_with_draws(graph, node, components, seeds)
    changed = graph.library.function.add()
    changed.CopyFrom(function)
    changed.signature.name = f"{function.signature.name}_by_draw_{node.name.replace('/', '_')}"
    changed.arg_attr.clear()  # by position, and positions change
    changed.resource_arg_unique_id.clear()
    node.attr["f"].func.name = changed.signature.name
    captured = len(node.attr["Targuments"].list.type)
    _insert_argument(changed.signature.input_arg, len(changed.signature.input_arg) - captured)
    shuffles = graph_nodes.random_shuffles(changed)
    for number, shuffle in enumerate(shuffles):
        _shuffle_by_draw(graph, shuffle, number)
    return len(shuffles)


def _insert_argument(arguments: Any, position: int) -> None:
    """Elements' components come first, what the function captured comes last."""
    after = [graph_nodes.copy_of(argument) for argument in arguments[position:]]
    del arguments[position:]
    arguments.add(name=_DRAW, type=tf.int64.as_datatype_enum)
    arguments.extend(after)


def _zipped_with_draws(graph: Any, node: Any, components: tuple[Any, Any], seeds: graph_nodes.Seeds) -> str:
    """A new node, by name: what `node` reads, with one more component."""
    template = dataset_graph(tf.data.Dataset.random(1, rerandomize_each_iteration=True))
    (source_of_draws,) = graph_nodes.dataset_nodes(template)
    prefix = f"{node.name}/agreed_draws/"
    for one in template.node:
        if one.op != "_Retval":
            added = graph.node.add()
            added.CopyFrom(one)
            added.name = prefix + one.name
            added.input[:] = [prefix + name for name in one.input]
    draws = next(one for one in graph.node if one.name == prefix + source_of_draws.name)
    graph_nodes.set_seed_inputs(graph.node, draws, seeds)
    graph_nodes.forget_generator(graph.node, draws)
    both = graph.node.add(name=f"{node.name}/with_draws", op="ZipDataset", input=[node.input[0], draws.name])
    both.attr["N"].i = 2
    of_draws = graph_nodes.element_types(draws) or ()
    for name, before, added in zip(("output_types", "output_shapes"), components, of_draws, strict=True):
        both.attr[name].CopyFrom(before)
        both.attr[name].list.MergeFrom(added.list)
    return str(both.name)


def _shuffle_by_draw(graph: Any, shuffle: Any, number: int) -> None:
    """Turns a ``RandomShuffle`` into a call; the name of its output stays what it was."""
    dtype = tf.as_dtype(shuffle.attr["T"].type)
    name = _add_shuffle_function(graph, dtype, number)
    shuffle.ClearField("attr")
    shuffle.op = "PartitionedCall"
    shuffle.input.insert(1, _DRAW)
    shuffle.attr["f"].func.name = name
    shuffle.attr["Tin"].list.type.extend([dtype.as_datatype_enum, tf.int64.as_datatype_enum])
    shuffle.attr["Tout"].list.type.append(dtype.as_datatype_enum)


def _add_shuffle_function(graph: Any, dtype: tf.DType, number: int) -> str:
    """One for each dtype and place in its function, so that two shuffles of one element differ."""
    name = f"tf_preempt_shuffle_{dtype.name}_{number}"
    if graph_nodes.find_function(graph, name) is None:

        def shuffle(values: tf.Tensor, draw: tf.Tensor) -> tf.Tensor:
            return tf.random.experimental.stateless_shuffle(values, seed=tf.stack([draw, number]))

        traced = tf.function(shuffle).get_concrete_function(
            tf.TensorSpec(None, dtype), tf.TensorSpec((), tf.int64)
        )
        graph.library.function.extend(traced.graph.as_graph_def().library.function)
        graph.library.function.append(traced.function_def)
        graph.library.function[-1].signature.name = name
    return name
