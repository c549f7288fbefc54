"""Programs that are started again as new processes."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.callbacks import lives

SCRIPT = Path(__file__).parent / "scripts" / "programs.py"
RESTART = 42


class Programs:
    """Starts a program in a directory of its own."""

    def __init__(self, directory: Path, start_script: Any) -> None:
        self._directory = directory
        self._start_script = start_script
        self.stderr = ""

    def start(self, program: str, name: str, kill_at: str = "") -> Any:
        """Lives to the end, and returns what that leaves."""
        self._await(self._begin(program, name, kill_at), 0)
        return json.loads((self._directory / f"{name}.json").read_text())

    def interrupt(self, program: str, kill_at: str, *, status: int) -> Any:
        """Ends a life early, while the undisturbed one runs beside it; returns what the latter leaves."""
        first = self._begin(program, "lives", kill_at)
        whole = self.undisturbed(program)
        self._await(first, status)
        return whole

    def _begin(self, program: str, name: str, kill_at: str) -> Any:
        places = [str(self._directory / name), str(self._directory / f"{name}.json")]
        arguments = [program, *places, *([kill_at] if kill_at else [])]
        return self._start_script(SCRIPT, *arguments, env={"CUDA_VISIBLE_DEVICES": "-1"})

    def _await(self, script: Any, status: int) -> None:
        ended = script.wait(120)
        assert ended.rc == status, ended.stderr
        self.stderr = ended.stderr

    def undisturbed(self, program: str) -> Any:
        """What the program leaves when nothing disturbs it; run once for all tests of this module."""
        if program not in _undisturbed:
            _undisturbed[program] = self.start(program, "whole")
        return _undisturbed[program]


_undisturbed: dict[str, Any] = {}


@pytest.fixture
def programs(tmp_path: Path, start_script: Any) -> Programs:
    return Programs(tmp_path, start_script)


def without_count(result: Any) -> Any:
    return {key: value for key, value in result.items() if key != "trained"}


def test_complete_program_trains_nothing_when_started_again(programs: Programs) -> None:
    whole = programs.start("one_fit", "lives")
    again = programs.start("one_fit", "lives")
    assert whole["trained"] == 3 * lives.STEPS
    assert again["trained"] == 0
    assert without_count(again) == without_count(whole)


@pytest.mark.parametrize(
    "program", ["two_fits_of_one_model", "two_fits_on_one_data_set", "random_numbers_between_fits"]
)
def test_interrupted_in_the_second_of_two_fits(programs: Programs, program: str) -> None:
    whole = programs.interrupt(program, "1.1.2", status=RESTART)
    resumed = programs.start(program, "lives")
    assert resumed["trained"] == 2 * lives.STEPS - 3
    assert resumed["weights"] == whole["weights"]
    assert resumed["histories"] == whole["histories"]


def test_interrupted_at_the_begin_of_the_second_fit(programs: Programs) -> None:
    """Its first checkpoint is at its first step."""
    whole = programs.interrupt("two_fits_of_one_model", "1.0.0", status=RESTART)
    assert without_count(programs.start("two_fits_of_one_model", "lives")) == without_count(whole)


@pytest.mark.parametrize("program", ["two_fits_on_one_data_set", "random_numbers_between_fits"])
def test_killed_before_the_first_checkpoint_of_the_second_fit(programs: Programs, program: str) -> None:
    whole = programs.interrupt(program, "1.-1.0", status=-signal.SIGKILL)
    assert without_count(programs.start(program, "lives")) == without_count(whole)


def test_lost_seeds_of_objects_trained_again_are_warned_of(programs: Programs) -> None:
    programs.start("same_cell_with_nested_shuffles", "lives", "0.1.3")
    assert programs.stderr.count("make the data set anew") == 1


def test_same_objects_trained_again_after_a_notice(programs: Programs) -> None:
    whole = programs.undisturbed("one_fit")
    again = programs.start("same_cell_again", "lives", "0.1.2")
    assert "make the data set anew" not in programs.stderr
    assert without_count(again) == without_count(whole)
    assert again["trained"] == whole["trained"]
