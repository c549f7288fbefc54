"""The example of a custom loop runs as its docstring says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(600)  # the example runs three times

SCRIPT = Path(__file__).parents[2] / "examples" / "custom_loop.py"


def run(directory: Path, *arguments: str | Path) -> str:
    """What a command that has to succeed prints."""
    ended = subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=directory, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def losses(printed: str) -> dict[int, float]:
    """The losses that the example prints, by epoch."""
    return {int(epoch): float(loss) for epoch, loss in re.findall(r"epoch (\d+): loss ([\d.]+)", printed)}


def test_two_workers_print_the_losses_of_one_process_and_nothing_when_started_again(tmp_path: Path) -> None:
    alone = losses(run(tmp_path, SCRIPT))
    launch = ("-m", "tf_preempt", "launch", "--workers", "2", "--", sys.executable, SCRIPT, tmp_path / "two")
    together = losses(run(tmp_path, *launch))

    assert list(alone) == [1, 2, 3, 4, 5]
    assert alone[5] < 0.5 * alone[1]
    assert together == pytest.approx(alone, abs=2e-4)  # four digits are printed
    assert losses(run(tmp_path, *launch)) == {}


@pytest.mark.parametrize(
    "workers", [pytest.param((), marks=pytest.mark.exhaustive), ("--workers", "2")], ids=["alone", "two"]
)
def test_interrupted_it_ends_with_the_weights_of_an_undisturbed_run(
    tmp_path: Path, workers: tuple[str, ...]
) -> None:
    options = (*workers, "--kills", "1", "--signals", "TERM", "--trust-deterministic")
    printed = run(tmp_path, "-m", "tf_preempt", "drill", *options, "--", sys.executable, SCRIPT)
    assert "identical: after 1 interruption, 240 steps ended with the bits of the undisturbed" in printed
