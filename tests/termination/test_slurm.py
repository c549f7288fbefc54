"""Why a job has to be left, and what is done then, in tables and with commands that are real processes."""

import pathlib

import pytest

from tf_preempt import _slurm_control
from tf_preempt._slurm import SlurmRun
from tf_preempt._slurm_control import JobRecord, SlurmControl, parse_time
from tf_preempt.termination import SlurmOptions
from tf_preempt.termination.exit_codes import CANCELLED, PERMANENT, RESTART_LOCAL
from tf_preempt.termination.requeue_record import RequeueRecord
from tf_preempt.termination.slurm import (
    TIME_LIMIT_SOURCE,
    Action,
    Cause,
    SlurmExit,
    Verdict,
    after_refusal,
    cause_of,
    decide,
)

RECORDED = pathlib.Path(__file__).parents[1] / "data" / "slurm_show_job"
RUN = SlurmRun(job_id=7, requeue_as="7")
NOW = 1_000_000.0
LATER = NOW + 3600.0


def recorded(name):
    """The moment, and what scontrol and squeue said at it."""
    head, _, said = (RECORDED / f"{name}.txt").read_text(encoding="utf-8").partition("\n")
    scontrol, _, squeue = said.partition("-- squeue\n")
    return parse_time(head.split("asked at ")[1][:19]), scontrol, squeue


def record(state="RUNNING", **fields):
    return JobRecord(state=state, **{"restarts": 0, "end_time": LATER, "limit_s": 7200.0, **fields})


@pytest.mark.parametrize(
    ("name", "source", "cause"),
    [
        ("running", "SIGTERM", Cause.TIME_LIMIT),  # of one minute, so that any signal is near its end
        ("running_again", "SIGTERM", Cause.REQUEUED),
        ("unlimited", "SIGTERM", Cause.SIGNAL),
        ("suspended", "SIGTERM", Cause.SIGNAL),
        ("srun", "SIGTERM", Cause.TIME_LIMIT),
        ("signal_no_requeue", "SIGTERM", Cause.SIGNAL),
        ("signal_requeue_refused", "SIGTERM", Cause.SIGNAL),
        ("signal_before_limit", "SIGUSR1", Cause.TIME_LIMIT),
        ("time_limit", "SIGTERM", Cause.TIME_LIMIT),
        ("cancelled", "SIGTERM", Cause.CANCELLED),
        ("requeued", "SIGTERM", Cause.REQUEUED),
        ("preempted", "SIGTERM", Cause.PREEMPTED),
        ("preempted_no_requeue", "SIGTERM", Cause.PREEMPTED),
        ("preempted_no_requeue_end", "SIGTERM", Cause.PREEMPTED),
        ("preempted_and_requeued", "SIGTERM", Cause.REQUEUED),
        ("node_failed", "SIGTERM", Cause.REQUEUED),
        ("node_failed_again", "SIGTERM", Cause.REQUEUED),
        ("node_failed_no_requeue", "SIGTERM", Cause.NODE_FAILURE),
        ("cancelled_in_grace", "SIGTERM", Cause.CANCELLED),
        ("name_with_state", "SIGTERM", Cause.SIGNAL),
        ("name_with_line_break", "SIGTERM", Cause.SIGNAL),
    ],
)
def test_cause_from_what_a_real_slurm_said(name, source, cause):
    now, scontrol, _ = recorded(name)
    assert cause_of(JobRecord.from_scontrol(scontrol), RUN, source=source, now=now) is cause


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("unlimited", Cause.SIGNAL),
        ("signal_before_limit", Cause.TIME_LIMIT),
        ("time_limit", Cause.TIME_LIMIT),
        ("cancelled", Cause.CANCELLED),
        ("requeued", Cause.REQUEUED),
        ("preempted", Cause.PREEMPTED),
        ("preempted_and_requeued", Cause.REQUEUED),
        ("node_failed", Cause.REQUEUED),
        # Nothing in squeue's line tells this run from the first one.
        ("node_failed_again", Cause.SIGNAL),
    ],
)
def test_cause_from_what_a_real_squeue_said(name, cause):
    now, _, squeue = recorded(name)
    assert cause_of(JobRecord.from_squeue(squeue), RUN, source="SIGTERM", now=now) is cause


@pytest.mark.parametrize(
    ("restart_count", "name", "cause"),
    [
        (1, "running_again", Cause.SIGNAL),
        (1, "node_failed_again", Cause.SIGNAL),
        # A count that is inherited from the program which submitted this job is too large.
        (1, "requeued", Cause.REQUEUED),
        (1, "preempted_and_requeued", Cause.REQUEUED),
        (1, "cancelled", Cause.CANCELLED),
    ],
)
def test_restarts_count_from_this_run(restart_count, name, cause):
    now, scontrol, _ = recorded(name)
    run = SlurmRun(job_id=7, requeue_as="7", restart_count=restart_count)
    assert cause_of(JobRecord.from_scontrol(scontrol), run, source="SIGTERM", now=now) is cause


ENDED = {"end_time": NOW}


@pytest.mark.parametrize(
    ("said", "cause", "cause_if_lost"),
    [
        (record(), Cause.SIGNAL, Cause.LOST_WORKER),
        (record("RUNNING,SIGNALING"), Cause.SIGNAL, Cause.LOST_WORKER),
        (record("RUNNING+"), Cause.SIGNAL, Cause.LOST_WORKER),
        (record("RUNNING", end_time=None, limit_s=None), Cause.SIGNAL, Cause.LOST_WORKER),
        (record("CONFIGURING"), Cause.SIGNAL, Cause.LOST_WORKER),
        (record("RUNNING", end_time=NOW + 600), Cause.TIME_LIMIT, Cause.LOST_WORKER),
        (record("RUNNING", end_time=NOW + 601), Cause.SIGNAL, Cause.LOST_WORKER),
        (record("RUNNING", preempt_time=NOW), Cause.PREEMPTED, Cause.PREEMPTED),
        (record("PREEMPTED", **ENDED), Cause.PREEMPTED, Cause.PREEMPTED),
        (record("PREEMPTED,COMPLETING", **ENDED), Cause.PREEMPTED, Cause.PREEMPTED),
        (record("COMPLETING", preempt_time=NOW, **ENDED), Cause.PREEMPTED, Cause.PREEMPTED),
        (record("COMPLETING", preempt_time=NOW - 2, **ENDED), Cause.CANCELLED, Cause.CANCELLED),
        (record("PREEMPTED,COMPLETING", preempt_time=NOW - 2, **ENDED), Cause.PREEMPTED, Cause.PREEMPTED),
        (record("COMPLETING+", reason="TimeLimit", **ENDED), Cause.TIME_LIMIT, Cause.TIME_LIMIT),
        (record("TIMEOUT", **ENDED), Cause.TIME_LIMIT, Cause.TIME_LIMIT),
        (record("COMPLETING+TIMEOUT", **ENDED), Cause.TIME_LIMIT, Cause.TIME_LIMIT),
        (record("TIMEOUT,COMPLETING", **ENDED), Cause.TIME_LIMIT, Cause.TIME_LIMIT),
        (record("CANCELLED", **ENDED), Cause.CANCELLED, Cause.CANCELLED),
        (record("CANCELLED+", **ENDED), Cause.CANCELLED, Cause.CANCELLED),
        (record("CANCELLED,COMPLETING", **ENDED), Cause.CANCELLED, Cause.CANCELLED),
        (record("COMPLETING,CANCELLED", preempt_time=NOW, **ENDED), Cause.CANCELLED, Cause.CANCELLED),
        (record("DEADLINE", **ENDED), Cause.CANCELLED, Cause.CANCELLED),
        (record("COMPLETING", **ENDED), Cause.CANCELLED, Cause.CANCELLED),
        (record("COMPLETING+", **ENDED), Cause.CANCELLED, Cause.CANCELLED),
        (record("COMPLETING", end_time=NOW + 5), Cause.CANCELLED, Cause.CANCELLED),
        (record("COMPLETING", end_time=NOW + 6), Cause.REQUEUED, Cause.REQUEUED),
        (record("COMPLETING", restarts=1, **ENDED), Cause.REQUEUED, Cause.REQUEUED),
        (record("COMPLETING", restarts=1, reason="TimeLimit"), Cause.REQUEUED, Cause.REQUEUED),
        (record("RUNNING", restarts=1), Cause.REQUEUED, Cause.REQUEUED),
        (record("COMPLETED", **ENDED), Cause.CANCELLED, Cause.CANCELLED),
        (record("FAILED", reason="NonZeroExitCode", **ENDED), Cause.CANCELLED, Cause.CANCELLED),
        (record("NODE_FAIL", **ENDED), Cause.NODE_FAILURE, Cause.NODE_FAILURE),
        (record("COMPLETING", reason="NodeDown", **ENDED), Cause.NODE_FAILURE, Cause.NODE_FAILURE),
        (record("PENDING", restarts=None, **ENDED), Cause.REQUEUED, Cause.REQUEUED),
        (record("COMPLETING,REQUEUED", restarts=None, **ENDED), Cause.REQUEUED, Cause.REQUEUED),
        (record("REQUEUE_HOLD", restarts=None, end_time=None), Cause.REQUEUED, Cause.REQUEUED),
        (record("SPECIAL_EXIT", restarts=None, end_time=None), Cause.REQUEUED, Cause.REQUEUED),
    ],
    ids=repr,
)
def test_cause_of_every_state(said, cause, cause_if_lost):
    assert cause_of(said, RUN, source="SIGTERM", now=NOW) is cause
    assert cause_of(said, RUN, source="", now=NOW, is_lost=True) is cause_if_lost


@pytest.mark.parametrize(
    ("source", "end_time", "is_lost", "cause"),
    [
        ("SIGTERM", None, False, Cause.UNKNOWN),
        ("SIGTERM", LATER, False, Cause.UNKNOWN),
        ("SIGUSR1", NOW + 600, False, Cause.TIME_LIMIT),
        ("SIGUSR1", NOW + 601, False, Cause.UNKNOWN),
        ("SIGTERM", NOW - 20, False, Cause.TIME_LIMIT),
        (TIME_LIMIT_SOURCE, None, False, Cause.TIME_LIMIT),
        (TIME_LIMIT_SOURCE, LATER, False, Cause.TIME_LIMIT),
        ("", None, True, Cause.LOST_WORKER),
        ("", NOW, True, Cause.LOST_WORKER),
    ],
)
def test_cause_where_slurm_cannot_be_asked(source, end_time, is_lost, cause):
    run = SlurmRun(job_id=7, requeue_as="7", end_time=end_time)
    assert cause_of(None, run, source=source, now=NOW, is_lost=is_lost) is cause


def test_the_watched_time_limit_is_believed_when_it_ends_later_than_a_signal_would_come():
    assert cause_of(record(), RUN, source=TIME_LIMIT_SOURCE, now=NOW) is Cause.TIME_LIMIT


REQUEUED_FOR = (
    Cause.PREEMPTED,
    Cause.TIME_LIMIT,
    Cause.NODE_FAILURE,
    Cause.SIGNAL,
    Cause.LOST_WORKER,
    Cause.UNKNOWN,
)


def test_every_cause_is_in_one_of_the_tables():
    assert set(Cause) == {*REQUEUED_FOR, Cause.REQUEUED, Cause.CANCELLED}


@pytest.mark.parametrize("cause", REQUEUED_FOR, ids=str)
@pytest.mark.parametrize("said", [None, record(), record(is_batch=True, may_requeue=True)], ids=repr)
def test_the_job_is_requeued_where_a_rest_is_left(cause, said):
    verdict = decide(cause, said, SlurmOptions())
    assert verdict == Verdict(action=Action.REQUEUE, cause=cause, reason="the job is requeued")
    assert (verdict.exit_code, str(verdict)) == (RESTART_LOCAL, f"{cause}: the job is requeued")


@pytest.mark.parametrize("cause", REQUEUED_FOR, ids=str)
@pytest.mark.parametrize(
    ("options", "said", "past", "exit_code", "words"),
    [
        ({"requeue": "never"}, record(), {}, RESTART_LOCAL, "SlurmOptions.requeue='never'"),
        ({}, record(is_batch=False, may_requeue=True), {}, RESTART_LOCAL, "only what sbatch has started"),
        (
            {},
            record(is_batch=True, may_requeue=False),
            {},
            RESTART_LOCAL,
            "JobRequeue=0 is set); submit it again to go on from the last commit, if there is one",
        ),
        ({}, record(), {"no_progress": 2}, PERMANENT, "2 runs in a row saved nothing new"),
        ({"max_no_progress": 1}, record(), {"no_progress": 1}, PERMANENT, "this run saved nothing new"),
        ({"max_requeues": 3}, record(), {"requeues": 3}, PERMANENT, "all 3 requeues are used up"),
        ({"max_requeues": 0}, None, {}, PERMANENT, "all 0 requeues are used up"),
        ({}, None, {"no_progress": 5}, PERMANENT, "5 runs in a row"),
    ],
)
def test_the_job_is_not_requeued(cause, options, said, past, exit_code, words):
    verdict = decide(cause, said, SlurmOptions(**options), **past)
    assert (verdict.action, verdict.cause, verdict.exit_code) == (Action.LEAVE, cause, exit_code)
    assert words in verdict.reason


@pytest.mark.parametrize(
    ("options", "past"),
    [
        ({}, {"no_progress": 1, "requeues": 1000}),
        ({"max_requeues": 3}, {"requeues": 2}),
        ({"max_no_progress": 3}, {"no_progress": 2}),
    ],
)
def test_the_job_is_requeued_as_long_as_a_limit_is_not_reached(options, past):
    assert decide(Cause.PREEMPTED, record(), SlurmOptions(**options), **past).action is Action.REQUEUE


@pytest.mark.parametrize(
    ("cause", "exit_code"), [(Cause.REQUEUED, RESTART_LOCAL), (Cause.CANCELLED, CANCELLED)], ids=str
)
@pytest.mark.parametrize("is_supervised", [False, True])
def test_there_is_nothing_to_do_for_a_job_that_is_gone(cause, exit_code, is_supervised):
    verdict = decide(cause, record(), SlurmOptions(), is_supervised=is_supervised)
    assert (verdict.action, verdict.exit_code) == (Action.LEAVE, exit_code)


@pytest.mark.parametrize("cause", REQUEUED_FOR, ids=str)
def test_only_a_lost_worker_is_the_supervisors_business(cause):
    verdict = decide(cause, record(), SlurmOptions(), is_supervised=True)
    expected = Action.LEAVE if cause is Cause.LOST_WORKER else Action.REQUEUE
    assert (verdict.action, verdict.exit_code) == (expected, RESTART_LOCAL)


@pytest.mark.parametrize(
    ("cause", "action", "words"),
    [
        (Cause.PREEMPTED, Action.STAY, "waits for Slurm"),
        (Cause.UNKNOWN, Action.STAY, "waits for Slurm"),
        (Cause.TIME_LIMIT, Action.LEAVE, "exit status 42"),
        (Cause.NODE_FAILURE, Action.LEAVE, "exit status 42"),
        (Cause.SIGNAL, Action.LEAVE, "exit status 42"),
        (Cause.LOST_WORKER, Action.LEAVE, "exit status 42"),
    ],
    ids=str,
)
def test_after_a_refusal_only_those_stay_whom_slurm_requeues_when_it_ends_them(cause, action, words):
    verdict = after_refusal(decide(cause, record(), SlurmOptions()), "`scontrol` is not here.\nHINT: bind it")
    assert (verdict.action, verdict.cause, verdict.exit_code) == (action, cause, RESTART_LOCAL)
    assert words in verdict.reason
    assert "(`scontrol` is not here)" in verdict.reason
    assert "HINT" not in verdict.reason


WITHOUT_TRAINING = [
    ("preempted_and_requeued", 6, "run 0: requeued already: Slurm runs it again by itself."),
    ("time_limit", 1, "its time limit: the notice came here, so that it is not requeued; ask for more time"),
    ("cancelled", 3, "cancelled: a job that its owner cancels, or whose batch script has ended, is not"),
    ("unlimited", 26, "a notice while the job runs on: it came here, so that the job is not requeued."),
    ("node_failed_no_requeue", 19, "a node failed: it came here, so that the job is not requeued."),
]


class FakeSlurm:
    """A `scontrol` that answers with files in turn, the last one for ever, and counts what it is asked."""

    def __init__(self, tmp_path, monkeypatch):
        monkeypatch.setattr(_slurm_control, "_USUAL_PLACES", "")
        self._bin, self._answers = tmp_path / "bin", tmp_path / "answers"
        self._asked = tmp_path / "asked"
        self._bin.mkdir()
        self._answers.mkdir()
        self.environ = {"PATH": str(self._bin)}

    def says(self, *names, requeue="exit 0"):
        """What it says at each question: a recorded answer, or "" where it fails."""
        for number, name in enumerate(names):
            said = recorded(name)[1] if name else ""
            (self._answers / str(number)).write_text(said, encoding="utf-8")
        script = f"""#!/bin/sh
echo "$*" >>{self._asked}
if [ "$1" = requeue ]; then {requeue}; fi
for answer in {self._answers}/*; do break; done
[ -s $answer ] && /bin/cat $answer || echo 'Unable to contact slurm controller' >&2
[ -s $answer ] || code=1
set -- {self._answers}/*
[ $# -gt 1 ] && /bin/rm $answer
exit ${{code:-0}}
"""
        (self._bin / "scontrol").write_text(script, encoding="utf-8")
        (self._bin / "scontrol").chmod(0o755)
        return self

    @property
    def asked(self):
        return self._asked.read_text(encoding="utf-8").splitlines() if self._asked.exists() else []


@pytest.fixture
def fake_slurm(tmp_path, monkeypatch):
    return FakeSlurm(tmp_path, monkeypatch)


@pytest.fixture
def make_exit(fake_slurm, tmp_path):
    """Makes a `SlurmExit` for a job whose answers were recorded; `pauses` has the waits."""

    def make(name, *, job_id, options=None, pauses=None, is_supervised=False, **run):
        (tmp_path / "ck").mkdir(exist_ok=True)
        return SlurmExit(
            SlurmRun(job_id=job_id, **{"requeue_as": str(job_id), **run}),
            SlurmControl(fake_slurm.environ),
            options or SlurmOptions(),
            RequeueRecord(str(tmp_path / "ck"), str(job_id)),
            is_supervised=is_supervised,
            clock=lambda: recorded(name)[0],
            pause=[].append if pauses is None else pauses.append,
        )

    return make


@pytest.mark.parametrize(
    ("name", "job_id", "cause"),
    [
        ("preempted", 6, Cause.PREEMPTED),
        ("time_limit", 1, Cause.TIME_LIMIT),
        ("signal_before_limit", 2, Cause.TIME_LIMIT),
    ],
)
def test_settle_has_the_job_requeued_and_counts_it(
    fake_slurm, make_exit, tmp_path, caplog, name, job_id, cause
):
    fake_slurm.says(name)
    verdict = make_exit(name, job_id=job_id).settle(source="SIGTERM", incarnation=0, made_progress=True)
    assert (verdict.action, verdict.cause) == (Action.REQUEUE, cause)
    assert fake_slurm.asked == [f"show job -o {job_id}", f"requeue {job_id}"]
    assert (
        RequeueRecord(str(tmp_path / "ck"), str(job_id)).add(incarnation=1, made_progress=True).requeues == 1
    )
    assert f"Slurm job {job_id}, run 0: {cause}: the job is requeued." in caplog.messages


def test_settle_names_the_job_as_slurm_does(fake_slurm, make_exit):
    fake_slurm.says("array")
    make_exit("array", job_id=23, requeue_as="23_3").settle(
        source="SIGTERM", incarnation=0, made_progress=True
    )
    assert fake_slurm.asked == ["show job -o 23", "requeue 23_3"]


@pytest.mark.parametrize(
    ("name", "job_id", "options", "cause"),
    [
        ("cancelled", 3, {}, Cause.CANCELLED),
        ("requeued", 4, {}, Cause.REQUEUED),
        ("preempted_no_requeue", 7, {}, Cause.PREEMPTED),
        ("srun", 33, {}, Cause.TIME_LIMIT),
        ("preempted", 6, {"requeue": "never"}, Cause.PREEMPTED),
        ("preempted", 6, {"max_requeues": 0}, Cause.PREEMPTED),
    ],
)
def test_settle_leaves_the_queue_alone(fake_slurm, make_exit, tmp_path, name, job_id, options, cause):
    fake_slurm.says(name)
    settler = make_exit(name, job_id=job_id, options=SlurmOptions(**options))
    verdict = settler.settle(source="SIGTERM", incarnation=0, made_progress=True)
    assert (verdict.action, verdict.cause) == (Action.LEAVE, cause)
    assert fake_slurm.asked == [f"show job -o {job_id}"]
    assert (
        RequeueRecord(str(tmp_path / "ck"), str(job_id)).add(incarnation=1, made_progress=True).requeues == 0
    )


REFUSAL = "echo Requested operation is presently disabled for job >&2; exit 1"


@pytest.mark.parametrize(
    ("name", "job_id", "action"), [("preempted", 6, Action.STAY), ("signal_before_limit", 2, Action.LEAVE)]
)
def test_settle_where_slurm_refuses(fake_slurm, make_exit, tmp_path, name, job_id, action):
    fake_slurm.says(name, requeue=REFUSAL)
    verdict = make_exit(name, job_id=job_id).settle(source="SIGTERM", incarnation=0, made_progress=True)
    assert verdict.action is action
    assert "presently disabled" in verdict.reason
    assert (
        RequeueRecord(str(tmp_path / "ck"), str(job_id)).add(incarnation=1, made_progress=True).requeues == 0
    )


def test_settle_where_somebody_else_was_faster(fake_slurm, make_exit):
    fake_slurm.says("preempted", "preempted_and_requeued", requeue="echo Job is pending >&2; exit 1")
    verdict = make_exit("preempted", job_id=6).settle(source="SIGTERM", incarnation=0, made_progress=True)
    assert (verdict.action, verdict.cause) == (Action.LEAVE, Cause.REQUEUED)
    assert fake_slurm.asked == ["show job -o 6", "requeue 6", "show job -o 6"]


def test_settle_asks_three_times_with_pauses(fake_slurm, make_exit, caplog):
    pauses = []
    fake_slurm.says("", "", "preempted")
    settler = make_exit("preempted", job_id=6, pauses=pauses)
    assert settler.settle(source="SIGTERM", incarnation=0, made_progress=True).cause is Cause.PREEMPTED
    assert pauses == [0.5, 2.0]
    assert "could not be asked" not in caplog.text


def test_settle_where_the_controller_is_down(fake_slurm, make_exit, caplog):
    pauses = []
    fake_slurm.says("", requeue="exit 1")
    settler = make_exit("preempted", job_id=6, pauses=pauses)
    verdict = settler.settle(source="SIGTERM", incarnation=0, made_progress=True)
    assert (verdict.action, verdict.cause) == (Action.STAY, Cause.UNKNOWN)
    assert pauses == [0.5, 2.0, 0.5]
    assert fake_slurm.asked == ["show job -o 6"] * 3 + ["requeue 6"] + ["show job -o 6"] * 2
    assert [message for message in caplog.messages if "could not be asked about" in message] == [
        "Slurm could not be asked about job 6: `scontrol show job -o 6` left with 1: "
        "Unable to contact slurm controller"
    ]


def test_settle_without_any_command_of_slurm_wastes_no_time(make_exit, caplog):
    pauses = []
    settler = make_exit("preempted", job_id=6, pauses=pauses)
    verdict = settler.settle(source="SIGTERM", incarnation=0, made_progress=True)
    assert (verdict.action, verdict.cause, pauses) == (Action.STAY, Cause.UNKNOWN, [])
    assert "scontrol is not installed here" in verdict.reason


def test_settle_gives_up_after_two_runs_that_saved_nothing_new(fake_slurm, make_exit):
    fake_slurm.says("preempted")
    settler = make_exit("preempted", job_id=6)
    verdicts = [
        settler.settle(source="SIGTERM", incarnation=incarnation, made_progress=made_progress)
        for incarnation, made_progress in enumerate([False, True, None, False, None, False])
    ]
    assert [verdict.action for verdict in verdicts] == [Action.REQUEUE] * 5 + [Action.LEAVE]
    assert verdicts[-1].exit_code == PERMANENT


def test_nobody_is_told_to_submit_again_what_a_supervisor_may_go_on_with():
    said = record(is_batch=True, may_requeue=False)
    verdict = decide(Cause.TIME_LIMIT, said, SlurmOptions(), is_supervised=True)
    assert "; unless tf-preempt run goes on with it, submit it again to go on from" in verdict.reason


def test_what_may_help_a_job_without_progress_is_a_longer_limit_where_it_was_the_limit():
    at_limit, preempted = (
        decide(cause, record(), SlurmOptions(), no_progress=2)
        for cause in (Cause.TIME_LIMIT, Cause.PREEMPTED)
    )
    assert at_limit.reason.endswith("a smaller save_every or a longer limit may help")
    assert preempted.reason.endswith("a smaller save_every may help")


def test_a_time_limit_before_the_first_step_is_no_progress(fake_slurm, make_exit):
    fake_slurm.says("time_limit")
    settler = make_exit("time_limit", job_id=1)
    actions = [
        settler.settle(source="SIGTERM", incarnation=incarnation, made_progress=None).action
        for incarnation in range(2)
    ]
    assert actions == [Action.REQUEUE, Action.LEAVE]


@pytest.mark.parametrize(("is_supervised", "action"), [(False, Action.REQUEUE), (True, Action.LEAVE)])
def test_settle_after_a_lost_worker(fake_slurm, make_exit, is_supervised, action):
    fake_slurm.says("node_failed_no_kill")
    settler = make_exit("node_failed_no_kill", job_id=30, is_supervised=is_supervised)
    verdict = settler.settle(source="", incarnation=0, made_progress=True, is_lost=True)
    assert (verdict.action, verdict.cause) == (action, Cause.LOST_WORKER)


@pytest.mark.parametrize(("name", "job_id", "words"), WITHOUT_TRAINING)
def test_without_a_training_only_a_preemption_has_the_job_requeued_and_all_is_said(
    fake_slurm, make_exit, caplog, name, job_id, words
):
    fake_slurm.says(name)
    verdict = make_exit(name, job_id=job_id).settle_preemption(when="here")
    assert verdict.action is Action.LEAVE
    assert words in caplog.text
    assert fake_slurm.asked == [f"show job -o {job_id}"]


@pytest.mark.parametrize(("name", "job_id"), [case[:2] for case in WITHOUT_TRAINING])
def test_a_supervisor_whose_program_has_said_it_is_silent(fake_slurm, make_exit, caplog, name, job_id):
    fake_slurm.says(name)
    verdict = make_exit(name, job_id=job_id).settle_preemption()
    expected = (Action.LEAVE, Cause.REQUEUED) if name == "preempted_and_requeued" else None
    assert (verdict and (verdict.action, verdict.cause)) == expected
    assert caplog.text == ""


@pytest.mark.parametrize("when", [None, "here"])
def test_a_preempted_job_that_does_not_train_is_requeued_and_that_is_said_once(
    fake_slurm, make_exit, caplog, when
):
    fake_slurm.says("preempted")
    verdict = make_exit("preempted", job_id=6).settle_preemption(when=when)
    assert verdict.action is Action.REQUEUE
    assert caplog.text.count("preempted: the job is requeued") == 1
