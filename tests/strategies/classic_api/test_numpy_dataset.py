from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tf_preempt import errors
from tf_preempt.strategies.classic_api.numpy_dataset import numpy_dataset

Pair = collections.namedtuple("Pair", ["x", "y"])


def rows_of(numpy_input: Any) -> list[Any]:
    return list(numpy_dataset(numpy_input).as_numpy_iterator())


def test_rows_of_one_array() -> None:
    np.testing.assert_array_equal(rows_of(np.arange(6).reshape(3, 2)), [[0, 1], [2, 3], [4, 5]])


def test_structures_stay_as_they_are() -> None:
    x, y = np.arange(2), np.array([1.5, 2.5])
    assert rows_of((x, {"y": y, "a": Pair(x, y)})) == [
        (0, {"y": 1.5, "a": Pair(0, 1.5)}),
        (1, {"y": 2.5, "a": Pair(1, 2.5)}),
    ]


def test_list_of_arrays_is_stacked() -> None:
    np.testing.assert_array_equal(rows_of([np.array([1, 2]), np.array([3, 4])]), [[1, 2], [3, 4]])


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float16", "float64", "bool", "complex64"])
def test_dtype_stays(dtype: str) -> None:
    assert numpy_dataset(np.zeros(3, dtype)).element_spec == tf.TensorSpec((), dtype)


@pytest.mark.parametrize("dtype", ["U3", "S3", "O"])
def test_strings_become_strings(dtype: str) -> None:
    assert rows_of(np.array(["red", "sky"], dtype)) == [b"red", b"sky"]


def test_arrays_of_no_rows_give_an_empty_data_set() -> None:
    assert rows_of(np.zeros((0, 2))) == []


def test_later_changes_of_the_array_change_nothing() -> None:
    array = np.zeros(1024, np.float32)
    dataset = numpy_dataset(array)
    array[:] = 1
    assert sum(dataset.as_numpy_iterator()) == 0


@pytest.mark.parametrize(
    ("numpy_input", "expected"),
    [
        ((np.ones(2), [1, 2]), r"numpy_input\[1\]\[0\] is a int \(1\): expected a NumPy array"),
        ({"x": "text"}, r"numpy_input\['x'\] is a str"),
        (None, "numpy_input is a NoneType"),
        (np.float32(1), "numpy_input is a float32"),
        ((np.ones(2), np.array(1.0)), r"numpy_input\[1\] is an array without axes"),
        ((np.ones(3), {"y": np.ones(2)}), r"\{'numpy_input\[0\]': 3, \"numpy_input\[1\]\['y'\]\": 2\}"),
        ([np.ones(3), np.ones(2)], r"list numpy_input have shapes \[\(3,\), \(2,\)\]"),
        ((), "numpy_input holds no array"),
        ({"x": ()}, "numpy_input holds no array"),
        ([], "the list numpy_input is empty"),
        ({"x": np.array([{}, []], object)}, r"numpy_input\['x'\], an array of dtype object, cannot become"),
    ],
)
def test_other_input_is_refused_by_its_place(numpy_input: Any, expected: str) -> None:
    with pytest.raises(errors.ConfigError, match=f"{expected}(?s:.)*HINT: "):
        numpy_dataset(numpy_input)
