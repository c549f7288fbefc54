"""Data sets as graphs: out of TensorFlow, to be looked at or changed, and in again."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_preempt.strategies._tf_internals.access import attribute, private_module
from tf_preempt.strategies._tf_internals.datasets import dataset_file_names, dataset_inputs, walk_dataset

# tf.data.experimental.ExternalStatePolicy.IGNORE as the number that the op takes: the graph is used in this
# process, where generators and Python functions are alive.
_IGNORE_EXTERNAL_STATE = 1

# So many steps TensorFlow writes as a graph, and looks at, in about a second.
MOST_STEPS = 2**15

# What TensorFlow leaves of the device of a Python function, which is on a task and no device of it, when it
# strips that of the task; it refuses the name when the graph is run.
_NO_DEVICE = "/device::0"

# The dtype of a tensor that is a handle, in place of the values that it stands for.
_HANDLES = (tf.resource, tf.variant)


def dataset_graph(dataset: tf.data.Dataset) -> tf.compat.v1.GraphDef:
    """The graph that builds a data set; its ``_Retval`` node takes the data set.

    Constants and arrays are copied into it.  What a function of the pipeline captured by reference
    (variables, lookup tables) is in it as a copy, too.

    Raises:
        tf.errors.OpError: the data set cannot be written as a graph, or is larger than 2 GB.
        InternalsChangedError: TensorFlow's private names have changed.
    """
    return _graph_of(attribute(dataset, "_variant_tensor", "Dataset"))


def sharded_graph(dataset: tf.data.Dataset, workers: int) -> tf.compat.v1.GraphDef:
    """The graph of what TensorFlow makes of a data set that it is to shard by policy AUTO, for worker 0.

    Under AUTO, because an explicit FILE that cannot be obeyed logs pages.

    Args:
        dataset: any; with policy AUTO or FILE in its options.
        workers: among how many it is shared.

    Raises:
        tf.errors.OpError: as for `dataset_graph`, or the data set cannot be sharded.
        InternalsChangedError: TensorFlow's private names have changed.
    """
    auto = tf.data.experimental.AutoShardPolicy.AUTO
    asked = dataset
    if dataset.options().experimental_distribute.auto_shard_policy != auto:
        # The options are above what the op is given, and AUTO in later options changes nothing.
        asked = dataset_from_graph(_without_options(dataset_graph(dataset)), dataset.element_spec)
    sharded = tf.raw_ops.AutoShardDataset(
        input_dataset=attribute(asked, "_variant_tensor", "Dataset"),
        num_workers=workers,
        index=0,
        auto_shard_policy=auto.value,
        num_replicas=workers,
        **attribute(dataset, "_flat_structure", "Dataset"),
    )
    return _graph_of(sharded)


def _without_options(graph: tf.compat.v1.GraphDef) -> tf.compat.v1.GraphDef:
    """Lets whoever reads an ``OptionsDataset`` read what that reads."""
    behind = {node.name: node.input[0] for node in graph.node if node.op == "OptionsDataset"}
    for node in graph.node:
        for index, name in enumerate(node.input):
            while name in behind:
                name = node.input[index] = behind[name]
    return graph


def _graph_of(variant: tf.Tensor) -> tf.compat.v1.GraphDef:
    serialized = tf.raw_ops.DatasetToGraphV2(
        input_dataset=variant,
        external_state_policy=_IGNORE_EXTERNAL_STATE,
        strip_device_assignment=True,
    )
    content = serialized.numpy()
    del serialized  # arrays are in it: not one copy more than is needed
    graph = tf.compat.v1.GraphDef.FromString(content)
    for nodes in (graph.node, *(function.node_def for function in graph.library.function)):
        for node in nodes:
            if node.device == _NO_DEVICE:
                node.device = ""
    return graph


def dataset_from_graph(graph: tf.compat.v1.GraphDef, element_spec: Any) -> tf.data.Dataset:
    """The data set that a graph builds.

    Args:
        graph: like that of `dataset_graph`; is empty afterwards, for the memory that its arrays took.
        element_spec: of the data set.

    Raises:
        tf.errors.OpError: the graph builds no data set.
    """
    content = graph.SerializeToString()
    graph.Clear()
    variant = tf.raw_ops.DatasetFromGraph(graph_def=content)
    return tf.data.experimental.from_variant(variant, element_spec)


def standing_in_for(dataset: tf.data.Dataset, rebuilt: tf.data.Dataset) -> tf.data.Dataset:
    """`rebuilt`, with the options of `dataset`, and `dataset` as what it reads from.

    Who walks it meets the data set that the user built; and what that holds (the Python function of a
    generator) lives as long as the new one.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    dataset_ops = private_module("tensorflow.python.data.ops.dataset_ops")
    unary = attribute(dataset_ops, "UnaryUnchangedStructureDataset", "dataset_ops")
    return _stand_in_class(unary)(dataset, tf.data.experimental.to_variant(rebuilt))


_stand_in: Any = None


def _stand_in_class(unary: Any) -> Any:
    global _stand_in
    if _stand_in is None:

        class StandInDataset(unary):  # type: ignore[misc]
            """Reads what its variant says, in place of its input."""

            def __init__(self, input_dataset: tf.data.Dataset, variant: tf.Tensor) -> None:
                self._input_dataset = input_dataset
                super().__init__(input_dataset, variant)

        _stand_in = StandInDataset
    return _stand_in


def constant_bytes(dataset: tf.data.Dataset) -> int:
    """How many bytes of arrays a data set holds, in its sources and in what its functions captured.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    return sum(int(tf.size(one)) * one.dtype.size for one in held_arrays(dataset))


def held_arrays(dataset: tf.data.Dataset) -> list[tf.Tensor]:
    """The tensors that a data set holds, in its sources and in what its functions captured, each once.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    held = {}
    for node in walk_dataset(dataset):
        for tensor in [*(getattr(node, "_tensors", None) or ()), *_captured(node)]:
            if isinstance(tensor, tf.Tensor) and tensor.dtype not in _HANDLES:
                held[id(tensor)] = tensor
    return list(held.values())


def _captured(node: tf.data.Dataset) -> list[Any]:
    found = []
    for wrapper in attribute(node, "_functions", "Dataset")():
        function = attribute(wrapper, "function", "StructuredFunctionWrapper")
        found += list(attribute(function, "captured_inputs", "ConcreteFunction"))
    return found


def dataset_tree(dataset: tf.data.Dataset) -> list[tf.data.Dataset]:
    """The data sets that `dataset` is built of, each as often as it is read from, as a graph lists them.

    In depth-first order, consumers before what they read.

    Args:
        dataset: with at most `MOST_STEPS` of `steps_in_graph`, for the list is as long as that.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    found, waiting = [], [dataset]
    while waiting:
        one = waiting.pop()
        found.append(one)
        waiting += reversed(_read_by(one))
    return found


def _read_by(dataset: tf.data.Dataset) -> list[tf.data.Dataset]:
    names = dataset_file_names(dataset)
    return dataset_inputs(dataset) or ([] if names is None else [names])


def steps_in_graph(dataset: tf.data.Dataset) -> int:
    """How many data sets the graph of `dataset` has: each one as often as it is read.

    That doubles with each zip of a data set with itself; it is counted in the time that the steps take.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    steps: dict[tf.data.Dataset, int] = {}
    waiting = [dataset]
    while waiting:
        inputs = _read_by(waiting[-1])
        unknown = [one for one in inputs if one not in steps]
        if unknown:
            waiting += unknown
        else:
            steps[waiting.pop()] = 1 + sum(steps[one] for one in inputs)
    return steps[dataset]


def computed_batch_size(dataset: tf.data.Dataset) -> int | None:
    """Rows of a whole batch, as the steps that a data set was built of say; None if they do not.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    variant = attribute(dataset, "_variant_tensor", "Dataset")
    try:
        rows = int(tf.raw_ops.ComputeBatchSize(input_dataset=variant))
    except tf.errors.InvalidArgumentError:
        return None
    return rows if rows > 0 else None
