from __future__ import annotations

from typing import Any

import pytest

from tf_preempt.strategies.keras_compat import shapes_fingerprint

SAME_ON_BOTH = [
    ("scalar, axis 0", ["float32", 2.0]),
    ("number, axis 0", ["float32", 2.0]),
    ("no axis given", ["float32", 4.0]),
    ("nest, sum", {"a": [["float32", [4.0, 6.0, 8.0, 10.0]], ["float32", 4.0]]}),
    ("nest, sum over elements", [["float32", 28.0], ["float32", 15.0]]),
    ("nest, mean", [["float32", [2.0, 3.0, 4.0, 5.0]], ["float32", 2.0]]),
    ("after an uneven nest", ["float32", 4.0]),
    ("in a graph", [{"a": [["float32", 2.0], ["float32", 2.0]]}, ["float32", 2.0]]),
]
OWN_PARTS = [
    ("nest, dtypes", 0, [["uint8", [1, 2]], ["string", "a"], ["float32", [2.0, 3.0, 4.0, 5.0]]]),
    ("nest, dtypes", 1, [["uint8", [3, 4]], ["string", "b"], ["float32", [2.0, 3.0, 4.0, 5.0]]]),
    ("nest, integers", 0, [["int64", 1], ["float32", 2.0]]),
    ("nest, integers", 1, [["int64", 4], ["float32", 2.0]]),
    ("nest, uneven", 0, [["float32", [0.0, 1.0, 2.0, 3.0]], ["float32", [0.0, 1.0, 2.0, 3.0]]]),
    ("nest, uneven", 1, [["float32", [4.0, 5.0, 6.0, 7.0]], ["float32", [4.0, 5.0]]]),
    ("nest, empty part", 0, [["float32", [1.0]], ["float32", 1.0]]),
    ("nest, empty part", 1, [["float32", []], ["float32", 3.0]]),
]
AS_IN_TENSORFLOW = [
    ("sum", ["float32", [4.0, 6.0, 8.0, 10.0]]),
    ("sum over elements", ["float32", 28.0]),
    ("mean of uneven over elements", ["float32", 2.5]),
    ("mean of int", ["float64", 2.5]),
    ("number", ["float32", 4.0]),
    ("list of numbers", ["float32", [4.0, 6.0]]),
]


@pytest.mark.parametrize("worker", [0, 1])
@pytest.mark.parametrize(("case", "expected"), SAME_ON_BOTH)
def test_reduction_beyond_tensorflow(two_workers: Any, worker: int, case: str, expected: Any) -> None:
    assert two_workers.saved[worker]["reductions"][case] == expected


@pytest.mark.parametrize(("case", "worker", "expected"), OWN_PARTS)
def test_own_part_where_keras_needs_only_shape_and_dtype(
    two_workers: Any, worker: int, case: str, expected: Any
) -> None:
    assert two_workers.saved[worker]["reductions"][case] == expected


@pytest.mark.parametrize("worker", [0, 1])
@pytest.mark.parametrize(("case", "expected"), AS_IN_TENSORFLOW)
def test_reduction_as_in_tensorflow(two_workers: Any, worker: int, case: str, expected: Any) -> None:
    found = two_workers.saved[worker]["reductions"]
    assert found[case] == expected
    assert found[f"{case}, tensorflow"] == expected


def test_nests_over_two_replicas_in_one_process(without_cluster: dict[str, Any]) -> None:
    found = without_cluster["two replicas"]
    assert found["means"] == {"even": [2.0, 3.0], "scalar": 2.0}
    assert found["uneven"] == {"uneven": [1.0, 2.0], "scalar": 1.0}


def test_fingerprint_tells_shapes_apart() -> None:
    shapes = [[[(4, 2)], [(4,)]], [[(3, 2)], [(4,)]], [[(4, 2)], [(3,)]], [[(4,)], [(4, 2)]], [[(4, 2)]], []]
    assert len({shapes_fingerprint(one) for one in shapes}) == len(shapes)


@pytest.mark.parametrize("shapes", [[], [[(0,)]], [[(8, 28, 28), (8, 28, 28)], [(8,), (8,)]]])
def test_fingerprint_is_odd_and_small(shapes: Any) -> None:
    fingerprint = shapes_fingerprint(shapes)
    assert fingerprint % 2 == 1
    assert 0 < fingerprint < 2**24


def test_fingerprint_of_replicas_that_differ_here_is_zero() -> None:
    assert shapes_fingerprint([[(4,), (4,)], [(4, 2), (3, 2)]]) == 0
