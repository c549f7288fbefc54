"""The example of a custom loop runs as its docstring says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(600)  # the example runs three times

SCRIPT = Path(__file__).parents[2] / "examples" / "custom_loop.py"


def losses(directory: Path, *command: str) -> dict[int, float]:
    """The losses that the example prints, by epoch."""
    ended = subprocess.run(
        [*command, sys.executable, str(SCRIPT), str(directory), "--epochs", "3"],
        cwd=directory.parent,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return {
        int(epoch): float(loss) for epoch, loss in re.findall(r"epoch (\d+): loss ([\d.]+)", ended.stdout)
    }


def test_two_workers_print_the_losses_of_one_process_and_nothing_when_started_again(tmp_path: Path) -> None:
    alone = losses(tmp_path / "alone")
    launch = (sys.executable, "-m", "tf_preempt", "launch", "--workers", "2", "--")
    together = losses(tmp_path / "two", *launch)

    assert list(alone) == [1, 2, 3]
    assert alone[3] < 0.5 * alone[1]
    assert together == pytest.approx(alone, abs=2e-4)  # four digits are printed
    assert losses(tmp_path / "two", *launch) == {}
