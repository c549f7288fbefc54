"""The example programs run as their docstrings say."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(tmp_path, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "tf_preempt", *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )


def test_training_example_runs_on_two_workers_and_trains_nothing_when_started_again(tmp_path):
    command = ["launch", "--workers", "2", "--", sys.executable, str(EXAMPLES / "train.py"), "runs/digits"]
    first = run(tmp_path, *command)
    assert first.returncode == 0, first.stdout + first.stderr
    accuracies = [float(value) for value in re.findall(r"val_accuracy: ([0-9.]+)", first.stdout)]
    assert len(accuracies) == 5
    assert accuracies[-1] > 0.8
    again = run(tmp_path, *command)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "Epoch" not in again.stdout
