"""Two workers, one of them told or killed: the restarted run ends with every bit of the undisturbed one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.integration import cluster
from tests.integration.test_exact_resume import SCRIPT, Position, assert_identical, notices_position, outcome

RECORD_EXIT = SCRIPT.with_name("record_exit.py")
RESTART = 42

# The others notice a lost peer within 15 s; starting, tracing and leaving take the rest on a busy machine.
_SURVIVOR_LEAVES_WITHIN_S = 25.0


class Ended(NamedTuple):
    """How the two processes of one life ended: exit status and time, by worker."""

    statuses: list[int]
    times: list[float]
    outputs: list[str]


def live(root: Path, word: str) -> Ended:
    """One life of the job; `word` is the script's."""
    output = root / "output" / word
    output.mkdir(parents=True)
    finished = cluster.run_workers(
        RECORD_EXIT, [str(output), str(SCRIPT), str(root), f"default/{word}"], directory=output, timeout_s=90
    )
    ends = [json.loads((output / f"{worker}.exit").read_text()) for worker in range(2)]
    return Ended([status for status, _ in ends], [when for _, when in ends], [one.output for one in finished])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of the undisturbed run."""
    root = tmp_path_factory.mktemp("whole")
    ended = live(root, "whole")
    assert ended.statuses == [0, 0], ended.outputs
    return root / "default" / "whole"


def assert_same_as(whole: Path, directory: Path) -> None:
    for worker in range(2):
        assert_identical(outcome(directory, worker), outcome(whole, worker))


def long_only(*values: object) -> object:
    """A case that only the long version of the tests has."""
    return pytest.param(*values, marks=pytest.mark.exhaustive)


# The event after which the worker is told, see the script, and where that may be: a worker in a collective
# that the other has not entered finishes it first.
NOTICES = [
    ("1@0", [("train", 0, 0), ("train", 0, 1)]),
    long_only("3@1", [("train", 0, 2), ("train", 0, 3)]),
    long_only("5@0", [("train", 0, 4), ("validate", 0, 0)]),
    ("7@1", [("validate", 0, 0), ("validate", 0, 1), ("validate", 0, 2)]),
    ("13@0", [("train", 1, 2), ("train", 1, 3)]),
]


@pytest.mark.parametrize(("word", "positions"), NOTICES)
def test_notice_on_one_worker(whole: Path, tmp_path: Path, word: str, positions: list[Position]) -> None:
    ended = live(tmp_path, word)
    assert ended.statuses == [RESTART, RESTART], ended.outputs
    directory = tmp_path / "default" / word.partition("@")[0]
    assert notices_position(directory) in positions

    resumed = live(tmp_path, f"resume:{directory.name}")
    assert resumed.statuses == [0, 0], resumed.outputs
    assert_same_as(whole, directory)
    for worker in range(2):
        trained = outcome(directory, worker).trained
        assert trained == outcome(whole, worker).trained
        assert set(trained.values()) == {1}


def test_killed_worker(whole: Path, tmp_path: Path) -> None:
    """The kill comes in the second epoch, after the save with which each epoch begins."""
    ended = live(tmp_path, "13@1-9")
    assert ended.statuses == [RESTART, -9], ended.outputs
    assert ended.times[0] - ended.times[1] < _SURVIVOR_LEAVES_WITHIN_S

    resumed = live(tmp_path, "resume:13")
    assert resumed.statuses == [0, 0], resumed.outputs
    assert_same_as(whole, tmp_path / "default" / "13")
    repeated = outcome(tmp_path / "default" / "13").trained
    assert set(repeated) == set(outcome(whole).trained)
    assert {line for line, times in repeated.items() if times > 1} <= {"train 1 0", "train 1 1", "train 1 2"}


def test_damage_to_one_workers_part_makes_both_go_on_from_the_checkpoint_before(
    whole: Path, tmp_path: Path
) -> None:
    """The first worker finds it by its checksum, before anybody restores."""
    ended = live(tmp_path, "13@0")
    assert ended.statuses == [RESTART, RESTART], ended.outputs
    directory = tmp_path / "default" / "13"
    parts = sorted(directory.rglob("00001-of-00002.index"), key=lambda path: path.parent.name)
    assert len(parts) > 1
    parts[-1].write_bytes(bytes(parts[-1].stat().st_size))  # the size is looked at before anybody restores

    resumed = live(tmp_path, "resume:13")
    assert resumed.statuses == [0, 0], resumed.outputs
    assert_same_as(whole, directory)
    assert max(outcome(directory).trained.values()) > 1
