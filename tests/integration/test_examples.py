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


def test_training_example_says_how_it_is_used(tmp_path):
    help_text = subprocess.run(
        [sys.executable, str(EXAMPLES / "train.py"), "--help"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert help_text.returncode == 0, help_text.stderr
    assert "runs/digits" in help_text.stdout


def test_training_example_runs_on_two_workers_and_trains_nothing_when_started_again(tmp_path):
    command = ["launch", "--workers", "2", "--", sys.executable, str(EXAMPLES / "train.py")]
    first = run(tmp_path, *command)
    assert first.returncode == 0, first.stdout + first.stderr
    accuracies = [float(value) for value in re.findall(r"val_accuracy: ([0-9.]+)", first.stdout)]
    assert len(accuracies) == 5
    assert accuracies[-1] > 0.8
    assert "Op determinism is off" not in first.stdout + first.stderr
    again = run(tmp_path, *command)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "Epoch" not in again.stdout
    assert again.stdout.count("tf_preempt: Restored step 230 from") == 1
    assert (tmp_path / "runs" / "digits").is_dir()
