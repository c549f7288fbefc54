import os
import sys

import pytest

from tf_preempt.testing.watched_program import (
    LogFollower,
    WatchedProgram,
    environment_of_its_own,
    supervised,
)


@pytest.fixture
def watched(tmp_path):
    def make(source):
        command = [sys.executable, "-c", source]
        return WatchedProgram(command, name="it", folder=str(tmp_path), environ=dict(os.environ))

    return make


def wait(program):
    program._waiter.join(60)
    assert not program.is_alive()


def test_output_and_status_of_a_program_that_fails(watched):
    with watched("import sys\nprint('out')\nprint('err', file=sys.stderr)\nsys.exit(3)") as program:
        wait(program)
    assert (program.returncode, program.describe_failure()) == (3, "exit status 3")
    assert program.last_lines().split() == [
        "---",
        program.output_path,
        "out",
        "---",
        program.errors_path,
        "err",
    ]


def test_program_that_ends_well_has_not_failed(watched):
    with watched("pass") as program:
        wait(program)
    assert program.describe_failure() is None


def test_program_that_lives_at_the_end_of_the_block_is_ended_and_has_failed(watched):
    with watched("import time\ntime.sleep(120)") as program:
        pid = program._tree.pid
    assert program.describe_failure() == "it did nothing any more, and was ended"
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize(
    ("options", "command"),
    [
        (
            {"workers": None, "max_restarts": 2},
            "PY -m tf_preempt run --max-restarts 2 --backoff-initial 0.1 --stop-timeout 60 -- x --y",
        ),
        (
            {"workers": 3, "max_restarts": 0, "max_no_progress": 9, "restart_codes": {8, 7}},
            "PY -m tf_preempt run --max-restarts 0 --backoff-initial 0.1 --stop-timeout 60 "
            "--max-no-progress 9 --restart-exit-codes 7,8 -- PY -m tf_preempt launch --workers 3 "
            "--stop-timeout 30 --restart-exit-codes 7,8 -- x --y",
        ),
    ],
)
def test_supervised_command(options, command):
    expected = [sys.executable if word == "PY" else word for word in command.split()]
    assert supervised(["x", "--y"], **options) == expected


def test_environment_has_nothing_of_a_training_or_a_job_around_it():
    environ = {
        "HOME": "/home/me",
        "SLURM_JOB_ID": "7",
        "TF_CONFIG": "{}",
        "TF_PREEMPT_DIR": "a",
        "TF_PREEMPT_DIR_OVERRIDE": "b",
        "TF_PREEMPT_STATUS_FILE": "c",
        "TF_PREEMPT_STEP_FILE": "d",
    }
    assert environment_of_its_own(environ, NEW="1") == {"HOME": "/home/me", "NEW": "1"}
    assert environ["TF_CONFIG"] == "{}"


def test_log_is_followed_line_by_line(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"one\ntw")
    follower = LogFollower(str(path))
    assert follower.poll() == ["one"]
    assert follower.poll() == []
    with path.open("ab") as file:
        file.write(b"o\n\xff\n")
    assert follower.poll() == ["two", "\ufffd"]
