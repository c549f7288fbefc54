"""Errors that end a worker, told to the others: they only see that it is gone, and a restart would not help.

They are told through the event log in the checkpoint directory, because the coordination service may be gone
together with the worker.
"""

from __future__ import annotations

import datetime
import logging
import re

import tensorflow as tf

from tf_preempt.checkpointing.leaving import gist
from tf_preempt.errors import CoordinationError
from tf_preempt.goodput.events import read_events

__all__ = ["describe_loss", "error_of_another_worker", "is_loss", "is_own_fault"]

_log = logging.getLogger("tf_preempt")

KIND = "error"
"""The event that tells of an error."""
# What a worker gets that is well itself, when another one is gone.
_CAUSED_BY_OTHERS = (
    CoordinationError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.UnavailableError,
)
_LOSS = (CoordinationError, tf.errors.AbortedError, tf.errors.UnavailableError)
# TensorFlow's name of a task, in an error that another one has caused.
_TASK = re.compile(r"/job:(\w+)/(?:replica:\d+/)?task:(\d+)")
# How a program's own calls that were too late are told from those to a chief that is stopped or cut off.
_OF_THE_CLUSTER = re.compile(r"Collective ops|CoordinationService")
_MOST_LINKS = 20


def is_own_fault(error: object) -> bool:
    """Says whether an error that ends a training is this worker's own, which would come back."""
    for _ in range(_MOST_LINKS):
        if not isinstance(error, BaseException):
            return True
        if isinstance(error, (SystemExit, GeneratorExit, *_CAUSED_BY_OTHERS)):
            return False
        if error.__cause__ is None and error.__context__ is None:
            return True
        error = error.__cause__ or error.__context__
    return True


def is_loss(error: object) -> bool:
    """Says whether an error that one of several workers meets means that another one is gone."""
    if isinstance(error, tf.errors.DeadlineExceededError):
        return _OF_THE_CLUSTER.search(str(error)) is not None
    return isinstance(error, _LOSS)


def describe_loss(error: BaseException, *, stepped_at: float | None, now: float) -> str:
    """Which worker is lost, since when, and how that was noticed.

    Args:
        error: for which `is_loss` holds.
        stepped_at: when the last step that all workers did was over, in seconds since the epoch; None: none.
        now: likewise.
    """
    task = _TASK.search(str(error))
    known = []
    if task is not None:
        known.append(f"/job:{task[1]}/task:{task[2]}")
    elif "CoordinationService" in str(error):
        known.append("the chief")  # in whose process that service is
    if stepped_at is not None:
        since = datetime.datetime.fromtimestamp(stepped_at, datetime.timezone.utc)
        known.append(f"no step was done since {since:%Y-%m-%dT%H:%M:%SZ}, {now - stepped_at:.1f} s ago")
    return ": ".join(filter(None, [", ".join(known), gist(error)]))


def error_of_another_worker(directory: str, *, incarnation: int, worker: int) -> str | None:
    """What another worker has ended with in this life of the program; None if nobody told of an error.

    Args:
        directory: the checkpoint directory.
        incarnation: this life.
        worker: the one that asks.
    """
    try:
        events = read_events(directory, incarnation=incarnation)
    except Exception as error:  # noqa: BLE001 - a URL's errors are TensorFlow's; leaving must go on
        _log.info("The other workers' event logs cannot be read: %s", error)
        return None
    for event in events:
        if event["kind"] == KIND and event.get("worker") != worker:
            return f"worker {event.get('worker')} ended with {event.get('error')}"
    return None
