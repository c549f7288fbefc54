"""Follows a training through its event log and step files, and sends the signals that are due."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from tf_preempt.goodput.step_file import Place
from tf_preempt.testing.drill.kills import Kill, aim, next_possible
from tf_preempt.testing.story import Story, describe_event, describe_log_line

__all__ = ["KillWatch", "Sent"]


class _Follower(Protocol):
    """Gives what has come since the last call."""

    def poll(self) -> Sequence[Any]: ...


@dataclasses.dataclass
class Sent:
    """A signal that was sent.

    Args:
        kill: what was planned.
        after_step: steps of the whole program that were done by then, as far as was known.
        struck: the program had to be started again: it had not finished yet.
    """

    kill: Kill
    after_step: int
    struck: bool = False


class KillWatch:
    """Follows one training.

    Args:
        kills: the plan.
        fit_steps: steps of each training in the program, by their ordinals; empty: not known, and then no
            signal can be sent.
        workers: how many.
        events: of the checkpoint directory.
        log: of ``tf-preempt run``.
        read_places: where the workers are.
        on_commit: called with the name of each checkpoint that is committed.
        story: told what happens.
        kill: sends a signal to a process.
    """

    def __init__(
        self,
        *,
        kills: Sequence[Kill],
        fit_steps: Mapping[int, int],
        workers: int,
        events: _Follower,
        log: _Follower,
        read_places: Callable[[], Mapping[int, Place]],
        on_commit: Callable[[str], object],
        story: Story,
        kill: Callable[[int, int], None] = os.kill,
    ) -> None:
        self.sent: list[Sent] = []
        """The signals so far."""
        self.commits = 0
        """How many checkpoints were committed."""
        self._kills = list(kills)
        self._fit_steps = fit_steps
        self._workers = workers
        self._events = events
        self._log = log
        self._read_places = read_places
        self._on_commit = on_commit
        self._story = story
        self._kill = kill
        self._pids: dict[int, int] = {}  # of this life, by worker
        self._gone: set[int] = set()  # processes of lives that got their signal
        self._begun_at: int | None = None  # steps done when this life began
        self._place: Mapping[int, Place] = {}
        self._finished = 0  # trainings of the program that are complete

    @property
    def unsent(self) -> int:
        """How many signals have not been sent, or came when all was over."""
        return len(self._kills) + sum(not sent.struck for sent in self.sent)

    def look(self, *, may_send: bool = True) -> bool:
        """Takes in what has happened since the last time, and sends the signal that is due.

        Args:
            may_send: False once the program has ended.

        Returns:
            Whether anything has happened.

        Raises:
            OSError: a file cannot be read.
        """
        events, lines = self._events.poll(), self._log.poll()
        for event in events:
            self._take(event)
        for line in lines:
            if (text := describe_log_line(line)) is not None:
                self._story.tell(text)
        places = self._read_places()
        has_moved, self._place = places != self._place, places
        if may_send:
            self._send_if_due()
        return bool(events or lines or has_moved)

    def _take(self, event: Mapping[str, Any]) -> None:
        if (text := describe_event(event)) is not None:
            self._story.tell(text)
        if event["kind"] == "start":
            self._begin(event["worker"], event["pid"])
        elif event["kind"] == "commit":
            self.commits += 1
            self._on_commit(event["checkpoint"])
        elif event["kind"] == "finish" and event["worker"] == 0:
            self._finished += 1

    def _begin(self, worker: int, pid: int) -> None:
        if pid in self._gone or self._pids.get(worker) == pid:
            return  # another training of the same process
        if worker in self._pids:  # its life before is over, with or without us
            self._gone.update(self._pids.values())
            self._pids = {}
        self._pids[worker] = pid
        self._begun_at = None
        if worker == 0:
            self._finished = 0
        if self.sent:
            self.sent[-1].struck = True

    def _send_if_due(self) -> None:
        position = next_possible(self._kills, committed=self.commits > 0)
        if position is None or len(self._pids) < self._workers or self._is_over():
            return
        kill = self._kills[position]
        done = self._steps_done(kill.worker)
        if done is None:
            return
        if self._begun_at is None:
            self._begun_at = done
        total = sum(self._fit_steps.values())
        if done < aim(kill, begun_at=self._begun_at, total=total, left=len(self._kills)):
            return
        pid = self._pids[kill.worker]
        try:
            self._kill(pid, kill.signal)
        except ProcessLookupError:
            return  # it has ended by itself; what follows tells how
        del self._kills[position]
        self.sent.append(Sent(kill=kill, after_step=done))
        self._gone.update(self._pids.values())
        self._pids = {}
        self._story.tell(
            f"{kill.signal.name} to worker {kill.worker} (process {pid}) after step {done}", "signal"
        )

    def _is_over(self) -> bool:
        return self._finished >= len(self._fit_steps)

    def _steps_done(self, worker: int) -> int | None:
        """Steps of the whole program; None: this life of the worker has not come to its first one."""
        place = self._place.get(worker)
        if place is None or place.pid != self._pids[worker]:
            return None
        before = sum(steps for fit, steps in self._fit_steps.items() if fit < place.fit)
        return before + place.step
