from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration import cluster

pytestmark = pytest.mark.timeout(600)  # the first test of a module waits for all runs

SCRIPTS = Path(__file__).parents[1] / "scripts"

# Each element on one worker only, and none left out.  `policy OFF` means all of it on each worker.
DIVIDED = {
    "batched": range(16),
    "uneven tail": range(17),
    "empty tail on one worker": range(9),
    "odd batch": range(9),
    "drop remainder": range(16),
    "batch under other steps": range(1, 17),
    "unknown cardinality": [x for x in range(16) if x % 3],
    "policy DATA, seeded shuffle": range(16),
    "policy FILE": range(16),
    "files, AUTO": range(16),
}
ALL_CASES = [*DIVIDED, "padded batch", "nested", "policy OFF", "files, interleaved"]


def flat(batches: Any) -> list[int]:
    return [x for batch in batches for leaf in batch for replica in leaf for x in replica]


@pytest.mark.parametrize("worker", [0, 1])
@pytest.mark.parametrize("case", ALL_CASES)
def test_batches_spec_and_cardinality_as_in_tensorflow(two_workers: Any, worker: int, case: str) -> None:
    found = two_workers.saved[worker]["compare_data_sets"][case]
    assert found["ours"]["batches"]
    assert found["ours"] == found["tensorflow"]


@pytest.mark.parametrize(("case", "expected"), DIVIDED.items())
def test_shards_are_disjoint_and_complete(two_workers: Any, case: str, expected: Any) -> None:
    shards = [flat(one["compare_data_sets"][case]["ours"]["batches"]) for one in two_workers.saved]
    assert sorted(shards[0] + shards[1]) == list(expected)
    assert not set(shards[0]) & set(shards[1])


@pytest.mark.parametrize("worker", [0, 1])
def test_every_position_of_an_epoch_is_resumed_in_new_processes(two_workers: Any, worker: int) -> None:
    read = [[part] for part in two_workers.saved[worker]["save_every_position"]]
    remaining = two_workers.restored[worker]["go_on_from_every_position"]
    assert len(read) == 6
    assert remaining == [read[step:] for step in range(7)]


def test_resumable_shards_are_disjoint_and_complete(two_workers: Any) -> None:
    shards = [flat([[part] for part in one["save_every_position"]]) for one in two_workers.saved]
    assert sorted(shards[0] + shards[1]) == [x * 10 for x in range(24)]


@pytest.mark.parametrize("worker", [0, 1])
def test_loop_in_a_graph_goes_on_from_a_restored_position(two_workers: Any, worker: int) -> None:
    assert two_workers.saved[worker]["sum_in_graph"] == sum(x * 10 for x in range(24))


@pytest.mark.parametrize("worker", [0, 1])
def test_options_of_the_user_are_respected(two_workers: Any, worker: int) -> None:
    assert "OwnedMultiDeviceIterator" in two_workers.saved[worker]["explicit_options"]


def test_fewer_files_than_workers_are_sharded_by_elements(two_workers: Any) -> None:
    both = [one["bad_input"]["batches"] for one in two_workers.saved]
    for epoch in range(2):
        shards = [flat(batches[epoch]) for batches in both]
        assert sorted(shards[0] + shards[1]) == list(range(16))


@pytest.mark.parametrize("worker", [0, 1])
def test_data_set_that_is_not_batched_is_refused(two_workers: Any, worker: int) -> None:
    refused = two_workers.saved[worker]["bad_input"]["not batched"]
    assert refused.startswith("ConfigError: worker 0: the data set's elements hold scalars")
    assert "HINT: call dataset.batch" in refused


def test_two_replicas_in_one_process_are_saveable(without_cluster: dict[str, Any]) -> None:
    assert without_cluster["two replicas"]["saveable"] == "no error"


@pytest.fixture(scope="session")
def sharding_cases(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two workers found, by case."""
    directory = tmp_path_factory.mktemp("sharding")
    ended = cluster.run_workers(
        SCRIPTS / "sharding_cases.py", [str(directory)], directory=directory, timeout_s=400
    )
    return [
        json.loads((directory / f"{one.index}.json").read_text("utf-8")) | {"output": one.output}
        for one in ended
    ]


FILE_SOURCES = (
    "tfrecord",
    "text_lines",
    "fixed_length",
    "interleaved",
    "listed_shuffled",
    "zipped",
    "concatenated",
    "tfds",
)
MEMORY_SOURCES = (
    "slices",
    "generator",
    "any order",
    "shuffled",
    "shuffled once",
    "shuffled twice",
    "indices shuffled in map",
    "shuffled in a called function",
    "shuffled in flat_map",
    "csv",
)
BY_FILES = [f"{policy}, {name}" for policy in ("AUTO", "FILE") for name in FILE_SOURCES]
BY_ELEMENTS = [
    *(f"DATA, {name}" for name in (*FILE_SOURCES, *MEMORY_SOURCES)),
    *(f"AUTO, one file, {name}" for name in FILE_SOURCES),
    *(f"AUTO, {name}" for name in MEMORY_SOURCES),
    "AUTO, files beside memory",
]
WHOLE = [f"{policy}, whole{shuffled}" for policy in ("OFF", "HINT") for shuffled in ("", ", shuffled")]

# A data set of pairs holds each number twice.
NUMBERS = [str(number) for number in range(24)]
PAIRS = [str([number, number]) for number in range(24)]


def expected(case: str) -> list[str]:
    return sorted(PAIRS if "zipped" in case else NUMBERS)


@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize("case", [*BY_FILES, *BY_ELEMENTS, "HINT, hinted"])
def test_each_element_comes_once_over_all_workers(sharding_cases: Any, case: str, epoch: int) -> None:
    shards = [[str(x) for x in one["every_source"][case]["epochs"][epoch]] for one in sharding_cases]
    assert sorted(shards[0] + shards[1]) == expected(case)
    assert all(shards)


@pytest.mark.parametrize("worker", [0, 1])
@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize("case", WHOLE)
def test_each_element_comes_once_per_worker_where_nothing_is_divided(
    sharding_cases: Any, case: str, epoch: int, worker: int
) -> None:
    found = sharding_cases[worker]["every_source"][case]["epochs"][epoch]
    assert sorted(str(x) for x in found) == expected(case)


def test_every_case_is_judged(sharding_cases: Any) -> None:
    assert {*BY_FILES, *BY_ELEMENTS, *WHOLE, "HINT, hinted"} == set(sharding_cases[0]["every_source"])


@pytest.mark.parametrize("worker", [0, 1])
@pytest.mark.parametrize(
    ("cases", "policy", "whole"),
    [
        (BY_FILES, "FILE", False),
        (BY_ELEMENTS, "DATA", True),
        (["OFF, whole", "OFF, whole, shuffled"], "OFF", True),
        (["HINT, whole", "HINT, whole, shuffled"], "HINT", True),
        (["HINT, hinted"], "HINT", False),
    ],
)
def test_explanation_says_what_happens(
    sharding_cases: Any, worker: int, cases: list[str], policy: str, whole: bool
) -> None:
    found = [sharding_cases[worker]["every_source"][case] for case in cases]
    assert {(one["policy"], one["whole"]) for one in found} == {(policy, whole)}
    assert [one["explaining logs"] for one in found] == [[]] * len(found)


@pytest.mark.parametrize("case", BY_FILES)
def test_explanation_counts_files(sharding_cases: Any, case: str) -> None:
    of_one_reader = [2, 1]
    readers = 2 if "zipped" in case or "concatenated" in case else 1
    files = sharding_cases[0]["every_source"][case]["files"]
    assert files == [count * readers for count in of_one_reader]


@pytest.mark.parametrize("worker", [0, 1])
def test_tensorflow_prints_no_graph_where_files_cannot_be_divided(sharding_cases: Any, worker: int) -> None:
    assert "unshardable source" not in sharding_cases[worker]["output"]


def test_each_data_set_is_told_of_in_one_line_by_the_chief(sharding_cases: Any) -> None:
    lines = [[len(found["lines"]) for found in one["every_source"].values()] for one in sharding_cases]
    assert lines == [[1] * len(lines[0]), [0] * len(lines[0])]


def test_one_data_set_is_told_of_once_and_one_text_warned_of_once(sharding_cases: Any) -> None:
    said, by_worker_1 = (one["said_once"] for one in sharding_cases)
    assert [line.partition(" ")[0] for line in said] == ["WARNING", "INFO"]
    assert said[0].removeprefix("WARNING") == said[1].removeprefix("INFO")
    assert by_worker_1 == []
    assert "runs the whole pipeline and drops 1 of 2 elements. Its shuffle has no seed" in said[0]
    assert "\nHINT: strategy.distribute_datasets_from_function" in said[0]


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("FILE, few files", "FILE: the data set reads 1 file(s) on worker 0, but there are 2 workers"),
        ("FILE, few files on worker 1", "FILE: the data set reads 1 file(s) on worker 1, but there are 2"),
        ("FILE, no files", "FILE: TensorFlow finds no files to divide in the data set of worker 0"),
        ("other policy", "auto_shard_policy: AUTO on worker 0, OFF on worker 1"),
        ("other number of files", "numbers of files: (2,) on worker 0, (3,) on worker 1"),
        (
            "other elements",
            "dtype=tf.int64, name=None) on worker 0, TensorSpec(shape=(None,), dtype=tf.float32",
        ),
        ("other batch size", "batch size: 4 on worker 0, 2 on worker 1"),
        ("other number of batches", "number of batches: 2 on worker 0, 1 on worker 1"),
        ("other seeds", "seeds of shuffles: ("),
        ("a seed on worker 1", "seeds of shuffles: none on worker 0, ("),
        ("not batched on worker 1", "worker 1: the data set's elements hold scalars"),
        ("names of files that fail on worker 1", "worker 1: the names of the files that the data set reads"),
    ],
)
def test_all_workers_refuse_with_one_error(sharding_cases: Any, case: str, message: str) -> None:
    texts = [one["refusals"][case] for one in sharding_cases]
    assert texts[0] == texts[1]
    assert texts[0].startswith("ConfigError: ")
    assert message in texts[0]
    assert "\nHINT: " in texts[0]


def test_all_workers_go_on_after_refusals(sharding_cases: Any) -> None:
    assert sorted(x for one in sharding_cases for x in one["refusals"]["afterwards"]) == list(range(8))


@pytest.mark.parametrize("worker", [0, 1])
def test_own_data_of_each_worker_is_let_through_by_off(sharding_cases: Any, worker: int) -> None:
    assert sharding_cases[worker]["own_data_without_sharding"] == [worker * 100 + x for x in range(4)]


def test_take_and_skip_of_one_unseeded_shuffle_stay_apart(sharding_cases: Any) -> None:
    found = [x for one in sharding_cases for part in one["orders"]["take and skip of one"] for x in part]
    assert sorted(found) == list(range(24))


@pytest.mark.parametrize("worker", [0, 1])
def test_agreed_order_is_new_in_each_epoch_and_for_each_data_set(sharding_cases: Any, worker: int) -> None:
    found = sharding_cases[worker]["orders"]
    first, second = found["epochs of one"]
    assert len({str(first), str(second), str(found["another like it"])}) == 3


@pytest.mark.parametrize("deterministic", ["None", "False"])
def test_what_cannot_be_seeded_is_warned_of_and_left_alone(sharding_cases: Any, deterministic: str) -> None:
    found = sharding_cases[0]["what_cannot_be_seeded"][deterministic]
    assert len(found["lines"]) == 1
    assert "cannot agree on one order, for its functions use a variable" in found["lines"][0]
    assert min(found["elements"]) >= 200


@pytest.mark.parametrize("worker", [0, 1])
def test_lookup_table_cardinality_and_spec_are_kept(sharding_cases: Any, worker: int) -> None:
    found = sharding_cases[worker]["captured_and_resumed"]
    assert found["cardinality"] == [6, 6]
    assert found["same spec"]
    assert found["reshuffles found"] == 1
    shards = [one["captured_and_resumed"] for one in sharding_cases]
    assert sorted(x for one in shards for x in one["first"] + one["rest"]) == list(range(1, 25))


@pytest.mark.parametrize("worker", [0, 1])
def test_position_in_an_agreed_order_is_restored(sharding_cases: Any, worker: int) -> None:
    found = sharding_cases[worker]["captured_and_resumed"]
    assert found["resumed"] == found["rest"]
    assert len(found["rest"]) == 10


@pytest.mark.parametrize("epoch", [0, 1])
def test_arrays_that_keras_shuffles_are_divided_in_every_epoch(sharding_cases: Any, epoch: int) -> None:
    shards = [one["keras_arrays"]["epochs"][epoch] for one in sharding_cases]
    assert sorted(shards[0] + shards[1]) == list(range(24))


def test_arrays_that_keras_shuffles_come_in_a_new_order_in_every_epoch(sharding_cases: Any) -> None:
    first, second = sharding_cases[0]["keras_arrays"]["epochs"]
    assert first != second


@pytest.mark.parametrize("worker", [0, 1])
def test_every_worker_hears_all_in_the_order_of_workers(sharding_cases: Any, worker: int) -> None:
    heard, me = sharding_cases[worker]["texts"]
    assert heard == [f"worker {index}: größer als 1 \u2713" for index in range(2)]
    assert me == worker
