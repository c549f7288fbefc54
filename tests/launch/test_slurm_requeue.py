"""A supervisor that has the Slurm job requeued; `scontrol` is a small program of the test."""

import os
import signal
import sys
import time

import pytest

from tf_preempt.launch.restart_policy import RestartPolicy
from tf_preempt.launch.slurm_requeue import seconds_of_last_life, settle_for_program
from tf_preempt.launch.supervisor import Supervisor
from tf_preempt.termination.slurm import Action, Cause

PREEMPTED = (
    "JobId=7 JobName=j UserId=a(1) JobState=RUNNING Reason=None Requeue=1 Restarts=0 BatchFlag=1 "
    "StartTime=2026-11-30T08:00:00 EndTime=2026-11-30T08:10:10 PreemptTime=2026-11-30T08:10:00"
)
ENDS_ITS_SUPERVISOR = "import os, signal, time; os.kill(os.getppid(), signal.SIGTERM); time.sleep(60)"


@pytest.fixture
def slurm(tmp_path):
    """The environment of the first task of a preempted job."""
    script = f'''#!/bin/sh
echo "$*" >> {tmp_path}/asked
[ "$1" = requeue ] || echo "{PREEMPTED}"
'''
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "scontrol").write_text(script, encoding="utf-8")
    (tmp_path / "bin" / "scontrol").chmod(0o755)
    return {**os.environ, "SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "PATH": f"{tmp_path}/bin:/usr/bin:/bin"}


@pytest.fixture
def asked(tmp_path):
    path = tmp_path / "asked"
    return lambda: path.read_text(encoding="utf-8").splitlines() if path.exists() else []


@pytest.mark.parametrize("returncode", [-signal.SIGTERM, 143, 42], ids=["killed", "shell", "asks"])
def test_a_program_that_the_notice_ended_has_its_job_requeued(slurm, asked, returncode):
    verdict = settle_for_program(slurm, returncode, signal.SIGTERM, has_trained=True)
    assert (verdict.action, verdict.cause) == (Action.REQUEUE, Cause.PREEMPTED)
    assert asked() == ["show job -o 7", "requeue 7"]


def test_a_program_that_failed_before_its_training_may_have_lost_a_child_to_the_notice(slurm, asked):
    verdict = settle_for_program(slurm, 1, signal.SIGTERM, has_trained=False)
    assert (verdict.action, verdict.cause) == (Action.REQUEUE, Cause.PREEMPTED)
    assert asked() == ["show job -o 7", "requeue 7"]


@pytest.mark.parametrize(
    ("changes", "returncode", "signum"),
    [
        ({}, 0, signal.SIGTERM),
        ({}, 1, signal.SIGTERM),
        ({}, -signal.SIGTERM, signal.SIGINT),
        ({"SLURM_PROCID": "1"}, -signal.SIGTERM, signal.SIGTERM),
        ({"SLURM_JOB_ID": ""}, -signal.SIGTERM, signal.SIGTERM),
        ({"SLURM_JOB_ID": "many"}, -signal.SIGTERM, signal.SIGTERM),
    ],
    ids=["finished", "failed", "Ctrl-C", "another task", "no job", "unreadable"],
)
def test_nothing_is_done_where_nothing_is_to_be_requeued(slurm, asked, changes, returncode, signum):
    assert settle_for_program({**slurm, **changes}, returncode, signum, has_trained=True) is None
    assert asked() == []


@pytest.mark.parametrize(
    "said",
    [
        PREEMPTED.replace("PreemptTime=2026-11-30T08:10:00", "PreemptTime=None"),
        PREEMPTED.replace("RUNNING Reason=None", "COMPLETING Reason=TimeLimit"),
    ],
    ids=["time limit or signal", "over the limit"],
)
def test_only_a_preemption_is_followed_by_a_requeue_as_nobody_counts_here(slurm, asked, tmp_path, said):
    program = tmp_path / "bin" / "scontrol"
    program.write_text(program.read_text().replace(PREEMPTED, said))
    assert settle_for_program(slurm, -signal.SIGTERM, signal.SIGTERM, has_trained=False) is None
    assert asked() == ["show job -o 7"]


def test_a_job_that_its_program_has_requeued_is_not_requeued_again(slurm, asked, tmp_path):
    program = tmp_path / "bin" / "scontrol"
    program.write_text(program.read_text().replace("Restarts=0", "Restarts=1"))
    verdict = settle_for_program(slurm, 42, signal.SIGTERM, has_trained=True)
    assert (verdict.action, verdict.cause) == (Action.LEAVE, Cause.REQUEUED)
    assert asked() == ["show job -o 7"]


def test_a_job_whose_state_is_not_known_is_left_to_slurm_as_it_may_be_cancelled(slurm, asked, tmp_path):
    program = tmp_path / "bin" / "scontrol"
    program.write_text(program.read_text().replace(f'echo "{PREEMPTED}"', "exit 1"))
    verdict = settle_for_program(slurm, -signal.SIGTERM, signal.SIGTERM, has_trained=False)
    assert (verdict.action, verdict.cause) == (Action.STAY, Cause.UNKNOWN)
    assert set(asked()) == {"show job -o 7"}


def test_a_shell_of_a_job_that_is_over_is_no_job(slurm, asked, tmp_path):
    program = tmp_path / "bin" / "scontrol"
    over = "{ echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1; }"
    program.write_text(program.read_text().replace(f'echo "{PREEMPTED}"', over))
    assert settle_for_program(slurm, -signal.SIGTERM, signal.SIGTERM, has_trained=False) is None
    assert asked() == ["show job -o 7"]


def test_supervisor_has_the_job_of_a_program_requeued_that_was_still_starting(slurm, asked):
    supervisor = Supervisor([sys.executable, "-c", ENDS_ITS_SUPERVISOR], RestartPolicy(), environ=slurm)
    assert supervisor.run() == 143
    assert asked() == ["show job -o 7", "requeue 7"]


@pytest.mark.parametrize(
    ("said", "prospect"),
    [
        (PREEMPTED, "; Slurm runs this job again"),
        (PREEMPTED.replace("Restarts=0", "Restarts=1"), "; Slurm runs this job again"),
        (PREEMPTED.replace("Requeue=1", "Requeue=0"), ""),
        (PREEMPTED.replace("PreemptTime=2026-11-30T08:10:00", "PreemptTime=None"), ""),
    ],
    ids=["requeued here", "requeued by the program", "preempted for good", "not preempted"],
)
def test_last_line_of_a_supervisor_tells_of_the_requeue(slurm, says, caplog, said, prospect):
    says(said)
    with caplog.at_level("INFO", "tf_preempt"):
        supervisor = Supervisor([sys.executable, "-c", ENDS_ITS_SUPERVISOR], RestartPolicy(), environ=slurm)
        assert supervisor.run() == 143
    ended = (
        f"not restarting: SIGTERM asked for the end, and the program has ended (killed by SIGTERM{prospect})"
    )
    assert caplog.records[-1].message == ended


def running(*, left_s, requeue=0):
    """What Slurm says of a job of two minutes that has some seconds left."""
    end = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + left_s))
    return (
        f"JobId=7 JobName=j UserId=a(1) JobState=RUNNING Reason=None Requeue={requeue} Restarts=0 "
        f"BatchFlag=1 StartTime=2026-11-30T08:00:00 TimeLimit=00:02:00 EndTime={end} PreemptTime=None"
    )


@pytest.fixture
def says(tmp_path, slurm):
    program = tmp_path / "bin" / "scontrol"
    return lambda words: program.write_text(program.read_text().replace(PREEMPTED, words))


@pytest.mark.parametrize("left_s", [0, 10, 25])
def test_a_job_that_its_limit_ends_for_good_has_no_time_for_another_life(slurm, says, left_s):
    says(running(left_s=left_s))
    assert left_s - 5 <= seconds_of_last_life(slurm) <= left_s


@pytest.mark.parametrize(
    "words",
    [lambda: running(left_s=10, requeue=1), lambda: running(left_s=600), lambda: "no answer"],
    ids=["requeued", "time", "silent"],
)
def test_another_life_is_of_use(slurm, says, words):
    says(words())
    assert seconds_of_last_life(slurm) is None


def test_elsewhere_than_on_slurm_nobody_is_asked(slurm, asked):
    assert seconds_of_last_life({**slurm, "SLURM_JOB_ID": ""}) is None
    assert asked() == []


def test_supervisor_does_not_restart_a_program_just_before_the_job_ends_for_good(slurm, says, caplog):
    says(running(left_s=15))
    policy = RestartPolicy(backoff_initial_s=0.0)
    with caplog.at_level("INFO", "tf_preempt"):
        assert Supervisor([sys.executable, "-c", "raise SystemExit(42)"], policy, environ=slurm).run() == 42
    assert "but in 1" in caplog.text
    assert "the time limit ends this Slurm job for good" in caplog.text
    assert "restarting in" not in caplog.text
