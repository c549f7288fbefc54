"""A training under protection in this process, with real signals; two workers as two threads."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import logging
import os
import pathlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tensorflow as tf

from tests.checkpointing.conftest import CALM, PREEMPTED
from tests.checkpointing.test_committer import committed
from tf_preempt import errors
from tf_preempt.checkpointing import manifest as manifests
from tf_preempt.checkpointing import session as sessions
from tf_preempt.checkpointing.cadence import Cadence
from tf_preempt.checkpointing.committer import Committer, describe_variables
from tf_preempt.checkpointing.manifest import Manifest
from tf_preempt.checkpointing.restoring import Restored
from tf_preempt.checkpointing.saving import Snapshot
from tf_preempt.checkpointing.session import SessionOptions, TrainingSession
from tf_preempt.checkpointing.startup import Cluster
from tf_preempt.checkpointing.worker_part import WorkerPart
from tf_preempt.goodput.events import read_events
from tf_preempt.goodput.status_file import StatusFile
from tf_preempt.termination.config import TerminationConfig
from tf_preempt.termination.slurm_options import SlurmOptions

TIMEOUT_S = 30.0
SLURM = {"SLURM_JOB_ID": "1"}
NEVER = Cadence(kind="never")


class Loop:
    """A training whose one variable holds the number of steps done."""

    def __init__(self, directory: pathlib.Path, *, cluster: Cluster | None = None, **options: Any) -> None:
        self.variable = tf.Variable(0.0)
        self.large = tf.Variable(tf.zeros([1 << 19 if options.pop("large", False) else 1]))
        self.checkpoint = tf.train.Checkpoint(v=self.variable, large=self.large)
        self.manager = tf.train.CheckpointManager(self.checkpoint, str(directory), max_to_keep=None)
        self.committer = Committer(
            self.manager, max_to_keep=5, variables=describe_variables([self.variable, self.large])
        )
        self.cluster = cluster or Cluster()
        store = options.pop("store", None)
        defaults: dict[str, Any] = {"environ": SLURM, "cadence": NEVER, "config": TerminationConfig()}
        options = defaults | options
        if options["environ"] == SLURM:
            # There is no Slurm here: only the exit status is Slurm's.
            alone = SlurmOptions(requeue="never", time_limit_lead_s=0)
            options["config"] = dataclasses.replace(options["config"], slurm=alone)
        self.session = TrainingSession(
            self.checkpoint,
            self.committer,
            self.cluster,
            SessionOptions(**options),
            store=store,
        )
        self.steps = 0
        self.captures = 0

    def start(self) -> Restored | None:
        restored = self.session.start()
        if restored is not None:
            self.steps = restored.manifest.step
        return restored

    def capture(self) -> Snapshot:
        self.captures += 1
        resume = {"epoch": 0, "phase": "train", "step": self.steps}
        values = {"worker": self.cluster.worker, "steps": self.steps}
        part = WorkerPart(tensors={"large": self.large.value()}, values=values)
        return Snapshot(step=self.steps, resume=resume, part=part)

    def step(self, *, new_epoch: bool = False) -> None:
        self.session.boundary(self.capture, step=self.steps, new_epoch=new_epoch)
        self.steps += 1
        self.variable.assign(float(self.steps))

    def step_until(self, done: Callable[[], bool] = lambda: False) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        pause = threading.Event()
        while not done():
            if time.monotonic() > deadline:
                pytest.fail(f"nothing has happened in {self.steps} steps")
            self.step()
            pause.wait(0.002)


@contextlib.contextmanager
def training(directory: pathlib.Path, **options: Any) -> Iterator[Loop]:
    loop = Loop(directory, **options)
    loop.start()
    try:
        yield loop
    finally:
        loop.session.close()


def newest(directory: pathlib.Path) -> Manifest:
    _, name = manifests.manifest_names(str(directory))[0]
    return manifests.read_manifest(str(directory), name)


def saved_value(directory: pathlib.Path, prefix: str) -> float:
    reader = tf.train.load_checkpoint(str(directory / prefix))
    return float(reader.get_tensor("v/.ATTRIBUTES/VARIABLE_VALUE"))


def events(directory: pathlib.Path) -> list[tuple[str, int, dict[str, Any]]]:
    return [(event["kind"], event["incarnation"], event) for event in read_events(str(directory))]


# ---------------------------------------------------------------------------------------------- notices


@pytest.mark.parametrize(
    ("environ", "status"),
    [(SLURM, 42), ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, 143), ({"CLOUD_ML_JOB_ID": "7"}, 134)],
)
def test_a_sigterm_is_followed_by_a_committed_save_and_the_platforms_status(
    tmp_path: pathlib.Path, environ: dict[str, str], status: int
) -> None:
    with training(tmp_path, environ=environ) as loop:
        loop.step()
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(SystemExit) as raised:
            loop.step_until()
        assert raised.value.code == status
        assert loop.session.is_closed
    manifest = newest(tmp_path)
    assert (manifest.step, manifest.reason) == (loop.steps, "notice: SIGTERM on worker 0")
    assert manifest.resume == {"fit": 0, "epoch": 0, "phase": "train", "step": loop.steps}
    assert saved_value(tmp_path, manifest.prefix) == loop.steps
    assert loop.captures == 1


def test_a_notebook_gets_preempted_in_place_of_an_exit(tmp_path: pathlib.Path) -> None:
    with training(tmp_path, raise_on_preemption=True) as loop:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(errors.Preempted, match=rf"(?s)step \d+ is saved in {tmp_path}") as raised:
            loop.step_until()
    assert raised.value.exit_code == 42
    assert committed(tmp_path) == [1]


def test_the_users_watcher_and_exit_fn_are_called(tmp_path: pathlib.Path) -> None:
    config = TerminationConfig(termination_watcher_fn=lambda: True, exit_fn=lambda: sys.exit(77), signals=())
    with training(tmp_path, config=config) as loop, pytest.raises(SystemExit) as raised:
        loop.step_until()
    assert raised.value.code == 77
    assert committed(tmp_path) == [1]


def test_the_next_life_goes_on_where_the_last_one_was_left(tmp_path: pathlib.Path) -> None:
    with training(tmp_path) as first:
        first.step()
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(SystemExit):
            first.step_until()
    second = Loop(tmp_path)
    restored = second.start()
    assert restored is not None
    assert restored.part.values == {"worker": 0, "steps": first.steps}
    assert second.variable.numpy() == first.steps == second.steps
    assert second.session.incarnation == 1
    second.session.finish(second.capture)
    assert committed(tmp_path) == [1, 2]


def test_events_tell_the_story_of_two_lives(tmp_path: pathlib.Path) -> None:
    with training(tmp_path) as loop:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(SystemExit):
            loop.step_until()
    with training(tmp_path) as again:
        again.session.finish(again.capture)
    found = events(tmp_path)
    assert [(kind, life) for kind, life, _ in found] == [
        ("start", 0),
        ("notice", 0),
        ("agreed", 0),
        ("save", 0),
        ("commit", 0),
        ("exit", 0),
        ("start", 1),
        ("restore", 1),
        ("save", 1),
        ("commit", 1),
        ("finish", 1),
    ]
    by_kind = {(kind, life): event for kind, life, event in found}
    assert by_kind["start", 0]["platform"] == "slurm"
    assert by_kind["start", 0]["pid"] == os.getpid()
    assert by_kind["notice", 0]["source"] == "SIGTERM"
    assert by_kind["notice", 0]["deadline_s"] is None
    agreed = by_kind["agreed", 0]
    assert agreed["boundary"] - by_kind["notice", 0]["boundary"] in (0, 1, 2, 3)
    assert agreed["global_step"] == agreed["step"] == loop.steps
    assert by_kind["exit", 0]["code"] == 42
    assert by_kind["restore", 1]["step"] == loop.steps
    assert by_kind["commit", 1]["checkpoint"] == "ckpt-2"
    assert by_kind["commit", 1]["bytes"] == sum(record.bytes for record in newest(tmp_path).files)


def test_the_status_file_tells_the_supervisor_of_restore_and_commits(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "status.json"
    options: dict[str, Any] = {"environ": {**SLURM, "TF_PREEMPT_STATUS_FILE": str(path)}}
    file = StatusFile(str(path))
    with training(tmp_path / "run", **options) as loop:
        status = file.read()
        assert status is not None
        assert (status.incarnation, status.restored_step, status.commits) == (0, None, 0)
        loop.step()
        loop.session.save_now(loop.capture, reason="test")
        status = file.read()
        assert status is not None
        assert (status.committed_step, status.commits, status.reason) == (1, 1, "test")
    with training(tmp_path / "run", **options):
        status = file.read()
        assert status is not None
        assert (status.incarnation, status.restored_step, status.committed_step) == (1, 1, None)


def test_a_status_file_that_cannot_be_written_does_not_end_training(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    environ = {**SLURM, "TF_PREEMPT_STATUS_FILE": str(tmp_path / "missing" / "status")}
    with (
        caplog.at_level(logging.WARNING, logger="tf_preempt"),
        training(tmp_path / "run", environ=environ) as loop,
    ):
        loop.session.save_now(loop.capture, reason="test")
        loop.step()
    assert "status file could not be written" in caplog.text


class Heard(logging.Handler):
    """Waits for a log line of which there have been so many."""

    def __init__(self, words: str, times: int) -> None:
        super().__init__()
        self._words, self._left = words, times
        self.seen = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self._left -= record.getMessage().startswith(self._words)
        if self._left <= 0:
            self.seen.set()


@contextlib.contextmanager
def heard(words: str, times: int) -> Iterator[threading.Event]:
    log, handler = logging.getLogger("tf_preempt"), Heard(words, times)
    log.addHandler(handler)
    try:
        yield handler.seen
    finally:
        log.removeHandler(handler)


def sigterm_and_wait(seen: threading.Event) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    assert seen.wait(TIMEOUT_S)


def test_a_second_notice_before_the_save_changes_nothing(tmp_path: pathlib.Path) -> None:
    with training(tmp_path) as loop, heard("Notice on worker 0", 2) as two:
        loop.step()
        with heard("Notice on worker 0", 1) as one:
            sigterm_and_wait(one)
        sigterm_and_wait(two)
        with pytest.raises(SystemExit) as raised:
            loop.step_until()
    assert raised.value.code == 42
    assert loop.captures == 1
    assert committed(tmp_path) == [1]
    assert [kind for kind, _, _ in events(tmp_path)].count("notice") == 2


def test_a_second_notice_during_the_save_changes_nothing(tmp_path: pathlib.Path) -> None:
    with training(tmp_path) as loop, heard("Notice on worker 0", 2) as two:
        loop.step()
        capture = loop.capture

        def capture_and_hear() -> Snapshot:
            snapshot = capture()
            sigterm_and_wait(two)
            return snapshot

        loop.capture = capture_and_hear  # type: ignore[method-assign]
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(SystemExit) as raised:
            loop.step_until()
    assert raised.value.code == 42
    assert loop.captures == 1
    assert committed(tmp_path) == [1]


def test_the_signals_of_a_requeue_are_no_second_notice_and_end_nothing(
    tmp_path: pathlib.Path, slurm: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Slurm sends SIGTERM again while the program that asked for the requeue leaves."""
    with training(tmp_path, environ=slurm(PREEMPTED)) as loop:
        loop.step()
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(SystemExit) as raised:
            loop.step_until()
        assert raised.value.code == 42
        monitor = loop.session._monitor
        assert monitor is not None
        with monitor:
            os.kill(os.getpid(), signal.SIGTERM)  # the default action would end this process
            assert loop.session._departure._told.wait(TIMEOUT_S)
    assert slurm.asked() == ["show job -o 7", "show job -o 7", "requeue 7"]
    assert caplog.text.count("Slurm job 7, run 0: preempted: the job is requeued.") == 1
    assert [kind for kind, _, _ in events(tmp_path)].count("notice") == 1


def test_a_cancelled_job_is_left_with_the_status_of_sigterm(tmp_path: pathlib.Path, slurm: Any) -> None:
    # The end of a job that is cancelled is now, that of one that is requeued lies ahead.
    cancelled = CALM.replace("RUNNING", "COMPLETING").replace("2096", "2026")
    with training(tmp_path, environ=slurm(cancelled)) as loop:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(SystemExit) as raised:
            loop.step_until()
        assert loop.session._monitor is not None
        loop.session._monitor.close()
    assert raised.value.code == 143
    assert committed(tmp_path) == [1]
    assert "requeue 7" not in slurm.asked()


def test_an_error_of_the_training_is_told_and_one_of_a_lost_worker_is_not(tmp_path: pathlib.Path) -> None:
    for error in (ValueError("no such column"), errors.CoordinationError("a worker is gone")):
        with contextlib.suppress(type(error)), training(tmp_path) as loop:
            loop.step()
            raise error
    told = [event for event in read_events(str(tmp_path)) if event["kind"] == "error"]
    assert [(event["incarnation"], event["error"]) for event in told] == [(0, "ValueError: no such column")]


def test_a_worker_that_is_lost_before_any_commit_is_not_said_to_have_left_one(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    session = Loop(tmp_path, cluster=Cluster(worker=0, workers=2)).session
    with pytest.raises(SystemExit) as left, session.guard():
        raise errors.WorkerLostError("worker 1 does not answer")
    assert left.value.code == 42
    assert "A worker was lost; a new start goes on from the last commit, if any." in caplog.text
    assert "untouched" not in caplog.text


def test_an_error_that_is_handled_around_a_training_is_not_its_own(tmp_path: pathlib.Path) -> None:
    try:
        raise FileNotFoundError("no older run")
    except FileNotFoundError:
        with training(tmp_path) as loop:
            loop.step()
            loop.session.finish(loop.capture)
    assert not [event for event in read_events(str(tmp_path)) if event["kind"] == "error"]


def test_a_notice_whose_commit_fails_leaves_all_the_same_and_says_what_counts(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    with training(tmp_path) as loop:
        loop.session.save_now(loop.capture, reason="test")
        loop.step()
        (tmp_path / "ckpt-2.manifest.json").mkdir()
        os.kill(os.getpid(), signal.SIGTERM)
        with caplog.at_level(logging.WARNING, logger="tf_preempt"), pytest.raises(SystemExit) as raised:
            loop.step_until()
    assert raised.value.code == 42
    assert "Checkpoint 2 was not committed" in caplog.text
    assert f"step {loop.steps} could not be committed, the checkpoint before it counts" in caplog.text
    (tmp_path / "ckpt-2.manifest.json").rmdir()
    with training(tmp_path) as again:
        assert again.steps == 0


# ------------------------------------------------------------------------------------- save_fn, grace


def test_a_save_fn_takes_the_managers_place_and_its_checkpoint_is_committed(tmp_path: pathlib.Path) -> None:
    loops: list[Loop] = []

    def save_fn() -> str:
        return str(loops[0].checkpoint.write(str(tmp_path / "mine-1")))

    with training(tmp_path, config=TerminationConfig(save_fn=save_fn)) as loop:
        loops.append(loop)
        loop.step()
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(SystemExit):
            loop.step_until()
    assert newest(tmp_path).prefix == "mine-1"
    with training(tmp_path) as again:
        assert again.variable.numpy() == loop.steps > 0


def test_a_save_fn_that_returns_nothing_means_the_newest_that_the_manager_knows(
    tmp_path: pathlib.Path,
) -> None:
    loops: list[Loop] = []

    def save_fn() -> None:
        loops[0].manager.save(checkpoint_number=70)

    with training(tmp_path, config=TerminationConfig(save_fn=save_fn)) as loop:
        loops.append(loop)
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(SystemExit):
            loop.step_until()
    assert newest(tmp_path).prefix == "ckpt-70"


def test_the_managers_own_save_as_save_fn_overwrites_nothing_after_a_crash(tmp_path: pathlib.Path) -> None:
    """Uncommitted checkpoints are in the directory then, so TensorFlow's count is behind the names."""
    for _ in range(2):
        with training(tmp_path) as crashing:
            crashing.step()
            crashing.session.save_now(crashing.capture, reason="test")
            crashing.committer.save_variables(crashing.session._number)
    before = committed(tmp_path)
    loops: list[Loop] = []
    config = TerminationConfig(save_fn=lambda: loops[0].manager.save())
    with training(tmp_path, config=config) as loop:
        loops.append(loop)
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(SystemExit):
            loop.step_until()
    assert newest(tmp_path).number == max(before) + 2
    assert newest(tmp_path).prefix == f"ckpt-{max(before) + 2}"


@pytest.mark.parametrize("returned", ["/elsewhere/ckpt-1", "ckpt-99", None, 7])
def test_a_save_fn_that_saved_nothing_here_is_an_error_with_the_cure(
    tmp_path: pathlib.Path, returned: Any
) -> None:
    with training(tmp_path, config=TerminationConfig(save_fn=lambda: returned)) as loop:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(errors.ConfigError, match=r"(?s)save_fn returned .*HINT: let save_fn"):
            loop.step_until()
    assert committed(tmp_path) == []


def test_in_a_grace_period_training_goes_on_after_a_save_and_ends_with_another(
    tmp_path: pathlib.Path,
) -> None:
    config = TerminationConfig(grace_period=2.5)
    with training(tmp_path, config=config) as loop:
        os.kill(os.getpid(), signal.SIGTERM)
        started = time.monotonic()
        with pytest.raises(SystemExit):
            loop.step_until()
        assert time.monotonic() - started < 2.5
    assert loop.captures == 2
    first, last = (event["step"] for kind, _, event in events(tmp_path) if kind == "save")
    assert first < last == loop.steps


# ---------------------------------------------------------------------------------------- periodic saves


@pytest.mark.parametrize(
    ("cadence", "saved_at"),
    [
        (Cadence(kind="steps", steps=3), [3, 6, 9]),
        (Cadence(kind="epoch"), [4, 8]),
        (NEVER, []),
    ],
)
def test_saves_by_steps_and_epochs_are_where_they_belong(
    tmp_path: pathlib.Path, cadence: Cadence, saved_at: list[int]
) -> None:
    with training(tmp_path, cadence=cadence) as loop:
        for step in range(11):
            loop.step(new_epoch=step % 4 == 0)
        loop.session.close()
    assert [event["step"] for kind, _, event in events(tmp_path) if kind == "save"] == saved_at
    assert [event["step"] for kind, _, event in events(tmp_path) if kind == "commit"] == saved_at
    assert loop.captures == len(saved_at)


def test_saves_by_the_clock_are_asked_for_by_the_chief(tmp_path: pathlib.Path) -> None:
    cadence = Cadence.parse(datetime.timedelta(seconds=0.1))
    with training(tmp_path, cadence=cadence) as loop:
        loop.step_until(lambda: loop.captures == 2)
        loop.session.close()
    assert committed(tmp_path) == [1, 2]
    assert newest(tmp_path).reason == "every 0.1 s"


def test_old_checkpoints_are_deleted(tmp_path: pathlib.Path) -> None:
    with training(tmp_path, cadence=Cadence(kind="steps", steps=1)) as loop:
        for _ in range(9):
            loop.step()
        loop.session.close()
    assert committed(tmp_path) == [4, 5, 6, 7, 8]


def step_on(loop: Any, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        loop.step()


def test_a_background_error_surfaces_at_the_next_boundary_and_training_may_go_on(
    tmp_path: pathlib.Path,
) -> None:
    with training(tmp_path, cadence=Cadence.parse(2)) as loop:
        in_the_way = tmp_path / "ckpt-1.manifest.json"
        in_the_way.mkdir()
        with pytest.raises(errors.CheckpointWriteError, match="A checkpoint could not be committed"):
            step_on(loop, TIMEOUT_S)
        in_the_way.rmdir()
        loop.step()
        loop.session.save_now(loop.capture, reason="test")


def test_an_error_that_was_waited_for_surfaces_there_only(tmp_path: pathlib.Path) -> None:
    with training(tmp_path) as loop:
        (tmp_path / "ckpt-1.manifest.json").mkdir()
        with pytest.raises(errors.CheckpointWriteError, match="Checkpoint 1 was not committed"):
            loop.session.save_now(loop.capture, reason="test")
        loop.step()


def test_a_last_commit_that_fails_leaves_nothing_open(tmp_path: pathlib.Path) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    with training(tmp_path) as loop:
        (tmp_path / "ckpt-1.manifest.json").mkdir()
        with pytest.raises(errors.CheckpointWriteError, match="Checkpoint 1 was not committed"):
            loop.session.finish(loop.capture)
        assert loop.session.is_closed
        assert signal.getsignal(signal.SIGTERM) is handler


def test_a_part_that_cannot_be_written_is_a_typed_error(tmp_path: pathlib.Path) -> None:
    with training(tmp_path) as loop:
        (tmp_path / "ckpt-1.workers").write_text("in the way")
        with pytest.raises(
            errors.CheckpointWriteError, match=r"Writing ckpt-1\.workers/00000-of-00001 failed"
        ):
            loop.session.save_now(loop.capture, reason="test")


# ------------------------------------------------------------------------------------------ begin and end


def test_finish_commits_and_gives_everything_back(tmp_path: pathlib.Path) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    with training(tmp_path) as loop:
        assert signal.getsignal(signal.SIGTERM) is not handler
        for _ in range(3):
            loop.step()
        loop.session.finish(loop.capture)
        assert loop.session.is_closed
        assert signal.getsignal(signal.SIGTERM) is handler
    manifest = newest(tmp_path)
    assert (manifest.step, manifest.reason) == (3, "finished")


def test_finish_without_news_commits_nothing(tmp_path: pathlib.Path) -> None:
    with training(tmp_path) as loop:
        loop.session.finish(None)
    assert committed(tmp_path) == []


def test_a_notice_at_the_very_end_is_answered_by_the_last_save(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_unanswered", [])  # the next test is another program
    with training(tmp_path) as loop:
        loop.step()
        os.kill(os.getpid(), signal.SIGTERM)
        held = loop.session._agreement
        deadline = time.monotonic() + TIMEOUT_S
        while not held._hold and time.monotonic() < deadline:
            threading.Event().wait(0.002)
        with caplog.at_level(logging.WARNING, logger="tf_preempt"):
            loop.session.finish(loop.capture)
    assert newest(tmp_path).reason == "finished"
    assert "Training was complete when SIGTERM came; it is saved." in caplog.messages


def test_close_twice_and_before_start_is_fine_and_saves_nothing(tmp_path: pathlib.Path) -> None:
    never_started = Loop(tmp_path)
    never_started.session.close()
    with training(tmp_path) as loop:
        loop.step()
        loop.session.close()
        loop.session.close()
    assert committed(tmp_path) == []


def test_a_directory_has_one_session_at_a_time(tmp_path: pathlib.Path) -> None:
    with training(tmp_path) as loop:
        with pytest.raises(errors.DirectoryInUseError):
            Loop(tmp_path).start()
        loop.step()
    with training(tmp_path):
        pass


def test_an_error_at_the_start_leaves_no_thread_no_handler_and_no_file(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").touch()
    loop = Loop(tmp_path / "file" / "run")
    with pytest.raises(errors.DirectoryNotWritableError):
        loop.start()
    assert loop.session.is_closed
    assert os.listdir(tmp_path) == ["file"]


def test_a_directory_of_tensorflows_own_is_adopted_where_asked_for(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = tf.train.Checkpoint(v=tf.Variable(5.0), large=tf.Variable([1.0]))
    tf.train.CheckpointManager(theirs, str(tmp_path), max_to_keep=3).save()
    with caplog.at_level(logging.INFO, logger="tf_preempt"), training(tmp_path, adopt=True) as loop:
        assert loop.variable.numpy() == 5.0
        assert loop.steps == 0
    assert "ckpt-1 is adopted" in caplog.text
    with training(tmp_path) as plain:
        assert plain.variable.numpy() == 0.0


# ------------------------------------------------------------- damage that only reading everything finds


def commit_large(loop: Loop, count: int) -> None:
    """Checkpoints whose files are too large for a checksum in the manifest."""
    for number in range(1, count + 1):
        loop.steps = number
        loop.large.assign(tf.fill([1 << 19], float(number)))
        loop.session.save_now(loop.capture, reason="test")


def flip_a_bit(path: pathlib.Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damaged", [1, 2])
def test_a_flipped_bit_in_large_data_is_passed_over_for_the_checkpoint_before(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture, damaged: int
) -> None:
    with training(tmp_path, large=True) as loop:
        commit_large(loop, 3)
    for number in range(3, 3 - damaged, -1):
        flip_a_bit(tmp_path / f"ckpt-{number}.data-00000-of-00001")
    with caplog.at_level(logging.WARNING, logger="tf_preempt"), training(tmp_path, large=True) as again:
        assert again.steps == 3 - damaged
        assert again.large.numpy().tolist() == [3.0 - damaged] * (1 << 19)
        assert again.session.incarnation == 1
        again.session.finish(again.capture)
    assert [message.split(" in ")[0] for message in caplog.messages] == [
        f"Checkpoint ckpt-{number}" for number in range(3, 3 - damaged, -1)
    ]
    assert "ckpt-3.index" in os.listdir(tmp_path / "set-aside")
    assert newest(tmp_path).number == 4


def test_a_directory_with_nothing_but_damage_is_begun_afresh(tmp_path: pathlib.Path) -> None:
    with training(tmp_path, large=True) as loop:
        commit_large(loop, 1)
    flip_a_bit(tmp_path / "ckpt-1.data-00000-of-00001")
    with training(tmp_path, large=True) as again:
        assert again.steps == 0
        assert again.large.numpy().max() == 0.0


# ----------------------------------------------------------------------------------------------- format


def test_the_manifest_is_plain_json_with_the_words_of_the_format(tmp_path: pathlib.Path) -> None:
    with training(tmp_path) as loop:
        loop.session.finish(loop.capture)
    content = json.loads((tmp_path / "ckpt-1.manifest.json").read_text())
    assert {"format", "step", "incarnation", "resume", "workers", "reason", "written", "seconds"} < set(
        content
    )
