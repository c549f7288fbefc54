from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tf_preempt.callbacks import logs
from tf_preempt.errors import CheckpointWriteError

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def through_json(value: Any) -> Any:
    return logs.decode(json.loads(json.dumps(logs.encode(value), allow_nan=False)))


def same(one: Any, other: Any) -> bool:
    """Equality with NaN equal to itself, and the zeros of both signs different."""
    if isinstance(one, float) and isinstance(other, float):
        return repr(one) == repr(other)
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


@given(VALUES)
def test_json_keeps_every_value(value: Any) -> None:
    assert same(through_json(value), value)


@given(st.floats(width=32, allow_nan=False))
def test_float32_keeps_every_bit(value: float) -> None:
    given_value = np.float32(value)
    found = np.float32(through_json(given_value))
    assert found.tobytes() == given_value.tobytes()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (tf.constant(0.1), float(np.float32(0.1))),
        (tf.constant([1, 2]), [1, 2]),
        (np.float64(0.1), 0.1),
        (np.float16(0.1), float(np.float16(0.1))),
        (np.int64(7), 7),
        (np.bool_(True), True),
        (np.array([[1.5, math.inf]]), [[1.5, math.inf]]),
        (tf.constant(0.1, tf.bfloat16), 0.10009765625),
        (tf.Variable(3), 3),
        ((1, 2.0), [1, 2.0]),
        ({"loss": tf.constant(2.0), "n": np.arange(3)}, {"loss": 2.0, "n": [0, 1, 2]}),
    ],
    ids=repr,
)
def test_tensors_and_arrays_become_plain_numbers(value: Any, expected: Any) -> None:
    found = through_json(value)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize("value", [b"bytes", {1, 2}, object(), 1j], ids=["bytes", "set", "object", "complex"])
def test_what_json_cannot_hold_is_refused_by_type(value: Any) -> None:
    with pytest.raises(CheckpointWriteError, match=type(value).__name__) as raised:
        logs.encode({"state": [value]})
    assert "get_state" in str(raised.value.hint)


def test_order_of_logs_is_kept() -> None:
    assert list(through_json({"b": 1, "a": 2})) == ["b", "a"]
