"""What a data set's graph consists of, and small changes of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from tf_preempt.strategies._tf_internals.orders import is_free

# By op, which inputs are the two seeds.
SEED_INPUTS: Mapping[str, tuple[int, int]] = {
    "ShuffleDataset": (2, 3),
    "ShuffleDatasetV3": (2, 3),
    "ShuffleAndRepeatDataset": (2, 3),
    "ShuffleAndRepeatDatasetV2": (2, 3),
    "RandomDataset": (0, 1),
    "RandomDatasetV2": (0, 1),
}

# By op, which input is the generator that gives each iteration its seeds.
_GENERATOR_INPUT: Mapping[str, int] = {
    "ShuffleDatasetV3": 4,
    "ShuffleAndRepeatDatasetV2": 5,
    "RandomDatasetV2": 2,
}

# The largest node that is copied whole where arrays are left out; constants that are seeds are far smaller.
_SMALL_NODE_BYTES = 1024

Seeds = tuple[int, int]


def dataset_nodes(graph: Any) -> list[Any]:
    """The nodes that are data sets, in depth-first order, consumers first.

    TensorFlow writes a data set that is read twice as two nodes.
    """
    by_name = {node.name: node for node in graph.node}
    waiting = [by_name[node_name(node.input[0])] for node in graph.node if node.op == "_Retval"]
    found, seen = [], set()
    while waiting:
        node = waiting.pop()
        if node.name in seen:
            continue
        seen.add(node.name)
        if _is_dataset(node):
            found.append(node)
        waiting += [by_name[node_name(name)] for name in reversed(node.input) if name[0] != "^"]
    return found


def node_name(of_input: str) -> str:
    """The node whose output an input of another node names."""
    return of_input.partition(":")[0]


def _is_dataset(node: Any) -> bool:
    return "Dataset" in node.op and element_types(node) is not None


def element_types(node: Any) -> tuple[Any, Any] | None:
    """The types and the shapes of a data set's components, as attributes of nodes; None if it has none."""
    types = next((node.attr[name] for name in ("output_types", "Toutput_types") if name in node.attr), None)
    return None if types is None or "output_shapes" not in node.attr else (types, node.attr["output_shapes"])


def constants(nodes: Any) -> dict[str, Any]:
    """The constants among some nodes, by name."""
    return {node.name: node for node in nodes if node.op == "Const"}


def is_unseeded(node: Any, among: Mapping[str, Any]) -> bool:
    """Says whether a node is a shuffle or a random source whose seeds are both 0.

    Args:
        node: of a graph or of a function.
        among: the constants beside it.
    """
    if node.op not in SEED_INPUTS:
        return False
    seeds = [among.get(node_name(node.input[index])) for index in SEED_INPUTS[node.op]]
    return all(seed is not None and not tf.make_ndarray(seed.attr["value"].tensor) for seed in seeds)


def set_seed_inputs(nodes: Any, node: Any, seeds: Seeds, suffix: str = "") -> None:
    """Gives a shuffle or a random source its seeds, as new constants, for an old one may serve others too.

    Args:
        nodes: of the graph or the function that `node` is in.
        node: with its op among `SEED_INPUTS`.
        seeds: not both 0.
        suffix: what names of outputs end in, in functions.
    """
    for index, seed in zip(SEED_INPUTS[node.op], seeds, strict=True):
        constant = nodes.add(name=f"{node.name}/agreed_seed_{index}", op="Const")
        constant.attr["dtype"].type = tf.int64.as_datatype_enum
        constant.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(seed, tf.int64))
        node.input[index] = constant.name + suffix


def forget_generator(nodes: Any, node: Any) -> None:
    """Gives a node its own generator of seeds.

    The graph of a living data set names the generator that this uses, with seeds of its own.
    """
    if node.op in _GENERATOR_INPUT:
        name = f"{node.name}/own_generator"
        nodes.add(name=name, op="DummySeedGenerator")
        node.input[_GENERATOR_INPUT[node.op]] = name


def find_function(graph: Any, name: str) -> Any:
    """The function of that name in a graph's library; None if there is none."""
    return next((one for one in graph.library.function if one.signature.name == name), None)


def functions_in_order(graph: Any) -> list[Any]:
    """The functions that a graph uses, in an order that is the same in all processes.

    The library itself is in the order of a hash table.
    """
    found: dict[str, Any] = {}
    waiting = list(reversed(graph.node))
    while waiting:
        node = waiting.pop()
        for name in _functions_of(node):
            function = None if name in found else find_function(graph, name)
            if function is not None:
                found[name] = function
                waiting += reversed(function.node_def)
    return list(found.values())


def _functions_of(node: Any) -> Iterator[str]:
    yield node.op  # a function can be called like an op
    for _, value in sorted(node.attr.items()):
        yield from (value.func.name, *(one.name for one in value.list.func))


def drop_unused_functions(graph: Any) -> None:
    """So that nobody takes what is in them for something that is run."""
    kept = [copy_of(one) for one in functions_in_order(graph)]
    del graph.library.function[:]
    graph.library.function.extend(kept)


def give_in_order(graph: Any) -> None:
    """Lets parallel steps that were told to give elements as they are ready keep the order instead."""
    for nodes in (graph.node, *(function.node_def for function in graph.library.function)):
        for node in nodes:
            if is_free(node.op, node.attr):
                node.attr["deterministic"].s = b"true"


def gives_in_any_order(graph: Any) -> bool:
    """Says whether a step of a data set, outside its functions, was told to give first what is ready."""
    return any(is_free(node.op, node.attr) for node in graph.node)


def random_shuffles(function: Any) -> list[Any]:
    """The ``tf.random.shuffle`` without a seed in one function."""
    return [node for node in function.node_def if node.op == "RandomShuffle" and has_no_seed(node)]


def has_no_seed(node: Any) -> bool:
    """Says whether an op takes its seeds as attributes, and was given none."""
    return [node.attr[name].i for name in ("seed", "seed2") if name in node.attr] == [0, 0]


def copy_of(message: Any) -> Any:
    """A protocol buffer with the same content."""
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def without_arrays(graph: Any) -> Any:
    """A copy of a graph to look at, in which large constants have no value.

    Args:
        graph: a ``GraphDef``; of any size, for arrays are not copied.
    """
    light = type(graph)()
    _copy_without_arrays(graph.node, light.node)
    for function in graph.library.function:
        copied = light.library.function.add()
        copied.signature.CopyFrom(function.signature)
        _copy_without_arrays(function.node_def, copied.node_def)
    return light


def _copy_without_arrays(nodes: Any, to: Any) -> None:
    for node in nodes:
        if node.op == "Const" and node.ByteSize() > _SMALL_NODE_BYTES:
            to.add(name=node.name, op="Placeholder")
        else:
            to.add().CopyFrom(node)
