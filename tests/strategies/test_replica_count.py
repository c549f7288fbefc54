"""The number of replicas that a replica function sees when it is given a batch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tf_preempt.strategies import said
from tf_preempt.strategies.replica_count import ReplicaCount, Share


@pytest.fixture(autouse=True)
def _nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(said, "_said", set())


def count(rows: int, total: int, replicas: int = 2) -> ReplicaCount:
    share = Share(strategy=None, rows=tf.constant(rows, tf.int64), total=tf.constant(total, tf.int64))
    return ReplicaCount(replicas, share)


@pytest.mark.parametrize(("rows", "total", "expected"), [(4, 8, 2.0), (1, 5, 5.0), (2, 6, 3.0)])
def test_as_a_tensor_it_is_rows_everywhere_by_rows_here(rows: int, total: int, expected: float) -> None:
    one = count(rows, total)
    assert float(tf.cast(one, tf.float32)) == expected
    assert float(tf.constant(3.0) * one) == 3.0 * expected
    assert float(tf.constant(3.0) / one) == pytest.approx(3.0 / expected)
    assert float(tf.cast(1.0 / one, tf.float32)) == pytest.approx(1 / expected)
    for dtype in (tf.float16, tf.float32, tf.float64):
        product = tf.constant(6.0, dtype) * (1.0 / one)
        assert product.dtype == dtype
        assert float(product) == pytest.approx(6.0 / expected, rel=1e-3)
        assert float(2.0 / one * tf.constant(3.0, dtype)) == pytest.approx(float(product), rel=2e-3)
        assert float(6 / one / tf.constant(1, dtype)) == pytest.approx(float(product), rel=2e-3)
    assert float(tf.constant(6.0, tf.float16) / one) == pytest.approx(6.0 / expected, rel=1e-3)
    assert int(tf.constant(rows) * one) == total
    assert (tf.constant(rows) * one).dtype == tf.int32


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float32, tf.float64])
def test_a_loss_of_nothing_stays_nothing(dtype: tf.DType) -> None:
    assert float(tf.constant(0.0, dtype) * tf.cast(tf.convert_to_tensor(count(0, 5), dtype), dtype)) == 0
    assert float(tf.constant(0.0, dtype) * count(0, 5)) == 0


def test_a_function_that_wants_an_integer_is_told_what_to_write() -> None:
    with pytest.raises(TypeError, match=r"HINT: int\(strategy.num_replicas_in_sync\)"):
        tf.one_hot(0, count(1, 5))


def test_a_replica_without_rows_counts_nothing_and_stays_finite() -> None:
    none = count(0, 5)
    assert float(tf.cast(1.0 / none, tf.float32)) == 0
    assert float(tf.constant(3.0) / none) == pytest.approx(0, abs=1e-20)
    assert float(tf.constant(0.0) * tf.cast(none, tf.float32)) == 0
    assert int(tf.constant(0) * none) == 0


@pytest.mark.parametrize(("rows", "total", "replicas"), [(4, 8, 2), (5, 15, 3), (7, 49, 7)])
def test_equal_parts_are_scaled_to_the_same_bits_as_in_keras(rows: int, total: int, replicas: int) -> None:
    ours = tf.cast(1.0 / count(rows, total, replicas), tf.float32)
    assert float(ours) == float(tf.cast(1.0 / replicas, tf.float32))


def test_to_operators_that_do_not_scale_it_is_an_integer() -> None:
    one = count(1, 5, replicas=3)
    assert [one + 1, 1 + one, one - 1, 5 - one, one // 2, 7 // one, one % 2, 7 % one, one**2, 2**one] == [
        *(4, 4, 2, 2, 1, 2, 1, 1, 9, 8)
    ]
    assert one == 3
    assert one != 5
    assert {one: "three"}[3] == "three"
    assert (one < 4, one <= 3, one > 3, one >= 3) == (True, True, False, True)
    assert (float(one), int(one), repr(one)) == (3.0, 3, "3")


def in_a_graph(use: Callable[[Any, Any], Any]) -> Any:
    """What `use` makes of the count of 1 row of 5 on 2 replicas, and of the row, where a graph is made."""

    @tf.function
    def step(rows: tf.Tensor, total: tf.Tensor) -> Any:
        return use(ReplicaCount(2, Share(strategy=None, rows=rows, total=total)), rows)

    return step(tf.constant(1, tf.int64), tf.constant(5, tf.int64)).numpy().tolist()


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (lambda n, rows: tf.constant(3.0) * n, 15.0),
        (lambda n, rows: n * tf.constant(3.0), 15.0),
        (lambda n, rows: tf.constant(3.0) / n, 0.6),
        (lambda n, rows: tf.divide(tf.constant(3.0), n), 0.6),
        (lambda n, rows: tf.multiply(tf.constant(3.0), n), 15.0),
        (lambda n, rows: tf.constant(3.0) * (1.0 / n), 0.6),
        (lambda n, rows: tf.constant(3.0) * (np.float64(1.0) / n), 0.6),
        (lambda n, rows: tf.cast(n, tf.float32), 5.0),
        (lambda n, rows: rows * n, 5),
    ],
)
def test_in_a_graph_what_is_scaled_is_weighted_by_rows(use: Callable[..., Any], expected: Any) -> None:
    assert in_a_graph(use) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (lambda n, rows: tf.fill([n], 1), [1, 1]),
        (lambda n, rows: tf.reshape(tf.range(4), [n, -1]), [[0, 1], [2, 3]]),
        (lambda n, rows: tf.tile(tf.range(2), [n]), [0, 1, 0, 1]),
        (lambda n, rows: tf.constant(n), 2),
        (lambda n, rows: tf.constant([0] * n), [0, 0]),
        (lambda n, rows: tf.constant([f"{n:d} {n}"]), [b"2 2"]),
        (lambda n, rows: tf.constant([n == 2, n > 1, min(n, 4) == 2, -n == -2]), [True] * 4),
    ],
)
def test_in_a_graph_a_size_is_the_number_of_replicas(use: Callable[..., Any], expected: Any) -> None:
    assert in_a_graph(use) == expected


def test_a_count_of_a_graph_is_a_number_where_ops_are_lifted_out_of_it() -> None:
    def lifted(n: ReplicaCount, rows: tf.Tensor) -> tf.Tensor:
        with tf.init_scope():
            return tf.cast(n, tf.float32)

    assert in_a_graph(lifted) == 2.0


def test_as_a_float_it_is_the_number_of_replicas_and_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "tf_preempt"):
        assert [float(count(1, 5)), float(count(1, 5))] == [2.0, 2.0]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "HINT: divide by strategy.num_replicas_in_sync itself" in caplog.text
