"""Ctrl-C in a training: saved where that is asked for, and no restart is wanted; real signals, real saves."""

from __future__ import annotations

import os
import pathlib
import signal
import sys
import threading
from typing import Any

import pytest

from tests.checkpointing.conftest import PREEMPTED
from tests.checkpointing.test_committer import committed
from tests.checkpointing.test_session import SLURM, events, heard, newest, training
from tf_preempt import errors
from tf_preempt.checkpointing.saving import Snapshot
from tf_preempt.termination.config import TerminationConfig

SAVES = TerminationConfig(save_on_interrupt=True)
LOCAL = {"TF_PREEMPT_CLOUD": "none"}


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_saves_and_ends_the_program_and_the_next_life_goes_on(tmp_path: pathlib.Path) -> None:
    with training(tmp_path, config=SAVES, environ=LOCAL) as loop:
        loop.step()
        press_ctrl_c()
        with pytest.raises(SystemExit) as raised:
            loop.step_until()
    assert raised.value.code == 130
    assert newest(tmp_path).step == loop.steps
    assert [event["code"] for kind, _, event in events(tmp_path) if kind == "exit"] == [130]
    with training(tmp_path, config=SAVES, environ=LOCAL) as again:
        assert again.steps == loop.steps
        press_ctrl_c()
        with pytest.raises(SystemExit):
            again.step_until()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_nobody_is_asked_for_a_restart_and_no_grace_period_is_trained_in(
    tmp_path: pathlib.Path, slurm: Any
) -> None:
    config = TerminationConfig(
        save_on_interrupt=True, grace_period=3600, exit_fn=lambda: sys.exit("exit_fn was called")
    )
    with training(tmp_path, config=config, environ=slurm(PREEMPTED)) as loop:
        loop.step()
        press_ctrl_c()
        with pytest.raises(SystemExit) as raised:
            loop.step_until()
        assert loop.session._monitor is not None
        loop.session._monitor.close()
    assert raised.value.code == 130
    assert loop.captures == 1
    assert "requeue 7" not in slurm.asked()


def test_where_an_exception_is_asked_for_it_is_raised(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with training(tmp_path, config=SAVES, environ=LOCAL, raise_on_preemption=True) as loop:
        press_ctrl_c()
        with pytest.raises(errors.Preempted, match=r"^Interrupted \(notice: SIGINT on worker 0\)") as raised:
            loop.step_until()
    assert raised.value.exit_code == 130
    assert committed(tmp_path) == [1]


def test_a_second_ctrl_c_does_not_wait_for_the_save(tmp_path: pathlib.Path) -> None:
    with training(tmp_path, config=SAVES, environ=LOCAL) as loop:
        loop.step()

        def capture() -> Snapshot:
            press_ctrl_c()
            threading.Event().wait(30)
            pytest.fail("the second Ctrl-C was not heard")

        loop.capture = capture  # type: ignore[method-assign]
        press_ctrl_c()
        with pytest.raises(KeyboardInterrupt):
            loop.step_until()
    assert committed(tmp_path) == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("environ", [LOCAL, SLURM], ids=["local", "slurm"])
def test_where_nobody_asks_for_it_ctrl_c_interrupts_at_once(
    tmp_path: pathlib.Path, environ: dict[str, str]
) -> None:
    with training(tmp_path, environ=environ) as loop:
        loop.step()
        with pytest.raises(KeyboardInterrupt):
            press_ctrl_c()
    assert committed(tmp_path) == []


def test_a_sigterm_before_it_is_a_notice_as_ever(tmp_path: pathlib.Path) -> None:
    with training(tmp_path, config=SAVES, environ=LOCAL) as loop, heard("Notice on worker 0", 2) as two:
        with heard("Notice on worker 0", 1) as one:
            os.kill(os.getpid(), signal.SIGTERM)
            assert one.wait(30)
        press_ctrl_c()
        assert two.wait(30)
        with pytest.raises(SystemExit) as raised:
            loop.step_until()
    assert raised.value.code == 42
    assert committed(tmp_path) == [1]
