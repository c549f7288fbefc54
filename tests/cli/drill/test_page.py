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
SHELL = "import subprocess, sys\nsys.exit(subprocess.call(sys.argv[1], shell=True, cwd=sys.argv[2]))\n"


@pytest.fixture
def shell(start_script):
    """Starts a command in a directory with the programs of the page."""

    def start(command, place):
        temporary = place / "temporary"
        temporary.mkdir(parents=True)
        for name, program in zip(("train.py", "test_train.py"), PROGRAMS, strict=True):
            (place / name).write_text(program)
        path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
        environ = {"PATH": path, "TMPDIR": str(temporary), "CUDA_VISIBLE_DEVICES": "-1", "TF_CONFIG": None}
        return start_script(SHELL, command, str(place), env=environ)

    return start


def test_page_has_the_commands_that_are_tried_here():
    assert [command.split()[0] for command, _ in COMMANDS] == ["tf-preempt", "tf-preempt", "python"]


def assert_does_what_the_page_says(result, command, says, place):
    assert result.rc == 0, result.stdout + result.stderr
    assert says in result.stdout
    if "drill" in command:
        sent = re.findall(r"(SIG\w+) to worker \d \(process \d+\) after step \d+", result.stdout)
        assert sorted(sent) == ["SIGKILL", "SIGTERM"]
        assert list((place / "temporary").iterdir()) == [], "temporary files are removed after success"
        assert not (place / "runs").exists(), "the program's own directory is left alone"
    if "--junit" in command:
        (suite,) = ElementTree.parse(place / "drill.xml").getroot()
        assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
            "tests": "2",
            "failures": "0",
            "errors": "0",
            "skipped": "0",
        }


def test_commands_of_one_process_do_what_the_page_says(shell, tmp_path):
    """Both run beside each other."""
    commands = [(command, says) for command, says in COMMANDS if "--workers" not in command]
    assert len(commands) == 2
    places = [tmp_path / str(number) for number in range(2)]
    scripts = [shell(command, place) for (command, _), place in zip(commands, places, strict=True)]
    for (command, says), script, place in zip(commands, scripts, places, strict=True):
        assert_does_what_the_page_says(script.wait(280), command, says, place)


def test_command_of_two_workers_does_what_the_page_says(shell, tmp_path):
    ((command, says),) = [(command, says) for command, says in COMMANDS if "--workers" in command]
    result = shell(command, tmp_path / "place").wait(280)
    assert_does_what_the_page_says(result, command, says, tmp_path / "place")
