"""Two replicas, in one process or in two, train like one on the same global batches, whatever their size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.integration import cluster
from tf_preempt import errors
from tf_preempt.strategies import _tf_internals
from tf_preempt.strategies.partial_batches import ReplicaCount, Share

pytestmark = pytest.mark.timeout(600)  # the first test of a module waits for all runs

SCRIPT = Path(__file__).parent / "scripts" / "partial_batches.py"
SETTINGS = ["replicas", "worker-0", "worker-1"]

LOSSES = ["average", "divided", "reciprocal", "of_fixed_global_size"]
WAYS = [
    "eager",
    "in_a_function",
    "with_a_signature",
    "of_a_function",
    "loop_in_a_graph",
    "optionals_in_a_graph",
]
CASES = [f"{way}, {loss}" for way in WAYS for loss in LOSSES]
OTHERS = [
    "without end",
    "one row",
    "batches of 7",
    "from a function",
    "two batches",
    "without targets",
    "nested function",
]


@pytest.fixture(scope="module")
def outputs() -> dict[str, str]:
    return {}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, outputs: dict[str, str]) -> dict[str, Any]:
    directory = tmp_path_factory.mktemp("partial-batches")
    for workers, environ in ((0, {}), (0, {"TWO_REPLICAS": "1"}), (2, {})):
        ended = cluster.run_workers(
            SCRIPT, [str(directory)], directory=directory, workers=workers, environ=environ, timeout_s=200
        )
        outputs[f"{workers} {environ}"] = ended[0].output
    return {
        name: json.loads((directory / f"{name}.json").read_text("utf-8")) for name in ["alone", *SETTINGS]
    }


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("case", [*CASES, *OTHERS])
def test_losses_and_weights_are_those_of_one_replica(found: dict[str, Any], case: str, setting: str) -> None:
    alone, together = (found[name]["results"][case] for name in ("alone", setting))
    np.testing.assert_allclose(together["losses"], alone["losses"], rtol=1e-5)
    np.testing.assert_allclose(together["weights"], alone["weights"], rtol=1e-5)


def test_the_last_batch_has_losses_of_its_own(found: dict[str, Any]) -> None:
    losses = found["alone"]["results"]["eager, average"]["losses"]
    assert len(losses) == 3
    assert len(set(losses)) == 3


@pytest.mark.parametrize("setting", SETTINGS)
def test_to_python_it_is_the_number_of_replicas(found: dict[str, Any], setting: str) -> None:
    assert found[setting]["numbers"] == [[2, True, True, 6, 6, 2, "2"]]


def test_a_function_within_the_replica_function_is_warned_of_once(
    found: dict[str, Any], outputs: dict[str, str]
) -> None:
    for setting in ("2 {}", "0 {'TWO_REPLICAS': '1'}"):
        assert outputs[setting].count("is read in a tf.function that the replica function calls") == 1
    assert "is read in a tf.function" not in outputs["0 {}"]


def test_part_of_a_batch_is_warned_of_once_where_something_is_scaled(
    found: dict[str, Any], outputs: dict[str, str]
) -> None:
    for setting in ("2 {}", "0 {'TWO_REPLICAS': '1'}"):
        before, _, after = outputs[setting].partition("-- no warning before this line")
        assert "without the batch they came from" not in before
        assert after.count("without the batch they came from") == 1


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


def test_a_replica_function_with_an_input_signature_is_refused_with_the_cure() -> None:
    step = tf.function(tf.reduce_sum, input_signature=[tf.TensorSpec([None], tf.float32)])
    with pytest.raises(errors.ConfigError, match=r"reduce_sum(?s:.)*HINT: leave the input_signature out"):
        _tf_internals.rewrapped_tf_function(step, lambda fn: fn)


def test_outside_a_replica_function_it_is_an_integer() -> None:
    from tf_preempt.strategies import MirroredStrategy

    assert type(MirroredStrategy(["CPU:0"]).num_replicas_in_sync) is int
