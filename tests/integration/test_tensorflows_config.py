"""A configuration of TensorFlow's own class does with our handler what TensorFlow says of it."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

from tf_preempt.checkpointing.manifest import readable_manifests

SCRIPT = Path(__file__).parent / "scripts" / "tensorflows_config.py"


def test_its_functions_are_polled_called_for_the_save_and_called_after_the_commit(tmp_path, start_script):
    directory = tmp_path / "run"
    first = start_script(SCRIPT, str(directory), env={"TOLD_BY": "watcher"}).wait(100)
    assert first.rc == 77, first.stderr
    done = int(re.search(r"save_fn at (\d+)\n", first.stdout)[1])
    assert first.stdout.endswith("exit_fn after ['ckpt-1.manifest.json']\n")
    assert "Notice on worker 0: termination_watcher_fn (watch returned True)." in first.stderr
    assert first.stderr.count("FunctionWatcher failed; training goes on") == 1
    assert "try 1 failed" in first.stderr
    assert "try 2 failed" not in first.stderr

    # SIGTERM stays watched beside the function, and after an error of it.
    second = start_script(SCRIPT, str(directory), env={"TOLD_BY": "a signal"})
    second.wait_for("begins with", 100)
    os.kill(second.pid, signal.SIGTERM)
    ended = second.wait(100)
    assert ended.rc == 77, ended.stderr
    assert f"begins with {done} {done}\n" in ended.stdout
    assert ended.stdout.endswith("exit_fn after ['ckpt-1.manifest.json', 'ckpt-2.manifest.json']\n")
    manifests, damaged = readable_manifests(str(directory))
    assert not damaged
    assert [manifest.reason for manifest in manifests] == [
        "notice: SIGTERM on worker 0",
        "notice: termination_watcher_fn on worker 0",
    ]
