import math

import ml_dtypes
import numpy as np
import pytest

from tf_preempt.testing.drill.differences import compare_arrays, compare_values


def compare(one, other):
    return compare_arrays(one, other, name="v", group="g")


@pytest.mark.parametrize(
    "array",
    [
        np.array([1.0, np.nan, -0.0, np.inf], np.float32),
        np.array(3, np.int64),
        np.array([], np.float32),
        np.array([True, False]),
        np.array([1 + 2j]),
        np.array([1.5, np.nan], ml_dtypes.bfloat16),
        np.array([b"text", b""], dtype=object),
    ],
)
def test_array_equals_its_copy(array):
    assert compare(array, array.copy()) is None


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_neighbours_are_one_unit_apart(dtype):
    one = np.array([1.0, 2.0], dtype)
    bits = one.view(f"u{one.dtype.itemsize}").copy()
    bits[1] += 3
    difference = compare(one, bits.view(dtype))
    assert (difference.max_ulp, difference.differing, difference.elements) == (3, 1, 2)
    assert difference.max_abs == float(bits.view(dtype)[1]) - 2.0


@pytest.mark.parametrize(
    ("one", "other", "max_abs", "max_ulp"),
    [
        (0.0, -0.0, 0.0, 0),
        (5e-324, -5e-324, 1e-323, 2),
        (1.0, math.nan, None, None),
        (1.0, math.inf, None, 0x7FF0000000000000 - 0x3FF0000000000000),
        (-1.0, 1.0, 2.0, 2 * 0x3FF0000000000000),
    ],
)
def test_distance_of_two_numbers(one, other, max_abs, max_ulp):
    difference = compare(np.array([one, 1.0]), np.array([other, 1.0]))
    assert (difference.max_abs, difference.max_ulp, difference.differing) == (max_abs, max_ulp, 1)


def test_equal_infinities_and_nans_beside_a_difference_do_not_count():
    one = np.array([np.inf, np.nan, 1.0])
    assert compare(one, one + np.array([0.0, 0.0, 0.5])).max_abs == 0.5


@pytest.mark.parametrize(
    ("one", "other", "max_abs"),
    [
        (np.array([1, 5], np.int64), np.array([1, 9], np.int64), 4.0),
        (np.array([200], np.uint8), np.array([100], np.uint8), 100.0),
        (np.array([3 + 4j]), np.array([0j]), 5.0),
        (np.array([True]), np.array([False]), None),
        (np.array([b"a"], dtype=object), np.array([b"b"], dtype=object), None),
    ],
)
def test_what_is_no_floating_number_has_no_units(one, other, max_abs):
    difference = compare(one, other)
    assert (difference.max_abs, difference.max_ulp, difference.differing) == (max_abs, None, 1)


@pytest.mark.parametrize(
    ("one", "other", "note"),
    [
        (np.zeros(2), None, "only the first training has it"),
        (None, np.zeros(2), "only the second training has it"),
        (np.zeros(2), np.zeros(3), "float64[2] and float64[3]"),
        (np.zeros(2), np.zeros(2, np.float32), "float64[2] and float32[2]"),
    ],
)
def test_what_cannot_be_compared_element_by_element(one, other, note):
    difference = compare(one, other)
    assert (difference.note, difference.differing, difference.max_abs) == (note, None, None)


@pytest.mark.parametrize("value", [None, 1, 0.5, "x", [], [1.0, 2.0], {"a": [1], "b": {"c": None}}])
def test_value_equals_itself(value):
    assert compare_values(value, value, name="v", group="g") == []


def test_members_of_a_mapping_are_named_with_where_a_list_begins_to_differ():
    one = {"loss": [0.5, 0.25, 0.125], "accuracy": [1.0, 1.0], "lr": 1.0}
    other = {"loss": [0.5, 0.75, 0.625], "accuracy": [1.0, 1.0], "lr": 3.0}
    found = compare_values(one, other, name="history", group="history")
    assert [(one.name, one.max_abs, one.max_ulp, one.note) for one in found] == [
        ("history.loss", 0.5, None, "from position 1 on"),
        ("history.lr", 2.0, None, None),
    ]


@pytest.mark.parametrize(
    ("one", "other", "note"),
    [
        ("train", "finished", "'train' and 'finished'"),
        ([1.0], [1.0, 2.0], "[1.0] and [1.0, 2.0]"),
        (None, 3, "None and 3"),
        (True, False, "True and False"),
        (list(range(100)), "x", f"{repr(list(range(100)))[:57]}... and 'x'"),
    ],
)
def test_values_of_other_kinds_are_shown(one, other, note):
    (found,) = compare_values(one, other, name="v", group="g")
    assert found.note == note
