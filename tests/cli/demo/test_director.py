import io
import os
import signal
import stat
import sys

import pytest

from tf_preempt.cli.demo import director as director_module
from tf_preempt.cli.demo.director import Director
from tf_preempt.cli.demo.interruptions import Interruption
from tf_preempt.cli.demo.progress import TRAIN, Position
from tf_preempt.cli.demo.settings import DemoSettings
from tf_preempt.errors import LaunchError
from tf_preempt.testing.story import Story

# Stands in for this Python: a program that sees the whole command and does what the test wants.
PROGRAM = """#!{python}
import json, os, sys, time
import numpy as np
options = dict(word[2:].split("=", 1) for word in sys.argv if word.startswith("--") and "=" in word)
def event(kind, **fields):
    os.makedirs(options["checkpoints"] + "/events", exist_ok=True)
    line = {{"v": 1, "t": time.time(), "worker": 0, "incarnation": 0, "kind": kind, **fields}}
    with open(options["checkpoints"] + "/events/00000-00000.jsonl", "a") as file:
        file.write(json.dumps(line) + "\\n")
def step(number):
    path = os.environ["TF_PREEMPT_DEMO_PROGRESS"] + "/worker-0.jsonl"
    with open(path, "a") as file:
        file.write(json.dumps([os.getpid(), time.time(), 0, "train", number]) + "\\n")
def finish():
    np.savez(options["result"], **{{"weights/00": np.zeros(1)}})
{source}
"""


@pytest.fixture
def direct(tmp_path, monkeypatch):
    """Makes a director whose training program is the given source."""
    output = io.StringIO()

    def make(source, **options):
        program = tmp_path / "program"
        program.write_text(PROGRAM.format(python=sys.executable, source=source))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setattr(director_module.sys, "executable", str(program))
        director = Director(
            DemoSettings(workers=1, seed=7),
            directory=str(tmp_path),
            data_dir=str(tmp_path / "data"),
            story=Story(output),
            **options,
        )
        director.output = output
        return director

    return make


@pytest.fixture(autouse=True)
def _start_directly(monkeypatch):
    """What follows its parent is started through `sys.executable` too, and that is a stand-in here."""
    monkeypatch.setattr("tf_preempt.launch.process_tree._following_us", list)


def test_result_progress_and_incarnations_come_back(direct):
    training = direct("event('start', pid=os.getpid())\nstep(0)\nstep(1)\nfinish()").train("calm")
    assert list(training.result) == ["weights/00"]
    assert [record.position.step for record in training.records] == [0, 1]
    assert set(training.incarnations.values()) == {0}
    assert training.sent == []


def test_command_is_run_of_launch_of_the_training(direct, tmp_path):
    director = direct("print(sys.argv[1:])\nfinish()")
    director.train("calm")
    words = (tmp_path / "calm" / "workers.log").read_text()
    for part in ("'run'", "'launch', '--workers', '1'", "'-m', 'tf_preempt.cli.demo.train'", "'--seed=7'"):
        assert part in words
    assert words.index("'run'") < words.index("'launch'") < words.index("train'")


def test_children_get_no_foreign_cluster_and_no_foreign_directory(direct, tmp_path):
    environ = {**os.environ, "TF_CONFIG": "x", "TF_PREEMPT_DIR_OVERRIDE": "y", "TF_PREEMPT_STATUS_FILE": "z"}
    director = direct(
        "names = 'TF_CONFIG', 'TF_PREEMPT_DIR_OVERRIDE', 'TF_PREEMPT_STATUS_FILE', 'TF_CPP_MIN_LOG_LEVEL'\n"
        "print(*(os.environ.get(name) for name in names))\nfinish()",
        environ=environ,
    )
    director.train("calm")
    config, override, status, level = (tmp_path / "calm" / "workers.log").read_text().split()
    assert (config, override, level) == ("None", "None", "2")
    assert status == str(tmp_path / "calm" / "status.json")
    assert environ["TF_CONFIG"] == "x"


def test_temporary_files_of_killed_children_stay_in_the_directory(direct, tmp_path):
    director = direct("import tempfile\nprint(tempfile.mkdtemp(), flush=True)\nfinish()")
    director.train("calm")
    made = (tmp_path / "calm" / "workers.log").read_text().strip()
    assert os.path.dirname(made) == str(tmp_path / "tmp")


def test_failure_shows_the_last_lines_of_all_output(direct):
    director = direct(
        "print('said by a worker', flush=True)\nprint('said by run', file=sys.stderr)\nsys.exit(1)"
    )
    with pytest.raises(LaunchError) as caught:
        director.train("calm")
    for words in ("calm: exit status 1", "said by a worker", "said by run", "workers.log"):
        assert words in str(caught.value)


def test_program_without_a_result_is_an_error(direct):
    with pytest.raises(LaunchError, match=r"result\.npz"):
        direct("").train("calm")


def test_program_that_does_nothing_is_ended(direct):
    director = direct("time.sleep(120)", stall_timeout_s=0.3)
    with pytest.raises(LaunchError, match=r"did nothing for 0\.3 s"):
        director.train("calm")


def test_signal_reaches_the_process_of_the_worker(direct, tmp_path):
    plan = [Interruption(signal=signal.SIGTERM, worker=0, position=Position(0, TRAIN, 1))]
    director = direct(
        "import signal\n"
        "got = []\n"
        "signal.signal(signal.SIGTERM, lambda *_: got.append(1))\n"
        "event('start', pid=os.getpid())\nstep(0)\nstep(1)\n"
        "end = time.time() + 60\n"
        "while not got and time.time() < end: time.sleep(0.01)\n"
        "step(2)\nfinish()\nsys.exit(0 if got else 3)"
    )
    training = director.train("disturbed", plan)
    (sent,) = training.sent
    assert (sent.interruption, sent.incarnation, sent.done) == (plan[0], 0, Position(0, TRAIN, 1))


def test_training_that_ends_too_early_is_an_error(direct):
    plan = [Interruption(signal=signal.SIGTERM, worker=0, position=Position(0, TRAIN, 50))]
    director = direct("event('start', pid=os.getpid())\nstep(0)\nfinish()")
    with pytest.raises(LaunchError, match="before interruption 1 of 1"):
        director.train("disturbed", plan)


def test_ctrl_c_leaves_no_process_behind(direct, tmp_path):
    def interrupt(seconds):
        if (tmp_path / "calm" / "workers.log").read_text():
            raise KeyboardInterrupt

    director = direct("print(os.getpid(), flush=True)\ntime.sleep(120)", sleep=interrupt)
    with pytest.raises(KeyboardInterrupt):
        director.train("calm")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "calm" / "workers.log").read_text()), 0)


def test_data_program_gets_the_folder(direct, tmp_path):
    director = direct("print(sys.argv[1:], flush=True)")
    director.write_data()
    assert f"'tf_preempt.cli.demo.data', '{tmp_path / 'data'}'" in (tmp_path / "workers.log").read_text()


def test_data_program_that_fails_is_an_error(direct):
    with pytest.raises(LaunchError, match="data: exit status 4"):
        direct("sys.exit(4)").write_data()
