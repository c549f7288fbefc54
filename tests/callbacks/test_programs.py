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

    def __init__(self, directory: Path, run_script: Any) -> None:
        self._directory = directory
        self._run_script = run_script
        self.stderr = ""

    def start(self, program: str, name: str, kill_at: str = "", *, status: int = 0) -> Any:
        result = self._directory / f"{name}.json"
        arguments = [program, str(self._directory / name), str(result), *([kill_at] if kill_at else [])]
        ended = self._run_script(SCRIPT, *arguments, env={"CUDA_VISIBLE_DEVICES": "-1"}, timeout=120)
        assert ended.rc == status, ended.stderr
        self.stderr = ended.stderr
        return json.loads(result.read_text()) if status == 0 else None

    def undisturbed(self, program: str) -> Any:
        """What the program leaves when nothing disturbs it; run once for all tests of this module."""
        if program not in _undisturbed:
            _undisturbed[program] = self.start(program, "whole")
        return _undisturbed[program]


_undisturbed: dict[str, Any] = {}


@pytest.fixture
def programs(tmp_path: Path, run_script: Any) -> Programs:
    return Programs(tmp_path, run_script)


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
    whole = programs.undisturbed(program)
    programs.start(program, "lives", "1.1.2", status=RESTART)
    resumed = programs.start(program, "lives")
    assert resumed["trained"] == 2 * lives.STEPS - 3
    assert resumed["weights"] == whole["weights"]
    assert resumed["histories"] == whole["histories"]


def test_interrupted_at_the_begin_of_the_second_fit(programs: Programs) -> None:
    """Its first checkpoint is at its first step."""
    whole = programs.undisturbed("two_fits_of_one_model")
    programs.start("two_fits_of_one_model", "lives", "1.0.0", status=RESTART)
    assert without_count(programs.start("two_fits_of_one_model", "lives")) == without_count(whole)


@pytest.mark.parametrize("program", ["two_fits_on_one_data_set", "random_numbers_between_fits"])
def test_killed_before_the_first_checkpoint_of_the_second_fit(programs: Programs, program: str) -> None:
    whole = programs.undisturbed(program)
    programs.start(program, "lives", "1.-1.0", status=-signal.SIGKILL)
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
