"""Ctrl-C at a terminal with a supervisor, a cluster and a program that saves on it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tf_preempt.checkpointing.manifest import readable_manifests

SCRIPT = Path(__file__).parent / "scripts" / "interrupted_loop.py"
TF_PREEMPT = "import runpy\n\nrunpy.run_module('tf_preempt', run_name='__main__', alter_sys=True)\n"


def test_two_workers_save_together_leave_with_130_and_are_not_started_again(tmp_path, start_script):
    launch = [sys.executable, "-m", "tf_preempt", "launch", "--workers", "2", "--"]
    program = [sys.executable, str(SCRIPT), str(tmp_path / "run")]
    script = start_script(TF_PREEMPT, "run", "--", *launch, *program)
    script.wait_for("trains", 150)
    os.kill(script.pid, signal.SIGINT)
    ended = script.wait(100)
    assert ended.rc == 130, ended.stderr
    output = ended.stdout + ended.stderr
    assert output.count("begins with 0") == 2
    assert output.count("Interrupted (notice: SIGINT on worker") == 2
    assert output.count("Leaving with exit status 130.") == 2
    assert "KeyboardInterrupt" not in output
    ((manifest,), damaged) = readable_manifests(str(tmp_path / "run"))
    assert not damaged
    assert manifest.workers == 2
    assert manifest.step > 5
