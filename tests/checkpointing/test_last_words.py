from __future__ import annotations

import pathlib
from collections.abc import Callable

import pytest
import tensorflow as tf

from tf_preempt.checkpointing.last_words import (
    describe_loss,
    error_of_another_worker,
    is_loss,
    is_own_fault,
)
from tf_preempt.errors import CoordinationError, WorkerLostError
from tf_preempt.goodput.events import EventLog


def _raised(*steps: Callable[[], None]) -> BaseException:
    """The last of several errors, each raised while the one before was handled."""
    caught: BaseException | None = None
    for step in steps:
        try:
            if caught is None:
                step()
            else:
                try:
                    raise caught
                except BaseException:
                    step()
        except BaseException as error:
            caught = error
    assert caught is not None
    return caught


def _fail(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


LOST = tf.errors.UnavailableError(None, None, "the peer is gone")


@pytest.mark.parametrize(
    ("error", "own"),
    [
        (ValueError("a wrong shape"), True),
        (KeyboardInterrupt(), True),
        (MemoryError(), True),
        (tf.errors.InvalidArgumentError(None, None, "a wrong shape"), True),
        (_raised(_fail(KeyError("a")), _fail(ValueError("b"))), True),
        (SystemExit(42), False),
        (LOST, False),
        (tf.errors.AbortedError(None, None, ""), False),
        (CoordinationError("late"), False),
        (WorkerLostError("gone"), False),
        (_raised(_fail(LOST), _fail(RuntimeError("the user's own words"))), False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_errors_that_come_of_a_lost_worker_are_no_faults_of_ones_own(error: BaseException, own: bool) -> None:
    assert is_own_fault(error) is own


def test_an_error_of_another_worker_in_this_life_is_found(tmp_path: pathlib.Path) -> None:
    for incarnation, worker, kind in [(2, 1, "error"), (3, 0, "error"), (3, 1, "start"), (3, 2, "error")]:
        with EventLog(str(tmp_path), incarnation=incarnation, worker=worker) as log:
            log.write(kind, error=f"ValueError: on {worker} in {incarnation}")
    told = error_of_another_worker(str(tmp_path), incarnation=3, worker=0)
    assert told == "worker 2 ended with ValueError: on 2 in 3"
    assert error_of_another_worker(str(tmp_path), incarnation=2, worker=1) is None
    assert error_of_another_worker(str(tmp_path), incarnation=4, worker=0) is None


def test_event_logs_that_cannot_be_read_tell_of_no_error(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "00003-00001.jsonl").write_text('{"v": 99, "t": 1.0, "kind": "error"}\n')
    with caplog.at_level("INFO", logger="tf_preempt"):
        assert error_of_another_worker(str(tmp_path), incarnation=3, worker=0) is None
    assert "event logs cannot be read" in caplog.text


# What TensorFlow 2.21 said on the worker that was left, shortened.
UNHEALTHY = tf.errors.UnavailableError(
    None,
    None,
    "Collective ops is aborted by: Error reported from /job:worker/task:1: The following tasks are unhealthy "
    "(stopped sending heartbeats):\n/job:worker/replica:0/task:1\nThe tasks have crashed.",
)
RESET = tf.errors.UnavailableError(
    None,
    None,
    "Collective ops is aborted by: recvmsg:Connection reset by peer\nAdditional GRPC error information from "
    "remote target /job:worker/replica:0/task:0 while calling /tensorflow.WorkerService/CompleteInstance:",
)
NO_ANSWER = tf.errors.DeadlineExceededError(
    None,
    None,
    "Collective ops is aborted by: Deadline Exceeded\nAdditional GRPC error information while calling "
    "/tensorflow.CoordinationService/Heartbeat:\n:UNKNOWN:Deadline Exceeded",
)


@pytest.mark.parametrize(
    ("error", "task"),
    [
        (UNHEALTHY, "/job:worker/task:1, "),
        (RESET, "/job:worker/task:0, "),
        (NO_ANSWER, "the chief, "),
        (CoordinationError("Worker 2 did not say where it is within 90 s (round 0)"), ""),
    ],
    ids=["stopped", "killed", "chief without answer", "own words"],
)
def test_a_loss_is_described_by_task_time_and_cause(error: Exception, task: str) -> None:
    assert is_loss(error)
    words = str(error).splitlines()[0].strip()
    said = describe_loss(error, stepped_at=1796083448.25, now=1796083456.5)
    assert said == f"{task}no step was done since 2026-12-01T00:04:08Z, 8.2 s ago: {words}"
    cause = describe_loss(error, stepped_at=None, now=1796083456.5)
    assert cause == f"{task.removesuffix(', ')}: {words}".removeprefix(": ")


@pytest.mark.parametrize(
    "error",
    [
        ValueError("Collective ops"),
        tf.errors.DeadlineExceededError(None, None, "the program's own call to a server was too late"),
        tf.errors.InvalidArgumentError(None, None, "Collective ops: a wrong shape"),
        None,
    ],
    ids=repr,
)
def test_what_is_no_loss(error: object) -> None:
    assert not is_loss(error)
