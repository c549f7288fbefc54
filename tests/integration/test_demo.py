"""The demo, from end to end: real workers, real signals, and the same bits at the end."""

from __future__ import annotations

import json
import sys

import pytest

DEMO = "from tf_preempt.cli.main import main\nmain()\n"


@pytest.mark.timeout(300)
def test_interrupted_training_ends_with_the_bits_of_the_undisturbed_one(run_script, tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    result = run_script(
        DEMO,
        "demo",
        "--epochs",
        "2",
        "--seed",
        "4",
        "--json",
        env={"TMPDIR": str(temporary)},
        timeout=280,
    )
    assert result.rc == 0, result.stderr
    (line,) = result.stdout.splitlines()
    found = json.loads(line)
    assert found["bit_identical"] is True
    assert found["differing"] == []
    assert found["steps_undisturbed"] == 120
    assert found["steps_total"] == 120 + sum(found["steps_repeated"])
    kinds = [(one["signal"], one["worker"], one["phase"]) for one in found["interruptions"]]
    assert sorted(kinds) == [("SIGKILL", 1, "train"), ("SIGTERM", 0, "validate"), ("SIGTERM", 1, "train")]
    for kind, steps, batches in zip(
        kinds, found["steps_repeated"], found["validation_batches_repeated"], strict=True
    ):
        if kind[0] == "SIGTERM":
            assert (steps, batches) == (0, 0)
        else:
            assert 0 <= steps <= 40, "more than two intervals between checkpoints"
    assert all(0 < seconds < 120 for seconds in found["restart_seconds"])
    assert found["test_accuracy"] > 0.9
    assert found["versions"]["python"].startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")
    assert "all workers agreed to save" in result.stderr
    assert list(temporary.iterdir()) == [], "temporary files are removed after success"
