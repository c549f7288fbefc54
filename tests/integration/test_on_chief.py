"""Two workers with the same callbacks: the chief alone writes, and after a restart it remembers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.integration import cluster

SCRIPT = Path(__file__).parent / "scripts" / "on_chief.py"
LIVES = ("first", "second")


class Ended(NamedTuple):
    """What two lives of two workers left."""

    files: list[str]
    rows: list[str]
    found: dict[str, list[dict[str, Any]]]
    outputs: dict[str, list[str]]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    directory = tmp_path_factory.mktemp("on-chief")
    outputs = {}
    for life in LIVES:
        workers = cluster.run_workers(SCRIPT, [str(directory), life], directory=directory, timeout_s=120)
        outputs[life] = [one.output for one in workers]
    found = {
        life: [json.loads((directory / f"{life}-{worker}.json").read_text("utf-8")) for worker in range(2)]
        for life in LIVES
    }
    files = sorted(path.name for path in directory.iterdir())
    return Ended(files, (directory / "anew-0.csv").read_text("utf-8").splitlines(), found, outputs)


def test_training_was_interrupted_and_went_on(ended: Ended) -> None:
    assert [[one["preempted"] for one in ended.found[life]] for life in LIVES] == [[True] * 2, [False] * 2]
    losses, of_other = (one["losses"] for one in ended.found["second"])
    assert losses == of_other
    assert len(losses) == 4
    assert losses == sorted(losses, reverse=True)


def test_only_the_chief_wrote_and_it_knew_the_best_epoch_after_the_restart(ended: Ended) -> None:
    wrapped = [name for name in ended.files if name.startswith(("best-", "anew-"))]
    assert wrapped == ["anew-0.csv", "best-0-1.weights.h5"]
    assert [row.split(",")[0] for row in ended.rows] == ["epoch", "0", "1", "2", "3"]
    second, losses = ended.found["second"], ended.found["second"][0]["losses"]
    assert second[0]["best"] == losses[0]


def warned(ended: Ended, life: str, text: str) -> list[int]:
    """How often each worker warned of something."""
    return [output.count(text) for output in ended.outputs[life]]


def test_other_workers_warn_of_what_they_write_beside_the_chief(ended: Ended) -> None:
    for life in LIVES:
        assert warned(ended, life, "which is not the chief, was given callbacks that write files") == [0, 1]
    assert "write files: CSVLogger('" in ended.outputs["first"][1]


def test_other_workers_do_not_warn_of_what_the_chief_writes(ended: Ended) -> None:
    for life in LIVES:
        assert warned(ended, life, "begins its file anew") == [0, 0]
        assert warned(ended, life, "keeps state that is not saved") == [0, 0]
