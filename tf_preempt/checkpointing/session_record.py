"""What a session writes of itself: its event log, the supervisor's status file, and a drill's step file."""

from __future__ import annotations

import dataclasses
import logging
import sys
import time
from collections.abc import Mapping
from typing import Any

from tf_preempt.checkpointing.last_words import KIND as ERROR
from tf_preempt.checkpointing.last_words import describe_loss, error_of_another_worker, is_own_fault
from tf_preempt.checkpointing.leaving import gist
from tf_preempt.checkpointing.manifest import Manifest
from tf_preempt.checkpointing.startup import Cluster
from tf_preempt.goodput.events import EventLog
from tf_preempt.goodput.status_file import Status, StatusFile
from tf_preempt.goodput.step_file import StepFile

_log = logging.getLogger("tf_preempt")


class SessionRecord:
    """The files in which others read how a training goes.

    Args:
        directory: of the checkpoints, and of the event log.
        cluster: who takes part.
        fit: ordinal of the training in the program.
        environ: the environment.

    Environment:
        TF_PREEMPT_STATUS_FILE, TF_PREEMPT_STEP_FILE: see `StatusFile` and `StepFile`.
    """

    def __init__(self, directory: str, cluster: Cluster, *, fit: int, environ: Mapping[str, str]) -> None:
        self._directory = directory
        self._cluster = cluster
        self._events: EventLog | None = None
        self._status_file = StatusFile.from_environ(environ) if cluster.is_chief else None
        self._status = Status(incarnation=0)
        self._step_file = StepFile.from_environ(environ, worker=cluster.worker, fit=fit)
        # A training may run where an error is just being handled, which is not its own.
        self._error_before = sys.exc_info()[1]
        self._stepped_at: float | None = None

    @property
    def incarnation(self) -> int:
        """Number of this life of the program."""
        return self._status.incarnation

    @property
    def has_begun(self) -> bool:
        """Says whether this life has a number, and an event log."""
        return self._events is not None

    def begin(self, incarnation: int) -> None:
        """Opens the event log of this life.

        Args:
            incarnation: its number.
        """
        self._status = Status(incarnation=incarnation)
        self._events = EventLog(self._directory, incarnation=incarnation, worker=self._cluster.worker)

    def event(self, kind: str, **fields: Any) -> None:
        """Writes an event, if the log is open."""
        if self._events is not None:
            self._events.write(kind, **fields)

    def status(self, **changes: Any) -> None:
        """Writes the supervisor's status file; one that cannot be written is warned of.

        Args:
            **changes: fields of `Status`.
        """
        self._status = dataclasses.replace(self._status, **changes)
        if self._status_file is not None:
            try:
                self._status_file.write(self._status)
            except OSError as error:
                _log.warning("The supervisor's status file could not be written: %s", error)

    def step(self, step: int) -> None:
        """Notes that the step before this one is over, and tells a drill which one begins."""
        self._stepped_at = time.time()
        if self._step_file is not None:
            self._step_file.write(step)

    def restored(self, manifest: Manifest, seconds: float) -> None:
        """Notes what the training goes on from.

        Args:
            manifest: of the checkpoint.
            seconds: how long reading it took.
        """
        self.status(restored_step=manifest.step, reason="restored")
        self.event(
            "restore",
            step=manifest.step,
            checkpoint=manifest.prefix,
            seconds=round(seconds, 4),
            epoch=manifest.resume.get("epoch"),
            phase=manifest.resume.get("phase"),
            step_in_epoch=manifest.resume.get("step"),
        )

    def committed(self, manifest: Manifest) -> None:
        """Notes a commit."""
        size = sum(record.bytes for record in manifest.files)
        self.status(committed_step=manifest.step, commits=self._status.commits + 1, reason=manifest.reason)
        self.event(
            "commit", checkpoint=manifest.prefix, step=manifest.step, bytes=size, seconds=manifest.seconds
        )

    def describe_loss(self, error: BaseException) -> str:
        """Which worker is lost, since when, and how that was noticed."""
        return describe_loss(error, stepped_at=self._stepped_at, now=time.time())

    def error_of_another_worker(self) -> str | None:
        """What another worker has said of the error of its own that ended it; None if none has."""
        if self._events is None:
            return None  # lost at the start, before this life had a number
        return error_of_another_worker(
            self._directory, incarnation=self.incarnation, worker=self._cluster.worker
        )

    def tell_of_error(self, error: BaseException | None) -> None:
        """Tells the other workers, which will miss this one, what has ended its training."""
        if error is not None and error is not self._error_before and is_own_fault(error):
            self.event(ERROR, error=f"{type(error).__name__}: {gist(error)}")

    def close(self) -> None:
        """Closes the files."""
        if self._events is not None:
            self._events.close()
        if self._step_file is not None:
            self._step_file.close()
