"""The methods of TensorFlow 1.15's strategies, on two replicas in one process and on two workers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.integration import cluster

SCRIPT = Path(__file__).parents[1] / "scripts" / "classic_cases.py"

# What each replica draws from 16 numbers in global batches of 8.
HALVES = [[[0, 1, 2, 3], [4, 5, 6, 7]], [[8, 9, 10, 11], [12, 13, 14, 15]]]

# Those that name their replacement.
OLD_NAMES = [
    "experimental_distribute_datasets_from_function",
    "experimental_make_numpy_dataset",
    "experimental_run",
    "experimental_run_v2",
    "make_dataset_iterator",
    "make_input_fn_iterator",
    "update_config_proto",
]

Results = list[dict[str, Any]]


@pytest.fixture(scope="module")
def mirrored(tmp_path_factory: pytest.TempPathFactory) -> Results:
    directory = tmp_path_factory.mktemp("mirrored")
    cluster.run_workers(SCRIPT, [str(directory)], directory=directory, workers=0, timeout_s=120)
    return [json.loads((directory / "mirrored.json").read_text("utf-8"))]


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Results:
    directory = tmp_path_factory.mktemp("workers")
    cluster.run_workers(SCRIPT, [str(directory)], directory=directory, timeout_s=120)
    return [json.loads((directory / f"worker-{index}.json").read_text("utf-8")) for index in range(2)]


@pytest.fixture(params=["mirrored", "workers"])
def results(request: pytest.FixtureRequest) -> Results:
    """What each process found: one with two replicas, or two with one each."""
    found: Results = request.getfixturevalue(request.param)
    return found


def replicas(results: Results, case: str, *keys: str) -> list[Any]:
    """The values on both replicas, wherever they ran."""
    found: list[Any] = []
    for process in results:
        value = process[case]
        for key in keys:
            value = value[key]
        found += value
    return found


def steps(results: Results, case: str, *keys: str) -> list[list[Any]]:
    """For each step, the values on both replicas."""
    found = []
    for process in results:
        value = process[case]
        for key in keys:
            value = value[key]
        found.append(value)
    return [[part for of_process in step for part in of_process] for step in zip(*found, strict=True)]


def negated(values: list[int]) -> list[int]:
    """What the replica function makes of values above 3."""
    return [-one for one in values]


EACH_NEGATED = [[HALVES[0][0], negated(HALVES[0][1])], [negated(HALVES[1][0]), negated(HALVES[1][1])]]


@pytest.mark.parametrize("mode", ["eager", "function"])
def test_run_v2_gives_each_replica_its_part_and_converts_its_function(results: Results, mode: str) -> None:
    assert replicas(results, "run_v2", mode) == [[0, 2, 4, 6], [-8, -10, -12, -14]]


def test_run_v2_needs_no_arguments(results: Results) -> None:
    assert replicas(results, "run_v2", "without arguments") == [0, 1]


def test_run_v2_refuses_what_is_no_list_of_arguments(results: Results) -> None:
    assert results[0]["run_v2"]["args of another type"].startswith("ValueError: positional args must be")


def test_run_draws_one_element_for_all_replicas(results: Results) -> None:
    found = [process["run_with_iterator"]["steps"] for process in results]
    for index, half in enumerate(HALVES):
        doubled = [part for of_process in found for part in of_process[index][0]]
        assert doubled == [[2 * one for one in part] for part in half]
        assert [part for of_process in found for part in of_process[index][1]] == [0, 1]


def test_run_at_the_end_is_out_of_range_and_without_iterator_calls_the_function(results: Results) -> None:
    assert {process["run_with_iterator"]["end"] for process in results} == {"OutOfRangeError"}
    assert replicas(results, "run_with_iterator", "no iterator") == [0, 1]


@pytest.mark.parametrize("time", ["first", "again"])
def test_function_that_captured_the_iterator_starts_again_with_it(results: Results, time: str) -> None:
    assert steps(results, "iterator_in_function", time) == EACH_NEGATED


def test_initialize_in_the_middle_starts_again(results: Results) -> None:
    assert steps(results, "iterator_in_function", "from the middle") == HALVES


def test_initialize_inside_a_function_starts_again_at_each_call(results: Results) -> None:
    assert steps(results, "initialize_in_function") == [EACH_NEGATED[0]] * 4


@pytest.mark.parametrize("mode", ["eager", "function"])
def test_last_batch_is_given_to_some_replicas_and_empty_on_others(results: Results, mode: str) -> None:
    assert steps(results, "partial_end", mode) == [*HALVES, [[16], []]]


def test_for_loop_inside_a_function_sees_each_element_once(results: Results) -> None:
    assert [process["loops"]["in function"] for process in results] == [sum(range(16))] * len(results)


def test_for_loop_in_python_ends_at_the_end(results: Results) -> None:
    assert steps(results, "loops", "in python") == HALVES


def test_optional_is_empty_at_the_end(results: Results) -> None:
    assert [process["loops"]["optional"] for process in results] == [[True, True, False]] * len(results)


def test_iterator_as_an_argument_is_traced_once(results: Results) -> None:
    assert steps(results, "loops", "as argument") == HALVES
    assert {process["loops"]["traces"] for process in results} == {1}


def test_iterator_passes_for_tensorflow_s(results: Results) -> None:
    for process in results:
        assert process["loops"]["is one of TensorFlow's"]
        assert process["loops"]["same spec"]


def test_shuffle_draws_a_new_order_when_started_again(results: Results) -> None:
    first, second = (
        [part for process in results for step in process["reshuffled"][time] for part in step]
        for time in range(2)
    )
    assert first != second
    for order in (first, second):
        assert sorted(one for part in order for one in part) == list(range(16))


def test_position_in_the_middle_comes_back(results: Results) -> None:
    for process in results:
        assert process["position"]["restored"] == process["position"]["rest"]
        assert len(process["position"]["rest"]) == 2


@pytest.mark.parametrize("time", ["first", "old name"])
def test_replicas_draw_per_replica_batches_of_their_worker(results: Results, time: str) -> None:
    expected = {
        1: [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8, 9], [10, 11]]],
        2: [[[0, 2], [1, 3]], [[4, 6], [5, 7]], [[8, 10], [9, 11]]],
    }
    assert steps(results, "input_fn_iterator", time) == expected[len(results)]


def test_input_fn_is_called_once_per_worker_and_not_when_started_again(results: Results) -> None:
    for index, process in enumerate(results):
        # Three data sets were made with this function, one of which was started again.
        assert process["input_fn_iterator"]["contexts"] == [[len(results), index, 2]] * 3
        assert len(process["input_fn_iterator"]["in function"]) == 3
        assert process["input_fn_iterator"]["named"] == process["input_fn_iterator"]["first"][0]


REFUSED = {
    "not batched": "HINT: call dataset.batch .*; or use make_input_fn_iterator",
    "not batched, seen late": "cannot be divided over the replicas: .*\nHINT: use make_input_fn_iterator",
    "no data set": r"dataset=\[1, 2\] \(list\): .*\nHINT: use make_input_fn_iterator for a function",
    "function for data set": r"input_fn=<_BatchDataset .*\nHINT: .* use make_dataset_iterator",
    "function gives none": r"returned \[1, 2\] \(list\): expected a tf.data.Dataset",
    "per replica": "replication_mode=.*PER_REPLICA.* expected .*PER_WORKER.\nHINT: ",
    "plain iterator": r"input_iterator=.* \(OwnedIterator\): .*\nHINT: make it with .*make_dataset_iterator",
    "data set for iterator": "input_iterator=.*\nHINT: make it with .*make_dataset_iterator",
    "plain iterator in a function": "input_iterator=.*\nHINT: make it with .*make_dataset_iterator",
    "no data set in a function": r"dataset=ListWrapper\(\[1, 2\]\)|dataset=\[1, 2\]",
    "no array in a function": "numpy_input is a NoneType",
    "session": "session='a session': expected None.*\nHINT: leave it out",
    "config": r"config_proto=.* \(dict\): expected a tf.compat.v1.ConfigProto",
    "graph: make_dataset_iterator": "make_dataset_iterator was called in the graph of a TensorFlow 1",
    "graph: make_input_fn_iterator": "make_input_fn_iterator was called in the graph of a TensorFlow 1",
    "graph: experimental_make_numpy_dataset": "called in the graph of a TensorFlow 1 session.*\nHINT: ",
}


@pytest.mark.parametrize("call", REFUSED)
def test_what_cannot_be_served_is_refused_with_the_cure(results: Results, call: str) -> None:
    for process in results:
        assert re.match(f"ConfigError: (?s:.)*({REFUSED[call]})", process["refused"][call]), process[
            "refused"
        ][call]


def test_numpy_rows_are_divided_over_the_replicas(results: Results) -> None:
    assert replicas(results, "numpy_arrays", "x") == HALVES[0]
    assert replicas(results, "numpy_arrays", "more than 3") == [[False] * 4, [True] * 4]


def test_numpy_rows_are_not_in_the_graph_of_a_function(results: Results) -> None:
    for process in results:
        assert process["numpy_arrays"]["sum in function"] == 10_000
        assert process["numpy_arrays"]["bytes of graph"] < 10_000  # the rows are 40,000 bytes


def test_config_is_a_copy(results: Results) -> None:
    for process in results:
        assert process["config"]["unchanged"]
        assert process["config"]["kept"]


def test_config_of_one_machine_isolates_sessions(mirrored: Results) -> None:
    found = mirrored[0]["config"]
    assert found["isolated"]
    assert (found["filters"], found["leader"], found["collectives"]) == (["/job:ps"], "", [])


def test_config_of_workers_has_leader_filter_and_collectives(workers: Results) -> None:
    for index, process in enumerate(workers):
        found = process["config"]
        assert found["leader"] == "/job:worker/replica:0/task:0"
        assert found["filters"] == [f"/job:worker/task:{index}"]
        assert found["collectives"] == ["CollectiveReduce"]


def test_names_that_are_current_work_as_before(results: Results) -> None:
    for process in results:
        found = process["current_names"]
        assert found == {
            "scope": [True, False, True],
            "reduce": [28, [4, 6, 8, 10]],
            "local results": "tuple",
        }


def test_each_old_name_is_replaced_in_one_line_at_the_line_that_called_it(results: Results) -> None:
    for process in results:
        lines = process["log"]
        assert {(level, file) for level, file, _ in lines} == {("WARNING", SCRIPT.name)}
        texts = [text for *_, text in lines]
        assert sorted(text.split()[0] for text in texts) == [f"strategy.{name}" for name in OLD_NAMES]
        assert all(" HINT: write " in text for text in texts)


def test_prefetching_input_starts_again_outside_of_functions(mirrored: Results) -> None:
    found = mirrored[0]["restart_of_prefetching_input"]
    assert found["first"] == found["again"] == HALVES


def test_prefetching_input_in_a_function_is_refused_and_not_left_where_it_was(mirrored: Results) -> None:
    for case in ("captured", "in function"):
        error = mirrored[0]["restart_of_prefetching_input"][case]
        assert error.startswith("ConfigError: the DistributedIterator behind this iterator copies batches")
        assert "HINT: give the function a new iterator" in error


@pytest.mark.parametrize(
    "name", [*OLD_NAMES, "experimental_local_results", "experimental_distribute_dataset", "reduce", "scope"]
)
def test_migration_page_has_a_row_for_each_name(name: str) -> None:
    page = (Path(__file__).parents[3] / "docs" / "migration.md").read_text(encoding="utf-8")
    assert re.search(rf"^\| (`[^|]*, )?`{name}\(", page, re.MULTILINE)
