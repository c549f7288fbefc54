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


def test_two_batches_in_one_step_are_warned_of_once(found: dict[str, Any], outputs: dict[str, str]) -> None:
    for setting in ("2 {}", "0 {'TWO_REPLICAS': '1'}"):
        assert outputs[setting].count("strategy.run is given more than one distributed batch") == 1


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_custom_step_that_synchronizes_in_a_branch_gets_tensorflow_s_error(
    found: dict[str, Any], setting: str
) -> None:
    assert "merge_call" in found[setting]["branch"]


def test_part_of_a_batch_is_warned_of_once_where_something_is_scaled(
    found: dict[str, Any], outputs: dict[str, str]
) -> None:
    for setting in ("2 {}", "0 {'TWO_REPLICAS': '1'}"):
        before, _, after = outputs[setting].partition("-- no warning before this line")
        assert "without the batch they came from" not in before
        assert after.count("without the batch they came from") == 1


def test_a_replica_function_with_an_input_signature_is_refused_with_the_cure() -> None:
    step = tf.function(tf.reduce_sum, input_signature=[tf.TensorSpec([None], tf.float32)])
    with pytest.raises(errors.ConfigError, match=r"reduce_sum(?s:.)*HINT: leave the input_signature out"):
        _tf_internals.rewrapped_tf_function(step, lambda fn: fn)


def test_outside_a_replica_function_it_is_an_integer() -> None:
    from tf_preempt.strategies import MirroredStrategy

    assert type(MirroredStrategy(["CPU:0"]).num_replicas_in_sync) is int
