from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tf_preempt import errors
from tf_preempt.strategies.reduction import rules

SUM, MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN


@pytest.mark.parametrize(
    ("given", "expected"), [("SUM", SUM), ("sum", SUM), ("Mean", MEAN), (SUM, SUM), (MEAN, MEAN)]
)
def test_op_by_name_or_itself(given: Any, expected: Any) -> None:
    assert rules.parse_op(given) is expected


@pytest.mark.parametrize("given", ["MAX", "", " SUM", None, 0, tf.VariableAggregation.MEAN, b"SUM"])
def test_op_that_is_none(given: Any) -> None:
    with pytest.raises(errors.ConfigError, match=r"reduce_op=(?s:.)*expected 'SUM', 'MEAN'(?s:.)*HINT: "):
        rules.parse_op(given)


@pytest.mark.parametrize(
    ("given", "expected"),
    [(None, None), (0, (0,)), (-1, (-1,)), ((0, 2), (0, 2)), ([1], (1,)), ((), None), (np.int32(3), (3,))],
)
def test_axis(given: Any, expected: Any) -> None:
    assert rules.parse_axis(given) == expected


@pytest.mark.parametrize("given", [True, 0.0, "0", (0, None), [0, True], {0}, tf.constant([0, 1])])
def test_axis_of_another_kind(given: Any) -> None:
    with pytest.raises(errors.ConfigError, match=r"axis=(?s:.)*expected None, an int(?s:.)*HINT: "):
        rules.parse_axis(given)


@pytest.mark.parametrize(
    ("axes", "rank", "expected"),
    [
        (None, 3, None),
        ((0,), 1, (0,)),
        ((-1,), 3, (2,)),
        ((0, -1), 2, (0, 1)),
        ((0,), 0, None),
        ((-1,), 0, None),
        ((-1,), None, (-1,)),
    ],
)
def test_axes_of_a_value(axes: Any, rank: int | None, expected: Any) -> None:
    assert rules.axes_of(axes, rank) == expected


@pytest.mark.parametrize(
    ("axes", "rank", "message"),
    [
        ((1,), 1, "axis=1: the value has rank 1 on each replica: expected -1 to 0"),
        ((0, -3), 2, "axis=-3: the value has rank 2 on each replica: expected -2 to 1"),
        ((0, 0), 0, "axis=0: the value has rank 0 on each replica: expected None"),
        ((0, -2), 2, r"axis=\(0, -2\): an axis of a value of rank 2 is named twice"),
    ],
)
def test_axes_that_a_value_does_not_have(axes: Any, rank: int, message: str) -> None:
    with pytest.raises(errors.ConfigError, match=message + r"(?s:.)*HINT: "):
        rules.axes_of(axes, rank)


@pytest.mark.parametrize(
    ("dtype", "op", "added_in", "result", "can_overflow"),
    [
        (tf.float32, SUM, tf.float32, tf.float32, False),
        (tf.float16, SUM, tf.float32, tf.float16, False),
        (tf.bfloat16, MEAN, tf.float32, tf.bfloat16, False),
        (tf.complex64, MEAN, tf.complex64, tf.complex64, False),
        (tf.uint8, SUM, tf.int64, tf.uint8, True),
        (tf.int32, SUM, tf.int64, tf.int32, True),
        (tf.uint32, MEAN, tf.int64, tf.float64, False),
        (tf.int16, MEAN, tf.int64, tf.float32, False),
        (tf.int64, SUM, tf.int64, tf.int64, False),
        (tf.uint64, SUM, tf.int64, tf.uint64, False),
    ],
)
def test_dtypes(dtype: Any, op: Any, added_in: Any, result: Any, can_overflow: bool) -> None:
    arithmetic = rules.arithmetic_of(dtype, op)
    assert (arithmetic.added_in, arithmetic.result, arithmetic.can_overflow) == (
        added_in,
        result,
        can_overflow,
    )


@pytest.mark.parametrize("op", [SUM, MEAN])
@pytest.mark.parametrize("dtype", [tf.bool, tf.string, tf.qint8, tf.variant, tf.resource])
def test_dtype_without_a_sum(dtype: Any, op: Any) -> None:
    message = f"dtype {dtype.name} cannot be reduced with {op.name}(?s:.)*HINT: "
    with pytest.raises(errors.ConfigError, match=message):
        rules.arithmetic_of(dtype, op)
