"""Two worker processes train, evaluate and predict like one process on the same global batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.integration import cluster

HERE = Path(__file__).parent


Results = dict[str, dict[str, np.ndarray]]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    directory = tmp_path_factory.mktemp("keras")
    script = HERE / "scripts" / "keras_cases.py"
    for workers in (0, 2):
        cluster.run_workers(script, [str(directory)], directory=directory, workers=workers, timeout_s=120)
    found = {}
    for name in ("alone", "worker-0", "worker-1"):
        with np.load(directory / f"{name}.npz") as arrays:
            found[name] = dict(arrays)
    return found


def case_of(results: Results, name: str, case: str) -> dict[str, np.ndarray]:
    found = {key.split("/")[1]: value for key, value in results[name].items() if key.startswith(f"{case}/")}
    assert found, f"{name} has no results of {case}"
    return found


@pytest.mark.parametrize("worker", ["worker-0", "worker-1"])
@pytest.mark.parametrize(
    "case",
    [
        "tf_data",
        "drop_remainder_and_steps",
        "unknown_cardinality",
        "numpy_arrays",
        "validation_arrays",
        "validation_data_set",
        "uint8_images",
        "strings_and_numbers",
        "integer_tokens",
        "predict_with_uneven_tails",
        "uneven_first_batch",
        "one_file",
    ],
)
def test_each_worker_has_what_one_process_has(results: Results, case: str, worker: str) -> None:
    alone, together = case_of(results, "alone", case), case_of(results, worker, case)
    assert alone.keys() == together.keys()
    for name, expected in alone.items():
        np.testing.assert_allclose(together[name], expected, rtol=1e-6, atol=1e-6, err_msg=f"{case}: {name}")


def test_training_changed_the_weights(results: Results) -> None:
    trained = [case_of(results, "alone", case)["weight 0"] for case in ("tf_data", "numpy_arrays")]
    assert not np.allclose(*trained)


def test_metrics_and_validation_are_in_the_history(results: Results) -> None:
    keys = case_of(results, "worker-1", "validation_arrays").keys()
    wanted = {f"history {prefix}{name}" for prefix in ("", "val_") for name in ("loss", "accuracy", "auc")}
    assert wanted <= keys


def test_predict_gives_all_rows_on_each_worker(results: Results) -> None:
    found = case_of(results, "worker-1", "predict_with_uneven_tails")
    assert {name: len(rows) for name, rows in found.items()} == {
        f"{kind} of {rows}": rows for kind in ("array", "data set") for rows in (1, 7, 17, 21)
    }
