"""Custom loops of all kinds on two replicas, of one or two processes, train like one without a strategy."""

from __future__ import annotations

import concurrent.futures
from pathlib import Path

import numpy as np
import pytest

from tests.integration import cluster

pytestmark = pytest.mark.timeout(600)  # the first test of a module waits for all runs

SCRIPT = Path(__file__).parent / "scripts" / "custom_loops.py"

# With the number of rows: 16 make two even batches of 8, 17 leave one replica without rows in the last batch,
# 21 leave it with fewer.
TRAINED = [
    "eager 17",
    "function_around_run 16",
    "function_around_run 17",
    "function_around_run 21",
    "function_that_draws 17",
    "run_of_function 17",
    "function_around_run_of_function 17",
    "for_in_function 16",
    "for_in_function 17",
    "for_in_function 21",
    "range_in_function 16",
    "range_in_function 17",
    "range_in_function 21",
    "range_with_nested_function 17",
    "optional_in_function 17",
    "data_set_in_function 17",
    "from_function 17",
    "by_global_size 17",
    "weighted 17",
    "regularized 21",
    "by_hand 16",
    "by_hand 21",
    "all_reduce 17",
    "merge_call 17",
]
RESUMED = [
    "resumed function_that_draws 17",
    "resumed for_in_function 16",
    "resumed for_in_function 17",
    "resumed range_in_function 17",
    "resumed optional_in_function 17",
]
GATHERED = ["gathered 17", "gathered 21"]

Results = dict[str, dict[str, np.ndarray]]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    directory = tmp_path_factory.mktemp("loops")

    def run(name: str, *arguments: str, workers: int = 0) -> None:
        output = directory / name
        output.mkdir()
        cluster.run_workers(
            SCRIPT, [str(directory), *arguments], directory=output, workers=workers, timeout_s=240
        )

    with concurrent.futures.ThreadPoolExecutor() as pool:
        processes = [pool.submit(run, "output-alone"), pool.submit(run, "output-replicas", "replicas")]
    for process in processes:
        process.result()
    run("output-workers", workers=2)
    found = {}
    for name in ("alone", "replicas", "worker-0", "worker-1"):
        with np.load(directory / f"{name}.npz") as arrays:
            found[name] = dict(arrays)
    return found


def case_of(results: Results, name: str, case: str) -> dict[str, np.ndarray]:
    found = {key.split("/")[1]: value for key, value in results[name].items() if key.startswith(f"{case}/")}
    assert found, f"{name} has no results of {case}"
    return found


@pytest.mark.parametrize("process", ["replicas", "worker-0", "worker-1"])
@pytest.mark.parametrize("case", [*TRAINED, *RESUMED, *GATHERED])
def test_two_replicas_have_what_one_process_has(results: Results, case: str, process: str) -> None:
    alone, together = case_of(results, "alone", case), case_of(results, process, case)
    assert alone.keys() == together.keys()
    rtol = 1e-6 if case in GATHERED else 1e-5  # steps of a training amplify what a CPU rounds in its own way
    for name, expected in alone.items():
        np.testing.assert_allclose(together[name], expected, rtol=rtol, atol=1e-6, err_msg=f"{case}: {name}")


@pytest.mark.parametrize("process", ["alone", "replicas", "worker-0", "worker-1"])
@pytest.mark.parametrize("case", RESUMED)
def test_rest_of_an_epoch_is_the_same_from_a_saved_position(
    results: Results, case: str, process: str
) -> None:
    found = case_of(results, process, case)
    names = [name.removeprefix("resumed ") for name in found if name.startswith("resumed ")]
    assert "loss" in names
    for name in names:
        np.testing.assert_array_equal(found[f"resumed {name}"], found[f"undisturbed {name}"], err_msg=name)


@pytest.mark.parametrize("case", TRAINED)
def test_the_second_epoch_is_better_than_the_first(results: Results, case: str) -> None:
    """Comparing with a process that does not learn would say nothing."""
    losses = case_of(results, "alone", case)["loss"]
    first, second = np.array_split(losses, 2)
    assert second.sum() < 0.9 * first.sum()


def test_all_loops_use_the_rows_alike(results: Results) -> None:
    """Loops differ in how they draw, not in what: all ways through 17 rows end with the same weights."""
    expected = case_of(results, "alone", "eager 17")["weight 0"]
    for case in ("for_in_function 17", "range_in_function 17", "optional_in_function 17", "from_function 17"):
        np.testing.assert_allclose(case_of(results, "alone", case)["weight 0"], expected, rtol=1e-5)


def test_no_case_of_the_script_is_left_out(results: Results) -> None:
    assert {key.split("/")[0] for key in results["alone"]} == {*TRAINED, *RESUMED, *GATHERED}
