"""Keras 3 on two workers, and on two devices, comes to what one process comes to on the same global batches.

The cases are functions in ``scripts/keras_matrix_<group>.py``; one process (or pair) runs all of a group.
"""

from __future__ import annotations

import concurrent.futures
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.integration import cluster
from tests.integration.scripts import keras_matrix_table as table

SCRIPT = Path(__file__).parent / "scripts" / "keras_matrix.py"
PROCESSES = {"alone": ("alone",), "workers": ("worker-0", "worker-1"), "devices": ("devices",)}
BESIDE_EACH_OTHER = (("alone", "devices"), ("workers",))  # two processes at a time

Arrays = dict[str, np.ndarray]
ResultsOf = Callable[[table.Case, str], dict[str, Arrays]]

CASES = [
    pytest.param(case, setting, id=f"{case.name}-{setting}")
    for case in table.CASES
    for setting in table.SETTINGS
]


class Runs:
    """Runs each group once per setting, and remembers how that ended."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._failures: dict[tuple[str, str], str] = {}

    def results_of(self, case: table.Case, setting: str) -> dict[str, Arrays]:
        """Arrays of the case, for each process that takes part in the setting."""
        failure = self._run(case.group, setting)
        found = {}
        for process in PROCESSES[setting]:
            path = self._directory / f"{process}-{case.name}.npz"
            assert path.exists(), f"{process} did not come to the end of {case.name}:\n{failure}"
            with np.load(path) as arrays:
                found[process] = dict(arrays)
        return found

    def _run(self, group: str, setting: str) -> str:
        if (group, setting) not in self._failures:
            settings = next(some for some in BESIDE_EACH_OTHER if setting in some)
            with concurrent.futures.ThreadPoolExecutor() as pool:
                failures = list(pool.map(lambda one: self._failure_of(group, one), settings))
            self._failures |= {(group, one): failure for one, failure in zip(settings, failures, strict=True)}
        return self._failures[group, setting]

    def _failure_of(self, group: str, setting: str) -> str:
        output = self._directory / f"output-{group}-{setting}"
        output.mkdir()
        workers = 2 if setting == "workers" else 0
        arguments = [setting, str(self._directory), group]
        try:
            cluster.run_workers(SCRIPT, arguments, directory=output, workers=workers, timeout_s=280)
        except cluster.WorkersFailedError as error:
            return str(error)
        return ""


@pytest.fixture(scope="module")
def results_of(tmp_path_factory: pytest.TempPathFactory) -> ResultsOf:
    return Runs(tmp_path_factory.mktemp("matrix")).results_of


@pytest.mark.timeout(600)  # the first test of a group runs it in two settings
@pytest.mark.parametrize(("case", "setting"), CASES)
def test_case_ends_as_it_does_alone_or_as_documented(
    results_of: ResultsOf, case: table.Case, setting: str
) -> None:
    for process, found in results_of(case, setting).items():
        if setting in case.refused:
            assert re.search(case.refused[setting], str(found["error"]), re.DOTALL), process
            continue
        expected = results_of(case, "alone")["alone"]
        assert found.keys() == expected.keys(), process
        for name, value in expected.items():
            np.testing.assert_allclose(
                found[name], value, rtol=case.tolerance, atol=case.tolerance, err_msg=f"{process}: {name}"
            )


def alone(results_of: ResultsOf, name: str) -> Arrays:
    (case,) = [case for case in table.CASES if case.name == name]
    return results_of(case, "alone")["alone"]


@pytest.mark.parametrize("name", ["numpy_arrays", "steps_per_epoch", "gradient_accumulation", "recurrent"])
def test_reference_has_trained(results_of: ResultsOf, name: str) -> None:
    losses = alone(results_of, name)["history loss"]
    assert np.isfinite(losses).all()
    assert len(set(losses)) == len(losses) or len(losses) == 1


def test_references_hold_what_their_cases_are_about(results_of: ResultsOf) -> None:
    """A case whose reference lost its point would compare equal for ever."""
    validated = alone(results_of, "validation_data").keys()
    assert {"history val_loss", "history val_mae", "again history val_loss"} <= validated
    assert len(alone(results_of, "validation_freq")["history val_loss"]) == 1
    assert alone(results_of, "early_stopping")["stopped"] == 2
    assert alone(results_of, "reduce_lr_on_plateau")["rate"] < 0.01
    assert alone(results_of, "float16_overflow")["updates"] == 1
    assert alone(results_of, "mixed_float16")["scale"] == 256 * 2**3
    assert len(alone(results_of, "tensorboard")["epoch losses"]) == 2
    lengths = {name: len(rows) for name, rows in alone(results_of, "predict_uneven_tails").items()}
    assert lengths == {f"{kind} of {rows}": rows for kind in ("array", "data set") for rows in (1, 7, 17, 21)}


def test_table_in_the_documentation_is_up_to_date() -> None:
    page = table.PAGE.read_text(encoding="utf-8")
    assert page == table.with_table(page), f"HINT: python -m {table.__name__} --write"


def test_names_of_the_table_are_the_functions_of_the_groups() -> None:
    for group in {case.group for case in table.CASES}:
        source = (SCRIPT.parent / f"keras_matrix_{group}.py").read_text(encoding="utf-8")
        functions = re.findall(r"^def ([a-z]\w*)\(setting: Setting\)", source, re.MULTILINE)
        assert sorted(functions) == sorted(case.name for case in table.cases_of(group)), group
