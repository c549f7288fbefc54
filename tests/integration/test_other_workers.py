"""Another number of workers goes on with the same batches: two, then three, then one."""

from __future__ import annotations

import collections
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration import cluster

pytestmark = pytest.mark.timeout(1800)  # the first test waits for all runs

SCRIPT = Path(__file__).parent / "scripts" / "other_workers.py"
EXAMPLES, BATCH = 44, 8

# Steps of each kind of training, over two epochs; "accumulate" applies gradients in each third step.
STEPS = {"fit": 12, "repeat": 14, "accumulate": 12, "loop": 12, "loop_repeat": 14}

SAMPLE = ["fit-1", "fit-8", "repeat-7", "accumulate-4", "loop-5", "loop_repeat-6"]

ALL = [f"{kind}-{step}" for kind, steps in STEPS.items() for step in range(1, steps - 1)]

UNDISTURBED = 1000  # more steps than there are


def _run(root: Path, mode: str, jobs: list[str], workers: int) -> list[cluster.Finished]:
    output = root / f"output-{mode}-{workers}"
    output.mkdir()
    return cluster.run_workers(
        SCRIPT, [str(root), mode, *jobs], directory=output, workers=workers, timeout_s=100 + 12 * len(jobs)
    )


def _lives(root: Path, jobs: list[str], *, paused: bool) -> list[cluster.Finished]:
    """Trains each kind undisturbed with one worker, and each job with two, perhaps three, then one."""
    _run(root, "begin", [f"{kind}-{UNDISTURBED}" for kind in STEPS], workers=1)
    _run(root, "begin", jobs, workers=2)
    if paused:
        _run(root, "pause", jobs, workers=3)
    return _run(root, "finish", jobs, workers=1)


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[cluster.Finished]]:
    root = tmp_path_factory.mktemp("other_workers")
    return root, _lives(root, SAMPLE, paused=True)


@pytest.fixture(scope="module")
def everywhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("all_other_workers")
    _lives(root, ALL, paused=False)
    return root


def _notes(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(directory.glob("[bpf]*-?.json"))]


def _batches(directory: Path) -> dict[int, list[int]]:
    """The examples that all workers together trained on in each step, over all lives."""
    batches = collections.defaultdict(list)
    for notes in _notes(directory):
        for step, index in notes["trained"]:
            batches[step].append(index)
    return {step: sorted(indices) for step, indices in batches.items()}


def _result(directory: Path, mode: str) -> dict[str, np.ndarray]:
    with np.load(directory / f"{mode}-0.npz") as saved:
        return dict(saved)


def _check(root: Path, job: str) -> None:
    kind = job.partition("-")[0]
    undisturbed = root / f"{kind}-{UNDISTURBED}"
    expected = _batches(undisturbed)
    if kind != "accumulate":  # there the step counts updates
        assert len(expected) == STEPS[kind]
    assert _batches(root / job) == expected
    found, wanted = _result(root / job, "finish"), _result(undisturbed, "begin")
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("job", SAMPLE)
def test_batches_and_weights_are_those_of_one_undisturbed_worker(sampled: Any, job: str) -> None:
    _check(sampled[0], job)


@pytest.mark.exhaustive
@pytest.mark.parametrize("job", ALL)
def test_batches_and_weights_after_every_step(everywhere: Path, job: str) -> None:
    _check(everywhere, job)


def test_each_epoch_has_each_example_once(sampled: Any) -> None:
    batches = _batches(sampled[0] / "fit-8")
    per_epoch = math.ceil(EXAMPLES / BATCH)
    for epoch in range(2):
        steps = range(epoch * per_epoch, (epoch + 1) * per_epoch)
        assert sorted(index for step in steps for index in batches[step]) == list(range(EXAMPLES))


def test_nothing_is_read_again(sampled: Any) -> None:
    finished = json.loads((sampled[0] / "loop-5" / "finish-0.json").read_text())
    first, *others = finished["read"]
    assert first == 0  # to see what items are like
    assert others == [index for _, index in finished["trained"]] != []


def test_nothing_is_said_where_the_number_is_the_same(tmp_path: Path) -> None:
    _run(tmp_path, "begin", ["loop-3"], workers=1)
    (finished,) = _run(tmp_path, "finish", ["loop-3"], workers=1)
    assert "Restored step " in finished.output  # 3 or 4: as soon as the notice is known
    assert "this job has" not in finished.output


def test_it_is_said_once_that_the_result_is_not_bit_identical(sampled: Any) -> None:
    output = sampled[1][0].output
    warning = "was written by 3 worker(s), and this job has 1: the same examples come in the same batches"
    assert output.count(warning) == len(SAMPLE)
    assert "start 3 worker(s) for an exact resume" in output


def test_other_numbers_of_replicas_are_refused_in_fit_and_the_old_number_goes_on(tmp_path: Path) -> None:
    script = SCRIPT.with_name("other_replicas.py")
    arguments = [str(tmp_path / "run"), str(tmp_path / "lives.json")]
    cluster.run_workers(script, arguments, directory=tmp_path, workers=0)
    told, refused, finished = json.loads((tmp_path / "lives.json").read_text())
    assert told.startswith("Preempted")
    assert refused.startswith(
        "CheckpointMismatchError: The checkpoint was written with 2 replica(s) per worker"
    )
    assert "HINT: use 2 device(s) per worker" in refused
    assert finished == "finished"
