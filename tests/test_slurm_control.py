"""What is made of the controller's answers: recorded ones, and those of fake commands (real processes)."""

import os
import pathlib
import signal
import subprocess

import pytest

from tf_preempt import _slurm_control
from tf_preempt._slurm_control import JobRecord, SlurmControl, parse_duration, parse_fields, parse_time
from tf_preempt.errors import SlurmError

RECORDED = pathlib.Path(__file__).parent / "data" / "slurm_show_job"


def recorded(name):
    """What scontrol and squeue said about a job, asked one after the other."""
    _, _, said = (RECORDED / f"{name}.txt").read_text(encoding="utf-8").partition("\n")
    scontrol, _, squeue = said.partition("-- squeue\n")
    return scontrol, squeue


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Installs fake commands, the only ones there are; returns the environment that finds them."""
    monkeypatch.setattr(_slurm_control, "_USUAL_PLACES", str(tmp_path / "usual"))
    (tmp_path / "bin").mkdir()

    def do(where="bin", **scripts):
        directory = tmp_path / where
        directory.mkdir(exist_ok=True)
        for name, script in scripts.items():
            (directory / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
            (directory / name).chmod(0o755)
        return {"PATH": str(tmp_path / "bin")}

    return do


def saying(tmp_path, text):
    path = tmp_path / "said"
    path.write_text(text, encoding="utf-8")
    return f"/bin/cat {path}"


@pytest.mark.parametrize(
    ("name", "job_id", "fields"),
    [
        ("running", 1, {"state": "RUNNING", "reason": "None", "restarts": 0, "may_requeue": True}),
        ("running", 1, {"is_batch": True, "limit_s": 60.0, "preempt_time": None, "partition": "low"}),
        ("running_again", 4, {"state": "RUNNING", "restarts": 1}),
        ("unlimited", 26, {"state": "RUNNING", "limit_s": None, "end_time": None}),
        ("suspended", 27, {"state": "SUSPENDED", "reason": "None"}),
        ("pending", 34, {"state": "PENDING", "reason": "Resources"}),
        ("srun", 33, {"state": "RUNNING", "is_batch": False, "limit_s": 300.0}),
        ("signal_no_requeue", 5, {"state": "RUNNING", "may_requeue": False}),
        ("time_limit", 1, {"state": "COMPLETING", "reason": "TimeLimit", "restarts": 0}),
        ("requeued", 4, {"state": "COMPLETING", "restarts": 1}),
        ("preempted", 6, {"state": "RUNNING", "limit_s": 3600.0, "restarts": 0}),
        ("preempted_and_requeued", 6, {"state": "COMPLETING", "restarts": 1, "preempt_time": None}),
        ("node_failed_no_requeue", 19, {"state": "NODE_FAIL", "reason": "NodeDown", "may_requeue": False}),
        ("name_with_state", 24, {"state": "RUNNING"}),
        ("name_with_line_break", 25, {"state": "RUNNING"}),
    ],
)
def test_reads_what_scontrol_said(name, job_id, fields):
    record = JobRecord.from_scontrol(recorded(name)[0], job_id=job_id)
    assert {field: getattr(record, field) for field in fields} == fields


def test_a_preemption_moves_the_end_of_the_job_and_says_when_it_was():
    record = JobRecord.from_scontrol(recorded("preempted")[0])
    assert record.start_time == parse_time("2026-11-30T08:57:40")
    assert record.end_time == parse_time("2026-11-30T08:57:48")
    assert record.preempt_time == parse_time("2026-11-30T08:57:43")


@pytest.mark.parametrize("name", ["name_with_state", "name_with_line_break"])
def test_a_name_that_looks_like_fields_changes_none(name):
    record = JobRecord.from_scontrol(recorded(name)[0])
    assert record.state == "RUNNING"
    assert record.end_time - record.start_time == 3600.0
    assert "JobName" not in record.fields


@pytest.mark.parametrize(
    ("name", "job_id", "field", "value"),
    [
        ("array", 32, "ArrayTaskId", "2"),
        ("array", 23, "ArrayTaskId", "3"),
        ("array", None, "JobId", "23"),
        ("heterogeneous", 28, "HetJobOffset", "0"),
        ("heterogeneous", 29, "HetJobOffset", "1"),
        ("heterogeneous", None, "JobId", "28"),
    ],
)
def test_of_several_jobs_takes_the_one_that_is_wanted(name, job_id, field, value):
    assert JobRecord.from_scontrol(recorded(name)[0], job_id=job_id).fields[field] == value


@pytest.mark.parametrize(
    ("text", "job_id"),
    [
        ("", None),
        ("slurm_load_jobs error: Invalid job id specified\n", None),
        ("JobId=7 JobName=x UserId=a(1) GroupId=a(1) Priority=1\n", None),
        ("JobId=7 JobName=x UserId=a(1) JobState= Reason=None\n", 7),
        ("JobId=7 JobName=x UserId=a(1) JobState=RUNNING Reason=None\n", 8),
        ("JobId=77 JobName=x UserId=a(1) JobState=RUNNING Reason=None\n", 7),
    ],
)
def test_an_answer_without_the_job_is_an_error_that_quotes_it(text, job_id):
    with pytest.raises(SlurmError, match="names no state") as caught:
        JobRecord.from_scontrol(text, job_id=job_id)
    assert text.strip()[:40] in str(caught.value)
    assert job_id is None or f"job {job_id}" in str(caught.value)


def test_newer_fields_and_a_user_name_with_a_space_do_not_disturb():
    text = (
        "JobId=7 JobName=x y=z UserId=DOMAIN\\ada lovelace(7) GroupId=users(9) MCS_label=N/A Priority=1 "
        "Nice=-5 Account=a QOS=normal WCKey=* JobState=completing+ Reason=None Requeue=? Restarts= "
        "BatchFlag=2 EndTime=2026-13-30T00:00:00 TimeLimit=1-00:00:00 Comment=JobState=FAILED Partition=gpu\n"
    )
    record = JobRecord.from_scontrol(text)
    assert (record.state, record.partition, record.limit_s) == ("COMPLETING+", "gpu", 86400.0)
    assert (record.may_requeue, record.restarts, record.is_batch, record.end_time) == (None, None, True, None)


def test_a_field_that_comes_twice_counts_once():
    assert parse_fields("a=1 Nodes=n1 CPU_IDs=0-3 Nodes=n2 ReqB:S:C:T=0:0 x") == {
        "a": "1",
        "Nodes": "n1",
        "CPU_IDs": "0-3",
        "ReqB:S:C:T": "0:0",
    }


@pytest.mark.parametrize(
    ("name", "state", "reason", "is_preempted"),
    [
        ("running", "RUNNING", "None", False),
        ("running_again", "RUNNING", "None", False),
        ("suspended", "SUSPENDED", "None", False),
        ("pending", "PENDING", "Resources", False),
        ("time_limit", "COMPLETING", "TimeLimit", False),
        ("preempted", "RUNNING", "None", True),
        ("unlimited", "RUNNING", "None", False),
    ],
)
def test_squeue_says_less_and_nothing_else(name, state, reason, is_preempted):
    scontrol, squeue = recorded(name)
    record, full = JobRecord.from_squeue(squeue), JobRecord.from_scontrol(scontrol)
    assert (record.state, record.reason) == (state, reason) == (full.state, full.reason)
    assert (record.start_time, record.end_time) == (full.start_time, full.end_time)
    assert (record.preempt_time is not None) == is_preempted == (full.preempt_time is not None)
    assert (record.restarts, record.may_requeue, record.is_batch) == (None, None, None)


@pytest.mark.parametrize(
    ("line", "limit_s", "is_preempted"),
    [
        ("7|RUNNING|2026-11-30T08:00:00|2026-11-30T09:00:00|1:00:00|None", 3600.0, False),
        ("7|RUNNING|2026-11-30T08:00:00|2026-11-30T08:59:00|1:00:00|None", 3600.0, False),
        ("7|RUNNING|2026-11-30T08:00:00|2026-11-30T08:58:59|1:00:00|None", 3600.0, True),
        ("7|COMPLETING|2026-11-30T08:00:00|2026-11-30T08:10:00|1:00:00|None", 3600.0, False),
        ("7|RUNNING|2026-11-30T08:00:00|2026-12-01T08:00:00|1-00:00:00|", 86400.0, False),
        ("7|PENDING|N/A|N/A|UNLIMITED|job requeued in held state", None, False),
    ],
)
def test_squeue_shows_a_preemption_by_an_end_before_the_limit(line, limit_s, is_preempted):
    record = JobRecord.from_squeue(f"{line}\n")
    assert record.limit_s == limit_s
    assert record.preempt_time == (record.end_time if is_preempted else None)
    assert record.reason == (line.rpartition("|")[2] or "None")


def test_squeue_too_may_show_several_jobs():
    said = recorded("array")[1]
    assert len(said.splitlines()) == 3
    assert JobRecord.from_squeue(said, job_id=31).state == "RUNNING"
    with pytest.raises(SlurmError, match="six fields for job 77"):
        JobRecord.from_squeue(said, job_id=77)


@pytest.mark.parametrize("text", ["", "\n", "7|RUNNING|a|b|c", "7||a|b|c|d", "error: no"])
def test_something_else_from_squeue_is_refused(text):
    with pytest.raises(SlurmError, match="expected a line of six fields"):
        JobRecord.from_squeue(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T00:00:10", 10.0),
        ("2026-11-30T08:57:43", 1796029063.0),
        ("2026-10-25T01:30:00", 1792891800.0),
        ("Unknown", None),
        ("None", None),
        ("N/A", None),
        ("2026-00-00T00:00:00", None),
        ("08:57:43", None),
        ("1796029063", None),
        ("", None),
        (None, None),
    ],
)
def test_a_time_is_read_in_utc(text, seconds):
    assert parse_time(text) == seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1:00", 60.0),
        ("00:01:00", 60.0),
        ("1:00:00", 3600.0),
        ("59:56", 3596.0),
        ("1-00:00:00", 86400.0),
        ("7-01:02:03", 608523.0),
        ("UNLIMITED", None),
        ("INVALID", None),
        ("Partition_Limit", None),
        ("60", None),
        (None, None),
    ],
)
def test_a_duration_is_read_in_seconds(text, seconds):
    assert parse_duration(text) == seconds


def test_the_job_is_asked_for_by_its_number(install, tmp_path):
    control = SlurmControl(
        install(scontrol=f'echo "$@" >{tmp_path}/asked; {saying(tmp_path, recorded("array")[0])}')
    )
    assert control.job(31).fields["ArrayTaskId"] == "1"
    assert (tmp_path / "asked").read_text(encoding="utf-8") == "show job -o 31\n"


def test_requeue_hands_the_name_of_the_job_on(install, tmp_path):
    SlurmControl(install(scontrol=f'echo "$@" >{tmp_path}/asked')).requeue("12_3")
    assert (tmp_path / "asked").read_text(encoding="utf-8") == "requeue 12_3\n"


def test_a_refusal_has_slurms_words(install):
    environ = install(scontrol="echo Requested operation is >&2; echo presently disabled >&2; exit 1")
    with pytest.raises(SlurmError) as caught:
        SlurmControl(environ).requeue("12")
    assert str(caught.value) == "`scontrol requeue 12` left with 1: Requested operation is presently disabled"


@pytest.mark.parametrize(
    "scontrol",
    [None, "exit 1", "echo no such thing", "kill -9 $$"],
    ids=["none", "fails", "nonsense", "dies"],
)
def test_where_scontrol_gives_no_answer_squeue_is_asked(install, tmp_path, scontrol):
    commands = {} if scontrol is None else {"scontrol": scontrol}
    squeue = f'echo "$@" >{tmp_path}/asked; {saying(tmp_path, recorded("preempted")[1])}'
    record = SlurmControl(install(squeue=squeue, **commands)).job(6)
    assert (record.state, record.restarts) == ("RUNNING", None)
    assert record.preempt_time == parse_time("2026-11-30T08:57:48")
    asked = (tmp_path / "asked").read_text(encoding="utf-8")
    assert asked == "--noheader --jobs=6 --format=%A|%T|%S|%e|%l|%r\n"


def test_without_any_command_the_error_says_where_it_was_looked_for(install):
    environ = install()
    control = SlurmControl(environ)
    with pytest.raises(SlurmError, match="scontrol is not installed here") as caught:
        control.job(7)
    assert environ["PATH"] in str(caught.value)
    assert "container" in caught.value.hint
    assert not control.has("scontrol")
    assert not control.has("squeue")


@pytest.mark.parametrize("path", [None, "", "/nowhere"], ids=["unset", "empty", "wrong"])
def test_a_lost_path_does_not_matter(install, path):
    install("usual", scontrol="echo answered")
    control = SlurmControl({} if path is None else {"PATH": path})
    assert control.ask("scontrol") == "answered\n"
    assert control.has("scontrol")


@pytest.mark.parametrize("environ", [{}, {"PATH": ""}], ids=["unset", "empty"])
def test_nothing_is_started_from_the_working_directory(install, tmp_path, monkeypatch, environ):
    install("here", scontrol="echo wrong")
    monkeypatch.chdir(tmp_path / "here")
    assert not SlurmControl(environ).has("scontrol")


def test_times_come_in_utc_and_in_the_one_format_that_is_read(install, tmp_path):
    environ = install(scontrol='echo "$SLURM_TIME_FORMAT|$TZ|$SLURM_CONF"')
    theirs = {"SLURM_TIME_FORMAT": "relative", "TZ": "America/New_York", "SLURM_CONF": "/etc/x"}
    assert SlurmControl({**environ, **theirs}).ask("scontrol") == "standard|UTC0|/etc/x\n"


def test_a_command_that_hangs_is_given_up_and_killed(install):
    control = SlurmControl(install(scontrol="exec /bin/sleep 600"), timeout_s=0.2)
    with pytest.raises(SlurmError, match=r"`scontrol show` did not answer within 0.2 s"):
        control.ask("scontrol", "show")


def test_squeue_is_not_asked_where_the_controller_was_too_slow_for_scontrol(install, tmp_path):
    environ = install(scontrol="exec /bin/sleep 600", squeue=f"echo >{tmp_path}/asked")
    with pytest.raises(SlurmError, match="did not answer within"):
        SlurmControl(environ, timeout_s=0.2).job(7)
    assert not (tmp_path / "asked").exists()


def test_the_time_out_is_ten_seconds_and_nothing_is_read_from_the_program(install):
    seen = {}

    def run(command, **options):
        seen.update(options, command=command)
        raise subprocess.TimeoutExpired(command, options["timeout"])

    environ = install(scontrol="")
    with pytest.raises(SlurmError, match="within 10 s"):
        SlurmControl(environ, run=run).ask("scontrol", "show", "job")
    assert (seen["timeout"], seen["stdin"]) == (10.0, subprocess.DEVNULL)
    assert seen["command"][-3:] == [f"{environ['PATH']}/scontrol", "show", "job"]


def test_a_command_that_cannot_be_started_is_an_error_too(install):
    def run(command, **options):
        raise OSError(7, "Argument list too long")

    with pytest.raises(SlurmError, match=r"`scontrol` could not be started: .*too long"):
        SlurmControl(install(scontrol=""), run=run).ask("scontrol")


def test_an_answer_that_is_no_text_is_read_all_the_same(install):
    control = SlurmControl(install(scontrol=r"printf 'a\377b'"))
    assert control.ask("scontrol").startswith("a")


ASKING = """
import signal, sys
from tf_preempt._slurm_control import SlurmControl
for name in sys.argv[1].split(","):
    signal.signal(signal.Signals[name], lambda number, frame: None)
print(SlurmControl({"PATH": sys.argv[2]}, timeout_s=60.0).ask("scontrol", "requeue", "7"), flush=True)
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGCONT", "SIGUSR1", "SIGUSR2"])
def test_signals_to_all_processes_of_the_step_do_not_end_the_command(install, tmp_path, start_script, name):
    asking, go = tmp_path / "asking", tmp_path / "go"
    os.mkfifo(asking)
    os.mkfifo(go)
    environ = install(scontrol=f"echo >{asking}; read line <{go}; echo $line")
    script = start_script(ASKING, name, environ["PATH"])
    asking.read_text(encoding="utf-8")  # waits for the command
    os.killpg(script.pid, signal.Signals[name])
    fd = os.open(go, os.O_RDWR)  # unlike O_WRONLY it does not wait for a reader, who may be gone
    try:
        os.write(fd, b"requeued\n")
        done = script.wait(30)
    finally:
        os.close(fd)
    assert (done.rc, done.stdout.strip()) == (0, "requeued"), done.stderr
