"""Trainings that are told how much time is left: real saves, real clocks, a metadata server of this machine.

What is computed is in test_asking.py and test_countdown.py.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.checkpointing.test_committer import committed
from tests.checkpointing.test_session import TIMEOUT_S, Loop, events, heard, newest, sigterm_and_wait
from tf_preempt.termination import TerminationNotice, TerminationWatcher, gce
from tf_preempt.termination.config import TerminationConfig
from tf_preempt.testing import FakeMetadataServer

LOCAL = {"TF_PREEMPT_CLOUD": "none"}


def slowly(function: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    def slow(*args: Any, **kwargs: Any) -> Any:
        threading.Event().wait(seconds)
        return function(*args, **kwargs)

    return slow


@contextlib.contextmanager
def training(
    directory: pathlib.Path, *, write_takes_s: float = 0.0, commit_takes_s: float = 0.0, **options: Any
) -> Iterator[Loop]:
    """A training whose file system is slow."""
    loop = Loop(directory, **{"environ": LOCAL, **options})
    committer: Any = loop.committer
    committer.save_variables = slowly(committer.save_variables, write_takes_s)
    committer.commit = slowly(committer.commit, commit_takes_s)
    loop.start()
    try:
        yield loop
    finally:
        loop.session.close(commit_wait_s=TIMEOUT_S)


def saved_steps(directory: pathlib.Path) -> list[int]:
    return [event["step"] for kind, _, event in events(directory) if kind == "save"]


@pytest.fixture
def gpu(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine has a GPU, as far as the driver's directory tells."""
    (tmp_path / "gpus" / "0000:00:04.0").mkdir(parents=True)
    monkeypatch.setattr(gce, "_GPU_DIRECTORY", str(tmp_path / "gpus"))


@pytest.mark.usefixtures("gpu")
def test_the_hour_of_a_gpu_is_trained_in_and_a_preemption_in_it_answered_at_once(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "run"
    with FakeMetadataServer() as server, training(directory, environ=server.environ("gce")) as loop:
        for key in ("maintenance-event", "preempted"):
            server.wait_until_waiting(key)
        loop.step()
        server.gce.maintain()
        loop.step_until(lambda: committed(directory) == [1])
        goes_on_to = loop.steps + 50
        loop.step_until(lambda: loop.steps == goes_on_to)
        server.gce.preempt()
        with pytest.raises(SystemExit) as raised:
            loop.step_until()
    assert raised.value.code == 143
    assert newest(directory).reason == "notice: gce-preempted on worker 0"
    first, last = saved_steps(directory)
    assert first + 50 <= last == newest(directory).step == loop.steps
    notices = [event for kind, _, event in events(directory) if kind == "notice"]
    assert [event["source"] for event in notices] == ["gce-maintenance", "gce-preempted"]
    assert 3500 < notices[0]["deadline_s"] <= 3600
    assert "Training goes on after a save, for 35" in caplog.text


@pytest.mark.usefixtures("gpu")
def test_with_a_grace_period_of_0_the_hour_is_not_trained_in(tmp_path: pathlib.Path) -> None:
    config = TerminationConfig(grace_period=0)
    directory = tmp_path / "run"
    with (
        FakeMetadataServer() as server,
        training(directory, environ=server.environ("gce"), config=config) as loop,
    ):
        server.wait_until_waiting("maintenance-event")
        server.gce.maintain()
        with pytest.raises(SystemExit):
            loop.step_until()
    assert loop.captures == 1


def test_the_last_save_is_committed_before_the_end_of_the_grace_period(tmp_path: pathlib.Path) -> None:
    """A commit takes longer here than what is left when the countdown minds the writing alone."""
    grace_s, commit_s = 10.0, 2.0
    config = TerminationConfig(grace_period=grace_s)
    with training(tmp_path, commit_takes_s=commit_s, config=config) as loop:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(SystemExit):
            loop.step_until()
    told = {kind: event["t"] for kind, _, event in events(tmp_path) if kind in ("notice", "commit")}
    assert told["commit"] < told["notice"] + grace_s
    first, last = saved_steps(tmp_path)
    assert first < last == loop.steps == newest(tmp_path).step


def test_a_grace_period_that_is_short_for_the_saves_of_an_earlier_life_is_not_trained_in(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    with training(tmp_path, write_takes_s=1.0) as loop:
        loop.step()
        loop.session.save_now(loop.capture, reason="test")
    with training(tmp_path, config=TerminationConfig(grace_period=3.5)) as loop:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(SystemExit):
            loop.step_until()
    assert loop.captures == 1
    assert caplog.text.count("Saving and leaving at once.") == 1


def test_that_no_save_fits_is_said_after_the_first_save_and_at_the_start_of_the_next_life(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    environ = {**LOCAL, "KUBERNETES_SERVICE_HOST": "10.0.0.1", "TF_PREEMPT_GRACE_S": "0.5"}
    said = "and the notice is 0.5 s (TF_PREEMPT_GRACE_S or TF_PREEMPT_GRACE_FILE)"
    with training(tmp_path, write_takes_s=0.6, environ=environ) as loop:
        loop.step()
        assert said not in caplog.text
        for _ in range(2):
            loop.session.save_now(loop.capture, reason="test")
        assert caplog.text.count(said) == 1
        assert "HINT: raise terminationGracePeriodSeconds" in caplog.text
    caplog.clear()
    with training(tmp_path, environ=environ) as loop:
        assert caplog.text.count(said) == 1
        loop.session.save_now(loop.capture, reason="test")
    assert caplog.text.count(said) == 1


class Told(TerminationWatcher):
    """Gives the notices that a test puts in."""

    def __init__(self) -> None:
        self.notices: list[TerminationNotice] = []

    def poll(self) -> TerminationNotice | None:
        return self.notices.pop() if self.notices else None


def test_an_earlier_deadline_in_the_countdown_counts(tmp_path: pathlib.Path) -> None:
    watcher, left_s = Told(), 8.0
    config = TerminationConfig(grace_period=3600, watchers=[watcher])
    with training(tmp_path, config=config) as loop:
        with heard("Training goes on", 1) as goes_on:
            sigterm_and_wait(goes_on)
        loop.step_until(lambda: committed(tmp_path) == [1])
        watcher.notices.append(
            TerminationNotice(source="power", reason="cut", deadline=time.monotonic() + left_s)
        )
        with pytest.raises(SystemExit):
            loop.step_until()
    told = [(kind, event["t"]) for kind, _, event in events(tmp_path) if kind in ("notice", "commit")]
    assert [kind for kind, _ in told] == ["notice", "commit", "notice", "commit", "commit"]
    assert told[-1][1] - told[2][1] < left_s
    assert len(set(saved_steps(tmp_path))) == 3
