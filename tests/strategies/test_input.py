"""Positions in distributed data sets, for two replicas in one process and for two workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tests.integration import cluster
from tf_preempt import errors
from tf_preempt.strategies import MirroredStrategy, _tf_internals
from tf_preempt.strategies import input as resumable_input

pytestmark = pytest.mark.timeout(600)  # the first test of a module waits for all runs

SCRIPT = Path(__file__).parent / "scripts" / "resumable_input.py"
SETTINGS = ["replicas", "worker-0", "worker-1"]
CASES = [
    "even",
    "uneven tail",
    "tail for one replica",
    "odd batches",
    "nested",
    "ragged",
    "without end",
    "dropped remainder",
    "from a function",
    "from a function, without end",
]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    directory = tmp_path_factory.mktemp("resumable-input")
    for workers in (0, 2):
        cluster.run_workers(SCRIPT, [str(directory)], directory=directory, workers=workers, timeout_s=200)
    return {name: json.loads((directory / f"{name}.json").read_text("utf-8")) for name in SETTINGS}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("case", CASES)
def test_every_position_is_gone_on_from(found: dict[str, Any], case: str, setting: str) -> None:
    batches, rest = found[setting][case]["batches"], found[setting][case]["rest"]
    assert len(batches) >= 2
    assert rest[: len(batches)] == [batches[step:] for step in range(len(batches))]
    assert all(not more for more in rest[len(batches) :])


def elements(batches: Any) -> list[int]:
    """The numbers in a data set's first values."""
    return [x for batch in batches for replica in batch[0] for x in replica]


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("even", range(0, 240, 10)),
        ("uneven tail", range(0, 220, 10)),
        ("tail for one replica", range(0, 90, 10)),
        ("odd batches", range(14)),
        ("nested", range(10)),
        ("dropped remainder", range(8)),
        ("from a function", range(11)),
    ],
)
def test_each_element_comes_once_in_an_epoch(found: dict[str, Any], case: str, expected: range) -> None:
    in_one = elements(found["replicas"][case]["batches"])
    in_two = [x for name in SETTINGS[1:] for x in elements(found[name][case]["batches"])]
    assert sorted(in_one) == sorted(in_two) == list(expected)


def test_data_sets_from_a_function_differ_in_their_seed_on_two_workers(found: dict[str, Any]) -> None:
    first, second = (
        elements(found[name]["from a function, without end"]["batches"]) for name in SETTINGS[1:]
    )
    assert first != second


@pytest.mark.parametrize("case", ["even", "uneven tail", "tail for one replica", "nested"])
def test_global_batches_are_the_same_in_both_settings_and_in_a_graph(
    found: dict[str, Any], case: str
) -> None:
    def sums(batches: Any) -> list[int]:
        return [sum(elements([batch])) for batch in batches]

    in_one = sums(found["replicas"][case]["batches"])
    workers = [sums(found[name][case]["batches"]) for name in SETTINGS[1:]]
    assert in_one == [sum(parts) for parts in zip(*workers, strict=True)]
    assert all(found[name][case]["sums in a graph"] == in_one for name in SETTINGS)


@pytest.fixture
def strategy() -> MirroredStrategy:
    return MirroredStrategy(["CPU:0"])


def is_saveable(distributed: Any) -> bool:
    try:
        _tf_internals.owned_iterators(iter(distributed))
    except errors.UnsupportedStrategyError:
        return False
    return True


def test_accelerators_keep_tensorflow_s_iterator_until_checkpoints_are_expected(
    strategy: MirroredStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resumable_input, "_Expected", type("_Expected", (), {"checkpoints": False}))
    data = tf.data.Dataset.range(4).batch(2)
    assert is_saveable(strategy.experimental_distribute_dataset(data))
    monkeypatch.setattr(tf.DeviceSpec, "device_type", property(lambda self: "GPU"))
    assert not is_saveable(strategy.experimental_distribute_dataset(data))
    assert not is_saveable(strategy.distribute_datasets_from_function(lambda _: data))
    resumable_input.expect_checkpoints()
    assert is_saveable(strategy.experimental_distribute_dataset(data))
    assert is_saveable(strategy.distribute_datasets_from_function(lambda _: data))


def test_equal_data_sets_share_one_trace(strategy: MirroredStrategy) -> None:
    traces = []

    @tf.function
    def first(iterator: Any) -> tf.Tensor:
        traces.append(1)
        return strategy.reduce("SUM", strategy.run(tf.reduce_sum, args=(next(iterator),)), axis=None)

    found = [
        int(first(iter(strategy.experimental_distribute_dataset(tf.data.Dataset.range(n).batch(4)))))
        for n in (8, 9)
    ]
    assert found == [6, 6]
    assert len(traces) == 1


def test_a_function_must_give_a_data_set(strategy: MirroredStrategy) -> None:
    with pytest.raises(errors.ConfigError, match=r"dataset_fn returned \[1, 2\] \(list\)(?s:.)*HINT: "):
        strategy.distribute_datasets_from_function(lambda _: [1, 2])


@pytest.mark.parametrize("given", [None, [1, 2], tf.zeros((4, 1))])
def test_what_is_no_data_set_is_refused(strategy: MirroredStrategy, given: Any) -> None:
    with pytest.raises(errors.ConfigError, match=r"experimental_distribute_dataset was given(?s:.)*HINT: "):
        strategy.experimental_distribute_dataset(given)


def test_arguments_may_have_any_name(strategy: MirroredStrategy) -> None:
    def step(rows: Any, total: Any) -> Any:
        return tf.reduce_sum(rows) + total

    batch = next(iter(strategy.experimental_distribute_dataset(tf.data.Dataset.range(4).batch(4))))
    assert int(strategy.run(step, kwargs={"rows": batch, "total": 1})) == 7


def test_next_inside_a_replica_function_is_refused(strategy: MirroredStrategy) -> None:
    iterator = iter(strategy.experimental_distribute_dataset(tf.data.Dataset.range(4).batch(2)))
    with pytest.raises(ValueError, match="outside"):
        strategy.run(lambda: next(iterator))
