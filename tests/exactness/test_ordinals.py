"""Which `fit` of a program a checkpoint belongs to, and that the last one of each stays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.exactness import lives
from tests.exactness.fit_programs import model, pipeline, validation
from tests.exactness.lives import Life, Outcome, all_variables


def three_fits(life: Life) -> list[Any]:
    made = model(life)
    for number in range(3):
        life.fit(made, x=pipeline(seed=number), epochs=2)
    return all_variables(made)


def resume_points(directory: Path) -> list[tuple[int, str]]:
    """Ordinal of the `fit` and phase of each checkpoint that is there, oldest first."""
    manifests = [json.loads(path.read_text()) for path in directory.glob("*.manifest.json")]
    manifests.sort(key=lambda one: one["number"])
    return [(one["resume"]["fit"], one["resume"]["phase"]) for one in manifests]


@pytest.mark.parametrize("max_to_keep", [1, 2])
def test_last_commit_of_each_finished_fit_stays(tmp_path: Path, max_to_keep: int) -> None:
    directory = tmp_path / "run"
    options = {"max_to_keep": max_to_keep, "save_every": 3}
    assert Life(directory, Outcome(), **options).live(three_fits)
    found = resume_points(directory)
    assert [point for point in found if point[1] == "finished"] == [
        (number, "finished") for number in range(3)
    ]
    assert len(found) == 2 + max_to_keep


@pytest.mark.parametrize("fit", [0, 1, 2])
def test_interrupted_fit_is_the_one_that_goes_on(tmp_path: Path, fit: int) -> None:
    whole, found, directory = Outcome(), Outcome(), tmp_path / "run"
    assert Life(tmp_path / "whole", whole).live(three_fits)

    def interrupt(name: str) -> None:
        if name == f"fit {fit} epoch 1 train_batch_end 0":
            lives.give_notice()

    assert not Life(directory, found, on_moment=interrupt, max_to_keep=1).live(three_fits)
    finished = [(number, "finished") for number in range(fit)]
    assert resume_points(directory) == [*finished, (fit, "train")]
    assert Life(directory, found, max_to_keep=1).live(three_fits)
    assert resume_points(directory) == [(number, "finished") for number in range(3)]
    assert (found.seen, found.histories, found.variables) == (whole.seen, whole.histories, whole.variables)


def test_each_fit_of_a_complete_program_gives_its_history(tmp_path: Path) -> None:
    whole, again = Outcome(), Outcome()
    assert Life(tmp_path / "run", whole, max_to_keep=1).live(three_fits)
    before = sorted(path.name for path in (tmp_path / "run").glob("ckpt*"))
    assert Life(tmp_path / "run", again, max_to_keep=1).live(three_fits)
    assert again.seen == []
    assert len(again.histories) == 3
    assert (again.histories, again.variables) == (whole.histories, whole.variables)
    assert sorted(path.name for path in (tmp_path / "run").glob("ckpt*")) == before


def test_validation_data_used_again_comes_in_the_order_of_before(tmp_path: Path) -> None:
    """Its shuffle has ordered it twice in `fit`, which a program that is started again leaves out."""

    def program(life: Life) -> list[Any]:
        made, data = model(life), validation()
        life.fit(made, x=pipeline(), validation_data=data, epochs=2)
        life.result([y.numpy().ravel().tolist() for _ in range(2) for _, y in data])
        return []

    whole, again = Outcome(), Outcome()
    assert Life(tmp_path / "run", whole).live(program)
    assert Life(tmp_path / "run", again).live(program)
    assert again.histories == whole.histories


def test_lives_see_what_differs(tmp_path: Path) -> None:
    """Another order of the same rows is another training: what the matrix compares can differ."""
    one, other = Outcome(), Outcome()

    def fit_with(seed: int) -> lives.Program:
        def program(life: Life) -> list[Any]:
            made = model(life)
            life.fit(made, x=pipeline(seed=seed), epochs=1)
            return all_variables(made)

        return program

    assert Life(tmp_path / "one", one).live(fit_with(1))
    assert Life(tmp_path / "other", other).live(fit_with(2))
    assert one.seen != other.seen
    assert one.histories != other.histories
    assert one.variables != other.variables
