"""Watches a training, tells of it, and sends the planned signals when they are due."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tf_preempt.cli.demo.interruptions import Interruption, is_due
from tf_preempt.cli.demo.progress import Position, Record
from tf_preempt.errors import LaunchError
from tf_preempt.testing.story import Story, describe_event, describe_log_line

__all__ = ["Sent", "Watch"]


class _Follower(Protocol):
    """Gives what has come since the last call."""

    def poll(self) -> Sequence[Any]: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sent:
    """A signal that was sent.

    Args:
        interruption: as it was planned.
        incarnation: of the training, to which it went.
        done: the last batch that was known to be finished.
        t: when, in seconds since 1970.
    """

    interruption: Interruption
    incarnation: int
    done: Position
    t: float


class Watch:
    """Follows one training.

    Args:
        plan: interruptions, in the order of their places.
        progress: what the workers do.
        events: of the checkpoint directory.
        log: of ``tf-preempt run``.
        story: told what happens.
        clock: seconds since 1970.
        kill: sends a signal to a process.
    """

    def __init__(
        self,
        *,
        plan: Sequence[Interruption],
        progress: _Follower,
        events: _Follower,
        log: _Follower,
        story: Story,
        clock: Callable[[], float] = time.time,
        kill: Callable[[int, int], None] = os.kill,
    ) -> None:
        self.records: list[Record] = []
        """All batches so far."""
        self.incarnations: dict[int, int] = {}
        """The incarnation of each process id."""
        self.sent: list[Sent] = []
        """The interruptions so far."""
        self._plan = list(plan)
        self._progress = progress
        self._events = events
        self._log = log
        self._story = story
        self._clock = clock
        self._kill = kill
        self._pids: dict[int, dict[int, int]] = {}  # incarnation -> worker -> process
        # Up to here all had been run when the last signal took effect; None: nobody is on the way back.
        self._frontier: Position | None = None

    @property
    def left(self) -> int:
        """How many interruptions have not been made."""
        return len(self._plan) - len(self.sent)

    def look(self, *, may_interrupt: bool = True) -> bool:
        """Takes in what has happened since the last time, and sends the signal that is due.

        Args:
            may_interrupt: False once the workers have gone.

        Returns:
            Whether anything has happened.

        Raises:
            LaunchError: the worker to be interrupted has gone, or one trains without having begun.
            OSError: a file cannot be read.
        """
        # In this order: a process is in the events before it notes its first batch.
        records = self._progress.poll()
        events = self._events.poll()
        for event in events:
            if event["kind"] == "start":
                self.incarnations[event["pid"]] = event["incarnation"]
                self._pids.setdefault(event["incarnation"], {})[event["worker"]] = event["pid"]
            self._tell(describe_event(event))
        for record in records:
            self._take(record)
        if records and may_interrupt:
            self._interrupt_if_due(records[-1])
        lines = self._log.poll()
        for line in lines:
            self._tell(describe_log_line(line))
        return bool(records or events or lines)

    def _tell(self, text: str | None) -> None:
        if text is not None:
            self._story.tell(text)

    def _take(self, record: Record) -> None:
        self.records.append(record)
        if self._frontier is None:
            return
        last = self.sent[-1]
        if self._incarnation_of(record) <= last.incarnation:
            self._frontier = max(self._frontier, record.position)
        elif record.position > self._frontier:
            self._frontier = None
            self._story.tell(f"further than before, {record.t - last.t:.1f} s after the signal", "good")

    def _interrupt_if_due(self, record: Record) -> None:
        if not self.left or self._frontier is not None:
            return
        interruption, incarnation = self._plan[len(self.sent)], self._incarnation_of(record)
        if not is_due(interruption, record.position):
            return
        pid = self._pids[incarnation][interruption.worker]
        sent = Sent(interruption=interruption, incarnation=incarnation, done=record.position, t=self._clock())
        try:
            self._kill(pid, interruption.signal)
        except ProcessLookupError as error:
            raise LaunchError(f"worker {interruption.worker} (process {pid}) has gone by itself.") from error
        self.sent.append(sent)
        self._frontier = record.position
        what = f"{interruption.signal.name} to worker {interruption.worker} (process {pid})"
        self._story.tell(f"{what} after {record.position}", "signal")

    def _incarnation_of(self, record: Record) -> int:
        if record.pid not in self.incarnations:
            raise LaunchError(
                f"worker {record.worker} (process {record.pid}) trains, but no event says that it has begun.",
                hint="is the disk full?",
            )
        return self.incarnations[record.pid]
