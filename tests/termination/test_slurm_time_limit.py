"""The time limit as a source of notices: with a controller whose answers change, and set the clock."""

from __future__ import annotations

import os
import select
import threading

import pytest

from tf_preempt._slurm import SlurmRun
from tf_preempt._slurm_control import JobRecord
from tf_preempt.errors import SlurmError
from tf_preempt.termination import TerminationMonitor, slurm_time_limit
from tf_preempt.termination.slurm import TIME_LIMIT_SOURCE
from tf_preempt.termination.slurm_time_limit import TimeLimitWatcher, lead_s

START = 1_000_000.0
MONOTONIC = 5_000.0
SOON_S = 0.01


def record(end_time=None, **fields):
    return JobRecord(state="RUNNING", restarts=0, end_time=end_time, **fields)


class Controller:
    """Answers in turn, the last one for ever; with each answer comes the time of the clock."""

    def __init__(self, *answers):
        self._answers = list(answers)
        self._now = START
        self._lock = threading.Lock()
        self.asked = []
        self.all_given = threading.Event()

    def job(self, job_id):
        with self._lock:
            is_last = len(self._answers) == 1
            self._now, answer = self._answers[0] if is_last else self._answers.pop(0)
            self.asked.append(job_id)
            if is_last:
                self.all_given.set()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def clock(self):
        with self._lock:
            return self._now


@pytest.fixture
def watch():
    """Starts watchers of job 7 and closes them."""
    watchers = []

    def start(controller, *, end_time=None, restart_count=0, **options):
        run = SlurmRun(job_id=7, requeue_as="7", end_time=end_time, restart_count=restart_count)
        watcher = TimeLimitWatcher(
            run, controller, clock=controller.clock, monotonic=lambda: MONOTONIC, **options
        )
        watchers.append(watcher)
        return watcher

    yield start
    for watcher in watchers:
        watcher.close()


def wait_for_notice(watcher):
    readable, _, _ = select.select([watcher.fileno()], [], [], 10)
    assert readable, "no notice within 10 s"
    return watcher.poll()


@pytest.mark.parametrize(
    ("limit_s", "save_s", "seconds"),
    [
        (3600.0, None, 60.0),
        (86_400.0, None, 60.0),
        (300.0, None, 30.0),
        (60.0, None, 10.0),
        (None, None, 60.0),
        (3600.0, 0.0, 60.0),
        (3600.0, 20.0, 120.0),
        (60.0, 1.5, 14.5),
        (None, 100.0, 360.0),
    ],
)
def test_the_lead_is_a_tenth_of_the_limit_and_three_saves(limit_s, save_s, seconds):
    assert lead_s(limit_s, save_s) == seconds


def test_one_notice_with_a_deadline_when_the_time_has_come(watch):
    controller = Controller((START, record(START + 30.0, limit_s=3600.0)))
    watcher = watch(controller)
    notice = wait_for_notice(watcher)
    assert (notice.source, notice.deadline) == (TIME_LIMIT_SOURCE, MONOTONIC + 30.0)
    assert notice.reason == "the job's time limit ends it in 30 s"
    assert watcher.poll() is None
    assert controller.asked == [7]
    assert select.select([watcher.fileno()], [], [], 0) == ([], [], [])


def test_a_deadline_that_has_passed_is_now(watch):
    notice = wait_for_notice(watch(Controller((START, record(START - 5.0)))))
    assert notice.deadline == MONOTONIC
    assert notice.reason.endswith("in 0 s")


@pytest.mark.parametrize(
    ("options", "lead"),
    [
        ({}, 60.0),
        ({"lead_s": 300.0}, 300.0),
        ({"save_seconds": lambda: 20.0}, 120.0),
        ({"lead_s": 5.0, "save_seconds": lambda: 20.0}, 5.0),
    ],
)
@pytest.mark.parametrize(("early_s", "questions"), [(0.0, 1), (SOON_S, 2)], ids=["time", "too early"])
def test_the_notice_comes_as_long_before_the_end_as_wanted(watch, options, lead, early_s, questions):
    answer = record(START + lead, limit_s=3600.0)
    controller = Controller((START - early_s, answer), (START, answer))
    assert wait_for_notice(watch(controller, **options)).deadline == MONOTONIC + lead
    assert len(controller.asked) == questions


def test_after_an_extension_of_the_limit_the_new_end_counts(watch):
    almost = START + 3540.0 - SOON_S
    controller = Controller(
        (almost, record(START + 3600.0, limit_s=3600.0)),
        (START + 7140.0 - SOON_S, record(START + 7200.0, limit_s=7200.0)),
        (START + 7140.0, record(START + 7200.0, limit_s=7200.0)),
    )
    assert wait_for_notice(watch(controller)).deadline == MONOTONIC + 60.0
    assert controller.asked == [7, 7, 7]


def test_the_end_of_the_environment_counts_where_the_controller_does_not_answer(watch, caplog):
    caplog.set_level("INFO")
    controller = Controller((START, SlurmError("no answer.\nHINT: wait")))
    notice = wait_for_notice(watch(controller, end_time=START + 50.0))
    assert notice.deadline == MONOTONIC + 50.0
    assert "Slurm could not be asked for the job's end: no answer." in caplog.messages


def test_a_controller_that_did_not_answer_is_asked_again_less_and_less_often(watch, monkeypatch, caplog):
    caplog.set_level("INFO")
    monkeypatch.setattr(slurm_time_limit, "_FIRST_RETRY_S", SOON_S)
    no_answer = (START, SlurmError("no answer"))
    controller = Controller(no_answer, no_answer, no_answer, (START, record(START + 30.0)))
    watcher = watch(controller)
    assert wait_for_notice(watcher).deadline == MONOTONIC + 30.0
    assert controller.asked == [7, 7, 7, 7]
    assert caplog.messages == ["Slurm could not be asked for the job's end: no answer"]
    assert watcher._next_try_s() == 8 * SOON_S


def test_the_pauses_grow_to_an_hour(watch):
    watcher = watch(Controller((START, record())))
    assert [watcher._next_try_s() for _ in range(9)] == [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]


def test_a_job_without_a_limit_may_get_one(watch, monkeypatch, caplog):
    caplog.set_level("INFO")
    monkeypatch.setattr(slurm_time_limit, "_LONGEST_WAIT_S", SOON_S)
    controller = Controller((START, record()), (START, record()), (START, record(START + 30.0)))
    assert wait_for_notice(watch(controller)).deadline == MONOTONIC + 30.0
    assert caplog.messages == ["Slurm tells no end of job 7, so that no time limit is watched."]


@pytest.mark.parametrize(
    "answer",
    [
        record(START + 5.0, preempt_time=START, limit_s=3600.0),
        JobRecord(state="COMPLETING", restarts=1, end_time=START + 5.0),
    ],
    ids=["preempted", "requeued"],
)
def test_an_end_for_another_reason_is_no_time_limit(watch, monkeypatch, answer):
    monkeypatch.setattr(slurm_time_limit, "_LONGEST_WAIT_S", SOON_S)
    controller = Controller((START, answer), (START, record(START + 30.0)))
    assert wait_for_notice(watch(controller)).deadline == MONOTONIC + 30.0
    assert controller.asked == [7, 7]


def test_restarts_before_this_run_do_not_matter(watch):
    answer = JobRecord(state="RUNNING", restarts=2, end_time=START + 5.0)
    assert wait_for_notice(watch(Controller((START, answer)), restart_count=2)).deadline == MONOTONIC + 5.0


def test_the_monitor_hears_it_at_once(watch):
    notices, heard = [], threading.Event()

    def on_notice(notice):
        notices.append(notice)
        heard.set()

    watcher = watch(Controller((START, record(START + 30.0))))
    with TerminationMonitor([watcher], on_notice, poll_interval_s=60.0):
        assert heard.wait(10)
    assert [notice.source for notice in notices] == [TIME_LIMIT_SOURCE]


def descriptors():
    return {fd for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")}


@pytest.mark.parametrize(
    "answer",
    [record(START + 3600.0), record(START + 1.0), record(), SlurmError("no answer")],
    ids=["waiting", "notice there", "no limit", "no answer"],
)
def test_close_leaves_no_thread_and_no_descriptor(watch, answer):
    before = descriptors()
    controller = Controller((START, answer))
    watcher = watch(controller)
    assert controller.all_given.wait(10)
    watcher.close()
    watcher._thread.join(10)
    assert not watcher._thread.is_alive()
    assert descriptors() == before
    assert watcher.fileno() is None
    assert watcher.poll() is None
    watcher.close()


def test_close_does_not_wait_for_a_controller_that_is_slow(watch):
    before = descriptors()
    asked, answer = threading.Event(), threading.Event()

    class Slow:
        def job(self, job_id):
            asked.set()
            answer.wait(30)
            return record(START)

        def clock(self):
            return START

    watcher = watch(Slow())
    assert asked.wait(10)
    watcher.close()
    assert watcher._thread.is_alive()
    answer.set()
    watcher._thread.join(10)
    assert not watcher._thread.is_alive()
    assert descriptors() == before
