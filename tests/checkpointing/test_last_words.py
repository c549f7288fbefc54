from __future__ import annotations

import pathlib
from collections.abc import Callable

import pytest
import tensorflow as tf

from tf_preempt.checkpointing.last_words import error_of_another_worker, is_own_fault
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
