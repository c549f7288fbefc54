"""What docs/drill.md says is what happens: its programs and its commands, with real processes and signals."""

from __future__ import annotations

import os
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[3] / "docs" / "drill.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python no-run: [^\n]*\n(.*?)```\n", PAGE, re.DOTALL)
COMMANDS = re.findall(r"```console\n\$ (.*)\n(.*)\n```\n", PAGE)
SHELL = "import subprocess, sys\nsys.exit(subprocess.call(sys.argv[1], shell=True))\n"


@pytest.fixture
def shell(run_script, tmp_path):
    for name, program in zip(("train.py", "test_train.py"), PROGRAMS, strict=True):
        (tmp_path / name).write_text(program)
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environ = {"PATH": path, "TMPDIR": str(temporary), "CUDA_VISIBLE_DEVICES": "-1", "TF_CONFIG": None}

    return lambda command: run_script(SHELL, command, env=environ, timeout=280)


def test_page_has_the_commands_that_are_tried_here():
    assert [command.split()[0] for command, _ in COMMANDS] == ["tf-preempt", "tf-preempt", "python"]


@pytest.mark.parametrize(("command", "says"), COMMANDS, ids=["one", "two_workers", "pytest"])
def test_command_does_what_the_page_says(command, says, shell, tmp_path):
    result = shell(command)
    assert result.rc == 0, result.stdout + result.stderr
    assert says in result.stdout
    if "drill" in command:
        sent = re.findall(r"(SIG\w+) to worker \d \(process \d+\) after step \d+", result.stdout)
        assert sorted(sent) == ["SIGKILL", "SIGTERM"]
        assert list((tmp_path / "temporary").iterdir()) == [], "temporary files are removed after success"
        assert not (tmp_path / "runs").exists(), "the program's own directory is left alone"
    if "--junit" in command:
        (suite,) = ElementTree.parse(tmp_path / "drill.xml").getroot()
        assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
            "tests": "2",
            "failures": "0",
            "errors": "0",
            "skipped": "0",
        }
