"""A run that was interrupted anywhere ends with every bit of the run that was not: one process."""

from __future__ import annotations

import collections
import concurrent.futures
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.integration import cluster

pytestmark = pytest.mark.timeout(600)  # the first test of a module waits for all runs

SCRIPT = Path(__file__).parent / "scripts" / "exact_resume.py"

# Events of fit in the script: each epoch's begin, training steps, the validation's begin and its steps.
Position = tuple[str, int, int]


class Shape(NamedTuple):
    """Steps of an epoch and of its validation, and how many steps an execution has."""

    train: int = 5
    validate: int = 3
    stride: int = 1
    unknown: bool = False


SHAPES = collections.defaultdict(
    Shape,
    unknown=Shape(unknown=True),
    nested=Shape(unknown=True),
    steps_per_epoch=Shape(train=4, validate=2),
    two_per_execution=Shape(stride=2),
    replicas_two_per_execution=Shape(stride=2),
)


def positions_after_events(shape: Shape) -> list[Position]:
    """Where each event's next boundary is; the first event is number 1, the list begins with it."""
    positions: list[Position] = []
    for epoch in range(2):
        train = list(range(shape.stride, shape.train, shape.stride))
        # Where the length is unknown there is a boundary before the step that finds no data.
        over = [("train", epoch, shape.train)] if shape.unknown else [("validate", epoch, 0)]
        positions += [("train", epoch, 0)]
        positions += [("train", epoch, step) for step in train]
        positions += over
        positions += [("validate", epoch, 0)]
        positions += [("validate", epoch, step) for step in range(shape.stride, shape.validate, shape.stride)]
        if shape.unknown:
            positions += [("validate", epoch, shape.validate)]
        elif epoch == 0:
            positions += [("train", 1, 0)]
    return positions


def events_of(variant: str) -> range:
    """All events after which `fit` can be interrupted."""
    return range(1, len(positions_after_events(SHAPES[variant])) + 1)


SAMPLES = {
    "unknown": (6, 7, 10, 13, 20),
    "steps_per_epoch": (3, 6, 9, 15),
    "nested": (6, 12, 18),
    "arrays": (6, 8, 14),
    "two_per_execution": (2, 4, 8, 12),
    "replicas": (5, 7, 9, 14),
    "replicas_two_per_execution": (3, 5, 9),
    "replicas_own_state": (2, 8, 11),
}


TWICE = ("default", "unknown", "nested")


class Outcome(NamedTuple):
    """What a completed run left: arrays by name, History, and how often each batch was trained."""

    arrays: dict[str, np.ndarray]
    history: Any
    trained: collections.Counter[str]


def outcome(directory: Path, worker: int = 0) -> Outcome:
    with np.load(directory / f"{worker}.npz") as saved:
        arrays = dict(saved)
    lines = (directory / f"{worker}.trained").read_text().splitlines()
    history = json.loads((directory / f"{worker}.json").read_text())
    return Outcome(arrays, history, collections.Counter(lines))


def assert_identical(found: Outcome, expected: Outcome) -> None:
    assert found.arrays.keys() == expected.arrays.keys()
    for name, array in expected.arrays.items():
        assert found.arrays[name].tobytes() == array.tobytes(), name
    assert found.history == expected.history


def notices_position(directory: Path) -> Position:
    """The resume point of the newest checkpoint that a notice caused."""
    manifests = [json.loads(path.read_text()) for path in directory.glob("*.manifest.json")]
    noticed = [one for one in manifests if one["reason"].startswith("notice")]
    newest = max(noticed, key=lambda one: one["number"])
    return tuple(newest["resume"][key] for key in ("phase", "epoch", "step"))


def run(root: Path, jobs: list[str], name: str) -> None:
    """Runs the script in a new process."""
    output = root / "output" / name
    output.mkdir(parents=True)
    cluster.run_workers(SCRIPT, [str(root), *jobs], directory=output, workers=0, timeout_s=280)


def run_halves(root: Path, jobs: list[str], name: str) -> None:
    """Runs the script in two new processes at a time, half of the jobs in each."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        halves = [pool.submit(run, root, jobs[half::2], f"{name}-{half}") for half in range(2)]
    for half in halves:
        half.result()


def interrupt_and_resume(root: Path, events: Mapping[str, Iterable[int]]) -> Path:
    """Trains variants undisturbed and interrupted after each of their events; new processes go on."""
    jobs = [f"{variant}/{event}" for variant, chosen in events.items() for event in chosen]
    run_halves(root, [f"{variant}/whole" for variant in events] + jobs, "first")
    run_halves(root, [job.replace("/", "/resume:") for job in jobs], "second")
    return root


@pytest.fixture(scope="module")
def some(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every boundary of the default variant, and samples of the others."""
    return interrupt_and_resume(tmp_path_factory.mktemp("some"), {"default": events_of("default"), **SAMPLES})


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every boundary of the variants that normal runs sample."""
    return interrupt_and_resume(tmp_path_factory.mktemp("every"), {name: events_of(name) for name in SAMPLES})


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Interrupted in the second epoch, and in the second life again before its first validation."""
    root = tmp_path_factory.mktemp("twice")
    run_halves(root, [f"{variant}/12" for variant in TWICE], "first")
    run_halves(root, [f"{variant}/resume:12:2" for variant in TWICE], "second")
    run_halves(root, [f"{variant}/resume:12" for variant in TWICE], "third")
    return root


def check(root: Path, variant: str, event: int) -> None:
    whole = outcome(root / variant / "whole")
    here = root / variant / str(event)
    assert notices_position(here) == positions_after_events(SHAPES[variant])[event - 1]
    resumed = outcome(here)
    assert resumed.trained == whole.trained
    assert set(resumed.trained.values()) == {1}
    assert_identical(resumed, whole)


@pytest.mark.parametrize("event", events_of("default"))
def test_every_boundary_resumes_exactly(some: Path, event: int) -> None:
    check(some, "default", event)


@pytest.mark.parametrize(
    ("variant", "event"), [(variant, event) for variant, events in SAMPLES.items() for event in events]
)
def test_other_data_resumes_exactly(some: Path, variant: str, event: int) -> None:
    check(some, variant, event)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("variant", "event"), [(variant, event) for variant in SAMPLES for event in events_of(variant)]
)
def test_every_boundary_of_other_data_resumes_exactly(every: Path, variant: str, event: int) -> None:
    check(every, variant, event)


def test_events_cover_every_boundary_of_two_epochs() -> None:
    expected = {("train", epoch, step) for epoch in range(2) for step in range(5)}
    expected |= {("validate", epoch, step) for epoch in range(2) for step in range(3)}
    assert set(positions_after_events(SHAPES["default"])) == expected


def test_undisturbed_run_learns_and_validates(some: Path) -> None:
    epochs, history = outcome(some / "default" / "whole").history
    assert epochs == [0, 1]
    assert set(history) == {
        f"{prefix}{name}" for prefix in ("", "val_") for name in ("loss", "accuracy", "auc")
    }
    assert len(set(history["loss"])) == len(set(history["val_loss"])) == 2


@pytest.mark.parametrize("variant", TWICE)
def test_second_interruption_before_the_first_validation_of_a_life(
    some: Path, twice: Path, variant: str
) -> None:
    whole, resumed = outcome(some / variant / "whole"), outcome(twice / variant / "12")
    assert notices_position(twice / variant / "12") == ("train", 1, 2)
    assert resumed.trained == whole.trained
    assert_identical(resumed, whole)
