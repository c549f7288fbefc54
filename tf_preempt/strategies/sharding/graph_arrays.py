"""A data set's graph without the arrays in it: they stay where the user's data set holds them.

A graph copies every array.  Built from such a graph, a second data set would need as much memory again.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_preempt.strategies.sharding import graph_nodes

# Smaller ones are not worth the comparison.
_WORTH_IT_BYTES = 2**16

_numbers = itertools.count()


def take_out_arrays(graph: Any, held: Sequence[tf.Tensor]) -> dict[str, tf.Tensor]:
    """Makes a placeholder of each constant that is one of the tensors `held`, in place.

    Args:
        graph: a ``GraphDef`` that builds a data set.
        held: eager tensors on the host, of any dtype and shape; strings are passed over.

    Returns:
        What to feed to the placeholders, by their names.
    """
    found = {}
    for node in graph.node:
        same = _same_tensor(node.attr["value"].tensor, held) if node.op == "Const" else None
        if same is not None:
            found[node.name] = same
            node.op = "Placeholder"
            del node.attr["value"]
    return found


def _same_tensor(content: Any, held: Sequence[tf.Tensor]) -> tf.Tensor | None:
    """By bytes, not by value: a NaN must be the same NaN."""
    raw = np.frombuffer(content.tensor_content, np.uint8)
    dtype, shape = tf.as_dtype(content.dtype), tf.TensorShape(content.tensor_shape)
    if raw.size < _WORTH_IT_BYTES or dtype == tf.string:
        return None
    alike = [one for one in held if one.dtype == dtype and one.shape == shape]
    return next((one for one in alike if np.array_equal(raw, _bytes_of(one))), None)


def _bytes_of(tensor: tf.Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.ascontiguousarray(tensor.numpy()).reshape(-1).view(np.uint8)


def dataset_with_arrays(graph: Any, arrays: dict[str, tf.Tensor], element_spec: Any) -> tf.data.Dataset:
    """The data set that a graph builds, with `arrays` in place of its placeholders; they are not copied.

    Args:
        graph: a ``GraphDef``, after `take_out_arrays`; functions in it get other names.
        arrays: what that gave.
        element_spec: of the data set.

    Raises:
        tf.errors.OpError: the graph builds no data set.
    """
    _rename_functions(graph)
    (result,) = [node for node in graph.node if node.op == "_Retval"]
    name = graph_nodes.node_name(result.input[0])
    graph.node.remove(result)

    def build(*given: tf.Tensor) -> Any:
        fed = dict(zip(arrays, given, strict=True))
        return tf.graph_util.import_graph_def(graph, input_map=fed, return_elements=[f"{name}:0"])

    signature = [tf.TensorSpec(array.shape, array.dtype) for array in arrays.values()]
    (variant,) = tf.compat.v1.wrap_function(build, signature)(*arrays.values())
    return tf.data.experimental.from_variant(variant, element_spec)


def _rename_functions(graph: Any) -> None:
    """Names of functions are known to the whole process, where the user's data set has them already."""
    number = next(_numbers)
    new = {}
    for function in graph.library.function:
        name = function.signature.name
        new[name] = function.signature.name = f"{name}_in_order_{number}"
    for nodes in (graph.node, *(function.node_def for function in graph.library.function)):
        for node in nodes:
            node.op = new.get(node.op, node.op)
            for value in node.attr.values():
                for called in (value.func, *value.list.func):
                    if called.name in new:
                        called.name = new[called.name]
