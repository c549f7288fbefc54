"""TensorFlow's tutorial for several workers, as a program: only the strategy's import differs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

PROGRAM = Path(__file__).parents[2] / "examples" / "multi_worker_with_keras.py"
WITH_MNIST = Path(__file__).parent / "scripts" / "with_generated_mnist.py"


def write_mnist(path: Path) -> None:
    """256 images of ten classes that a few steps can tell apart: class k is bright in rows 2k and 2k + 1."""
    labels = np.arange(256, dtype=np.uint8) % 10
    images = np.random.default_rng(0).integers(0, 40, size=(256, 28, 28), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[2 * label : 2 * label + 2] = 255
    np.savez(path, x_train=images, y_train=labels, x_test=images[:64], y_test=labels[:64])


@pytest.mark.timeout(300)
def test_tutorial_trains_on_two_workers_and_leaves_the_model_of_the_chief(tmp_path: Path) -> None:
    home = tmp_path / "keras"
    (home / "datasets").mkdir(parents=True)
    write_mnist(home / "datasets" / "mnist.npz")
    finished = subprocess.run(
        [
            *(sys.executable, "-m", "tf_preempt", "launch", "--workers", "2", "--"),
            *(sys.executable, str(WITH_MNIST), str(PROGRAM), "model"),
            *("--epochs", "2", "--steps-per-epoch", "15"),
        ],
        cwd=tmp_path,
        env={**os.environ, "KERAS_HOME": str(home), "CUDA_VISIBLE_DEVICES": "-1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    found = re.search(r"2 workers; loaded from model/model.keras: loss \S+, accuracy (\S+)", finished.stdout)
    assert found, finished.stdout + finished.stderr
    assert float(found.group(1)) > 0.5, "ten classes: 0.1 without training"
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["model.keras"]
