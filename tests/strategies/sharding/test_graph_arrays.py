from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tf_preempt.strategies._tf_internals import dataset_graphs
from tf_preempt.strategies.sharding.graph_arrays import dataset_with_arrays, take_out_arrays

# Large enough to be taken out.
ROWS = 2**14


def array(dtype: Any, last: float = 1) -> np.ndarray[Any, Any]:
    found = np.arange(ROWS * 2).reshape(ROWS, 2).astype(dtype)
    found[-1, -1] = last
    return found


def parts(dataset: tf.data.Dataset) -> tuple[Any, dict[str, tf.Tensor], list[tf.Tensor]]:
    graph = dataset_graphs.dataset_graph(dataset)
    held = dataset_graphs.held_arrays(dataset)
    return graph, take_out_arrays(graph, held), held


def rows(dataset: tf.data.Dataset) -> list[Any]:
    return [np.asarray(leaf).tolist() for element in dataset.take(3) for leaf in tf.nest.flatten(element)]


@pytest.mark.parametrize(
    "dtype", [np.float32, np.float64, np.int64, np.complex64, tf.bfloat16.as_numpy_dtype]
)
def test_array_is_taken_out_and_shared(dtype: Any) -> None:
    dataset = tf.data.Dataset.from_tensor_slices((array(dtype), array(dtype, last=2)))
    graph, arrays, held = parts(dataset)
    assert {id(one) for one in arrays.values()} == {id(one) for one in held}
    assert len(arrays) == 2
    assert graph.ByteSize() < 10_000
    built = dataset_with_arrays(graph, arrays, dataset.element_spec)
    assert rows(built) == rows(dataset)
    assert built.element_spec == dataset.element_spec


def test_what_a_function_captured_is_taken_out() -> None:
    captured = tf.constant(array(np.float32))
    dataset = tf.data.Dataset.range(5).map(lambda index: tf.gather(captured, index))
    graph, arrays, _ = parts(dataset)
    assert [id(one) for one in arrays.values()] == [id(captured)]
    assert rows(dataset_with_arrays(graph, arrays, dataset.element_spec)) == rows(dataset)


def test_not_a_number_is_the_same_number() -> None:
    _, arrays, _ = parts(tf.data.Dataset.from_tensor_slices(array(np.float32, last=np.nan)))
    assert len(arrays) == 1


def test_another_array_of_the_same_shape_is_not_taken() -> None:
    graph = dataset_graphs.dataset_graph(tf.data.Dataset.from_tensor_slices(array(np.float32)))
    assert not take_out_arrays(graph, [tf.constant(array(np.float32, last=2))])


@pytest.mark.parametrize(
    "dataset",
    [
        lambda: tf.data.Dataset.range(5).batch(2),
        lambda: tf.data.Dataset.from_tensor_slices([["a" * 100_000, "b"]]),
    ],
)
def test_small_constants_and_strings_stay(dataset: Any) -> None:
    graph, arrays, _ = parts(dataset())
    assert not arrays
    assert rows(dataset_with_arrays(graph, arrays, dataset().element_spec)) == rows(dataset())


def test_functions_get_names_of_their_own() -> None:
    """Two of one name, changed after they were written, live in one process."""
    dataset = tf.data.Dataset.range(3).map(lambda x: x + 5)
    found = []
    for number in (7, 9):
        graph = dataset_graphs.dataset_graph(dataset)
        (constant,) = [
            node for function in graph.library.function for node in function.node_def if node.op == "Const"
        ]
        constant.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(number, tf.int64))
        found.append(dataset_with_arrays(graph, {}, dataset.element_spec))
    assert [rows(one) for one in (*found, dataset)] == [[7, 8, 9], [9, 10, 11], [5, 6, 7]]
