"""What Keras 3 expects of a strategy holds under ours, on two devices and on two workers, number by number.

The cases are in ``scripts/keras_distribute_*.py``, what they must come to in ``..._expected.py``.  A process
(or a pair) runs all cases of a setting.
"""

from __future__ import annotations

import concurrent.futures
from pathlib import Path

import numpy as np
import pytest

from tests.integration import cluster
from tests.integration.scripts import keras_distribute_models_expected as models
from tests.integration.scripts import keras_distribute_optimizers_expected as optimizers
from tests.integration.scripts.keras_distribute_models_expected import Arrays, Process

SCRIPT = Path(__file__).parent / "scripts" / "keras_distribute.py"

PROCESSES = {
    "devices": Process(replicas=(0, 1), places=((0, 0), (0, 1))),
    "worker-0": Process(replicas=(0,), places=((0, 0),)),
    "worker-1": Process(replicas=(1,), places=((1, 0),)),
}
EXPECTED = {**models.EXPECTED, **optimizers.EXPECTED}

# Compared by a test of their own, because what they give is random.
OF_TENSORFLOW = {"seed_generator": {"draws", "draws of tensorflow"}}


class Results:
    """Runs both settings beside each other, once, when first asked for, and remembers how that ended."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._reports: dict[str, str] = {}

    def __call__(self, process: str, case: str) -> Arrays:
        setting = "devices" if process == "devices" else "workers"
        if not self._reports:
            settings = ("devices", "workers")
            with concurrent.futures.ThreadPoolExecutor() as pool:
                self._reports = dict(zip(settings, pool.map(self._run, settings), strict=True))
        path = self._directory / f"{process}-{case}.npz"
        assert path.exists(), f"{process} did not come to the end of {case}:\n{self._reports[setting]}"
        with np.load(path) as arrays:
            return dict(arrays)

    def _run(self, setting: str) -> str:
        workers = 2 if setting == "workers" else 0
        arguments = [setting, str(self._directory)]
        output = self._directory / f"output-{setting}"
        output.mkdir()
        try:
            cluster.run_workers(SCRIPT, arguments, directory=output, workers=workers, timeout_s=280)
        except cluster.WorkersFailedError as error:
            return str(error)
        return ""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return Results(tmp_path_factory.mktemp("keras_distribute"))


@pytest.mark.timeout(600)  # the first test of a setting runs all of it
@pytest.mark.parametrize("process", PROCESSES)
@pytest.mark.parametrize("case", EXPECTED)
def test_case_ends_with_the_numbers_that_numpy_computes(results: Results, case: str, process: str) -> None:
    found, expected = results(process, case), EXPECTED[case](PROCESSES[process])
    assert found.keys() - OF_TENSORFLOW.get(case, set()) == expected.keys()
    for name, value in expected.items():
        value = np.asarray(value)
        assert found[name].shape == value.shape, name
        if value.dtype.kind in "bU":
            np.testing.assert_array_equal(found[name], value, err_msg=name)
        else:
            np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("process", PROCESSES)
def test_replicas_draw_what_tensorflow_draws_from_the_same_seed(results: Results, process: str) -> None:
    found = results(process, "seed_generator")
    draws, alone = found["draws"], found["draws of tensorflow"]
    assert len({tuple(one) for one in alone}) == 3
    for replica in range(len(PROCESSES[process].replicas)):
        np.testing.assert_array_equal(draws[:, replica], alone)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("setting", [("devices",), ("worker-0", "worker-1")], ids=["devices", "workers"])
def test_every_row_of_a_shuffled_epoch_goes_to_one_replica_with_its_target_and_weight(
    results: Results, setting: tuple[str, ...]
) -> None:
    numbers = []
    for process in setting:
        found = results(process, "epoch_iterator")
        np.testing.assert_array_equal(found["steps"], range(7))
        for replica in PROCESSES[process].replicas:
            number = found[f"{replica} x"][:, 0]
            np.testing.assert_array_equal(found[f"{replica} sizes"], [8] * 6 + [2])
            np.testing.assert_array_equal(found[f"{replica} y"][:, 0], 2 * number)
            np.testing.assert_array_equal(found[f"{replica} weight"], number + 0.5)
            numbers.append(number)
    assert sorted(np.concatenate(numbers)) == list(range(models.NUMBERED_ROWS))
    assert any(list(number) != sorted(number) for number in numbers)
