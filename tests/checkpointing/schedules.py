"""Random schedules of simulated workers, and fair ones."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator

from tests.checkpointing.simulated_world import KeyWait, Thread, World
from tests.checkpointing.simulation import POLL_S, Worker
from tf_preempt.checkpointing.rounds import Request, RequestKind


class DeadlockError(Exception):
    """Nobody can go on, and not everybody is done."""


class Schedule:
    """Runs threads one operation at a time, in an order drawn from `seed`.

    In half of the schedules some threads are slow: they get a fiftieth of the others' turns.  A wait for a
    key may end before it is there.
    """

    def __init__(self, world: World, seed: int) -> None:
        self.random = random.Random(seed)
        self._world = world
        self._impatience = 0.02
        self._threads: list[_Entry] = []

    def add(self, thread: Thread, *, of: Worker | None = None) -> None:
        """Adds a thread, which ends with the process `of`."""
        is_slow = self.random.random() < 0.15 and self.random.random() < 0.5
        self._threads.append(_Entry(thread=thread, owner=of, turns=0.02 if is_slow else 1.0))

    def add_process(self, worker: Worker) -> None:
        """Adds all threads of a process; they end with it."""
        worker.send_away = self.add
        self.add(worker.process(), of=worker)
        self.add(worker.agreement(), of=worker)
        self.add(worker.commit_thread(), of=worker)

    def run(self, is_over: Callable[[], bool], *, at_most: int = 300_000, limit_s: float = 30.0) -> None:
        """Runs until `is_over`; time passes when nobody can go on.

        Raises:
            DeadlockError: it is not over after `at_most` operations, or at the time `limit_s`.
        """
        for _ in range(at_most):
            if is_over():
                return
            entry = self._pick()
            if entry is not None:
                self._advance(entry)
            elif self._world.now < limit_s:
                self._world.now += POLL_S
            else:
                raise DeadlockError(f"nobody can go on at {self._world.now:g} s")
        raise DeadlockError(f"not over after {at_most} operations")

    def _pick(self) -> _Entry | None:
        draw, threads = self.random.random, self._threads
        for _ in range(6):
            entry = threads[int(draw() * len(threads))]
            if entry.turns < 1.0 and draw() > entry.turns:
                continue
            if entry.can_go_on() or (draw() < self._impatience and isinstance(entry.waits_for, KeyWait)):
                return entry
        ready = [entry for entry in threads if entry.can_go_on()]
        quick = [entry for entry in ready if entry.turns == 1.0]
        return self.random.choice(quick or ready) if ready else None

    def turn(self) -> bool:
        """Runs every thread as far as it comes, one after the other; says whether anybody could go on."""
        self.random.shuffle(self._threads)
        could = False
        for entry in list(self._threads):
            while not entry.has_ended and entry.can_go_on():
                self._advance(entry)
                could = True
        return could

    def run_in_turns(self, is_over: Callable[[], bool], *, tick_s: float, limit_s: float) -> None:
        """Runs until `is_over`, fairly and quickly: time passes, in ticks, only when nobody can go on.

        Raises:
            DeadlockError: it is not over at the time `limit_s`.
        """
        while not is_over():
            if not self.turn():
                self._world.now += tick_s
            if self._world.now > limit_s:
                raise DeadlockError(f"not over at {limit_s:g} s")

    def _advance(self, entry: _Entry) -> None:
        try:
            if entry.owner is not None and entry.owner.is_gone:
                raise StopIteration
            entry.waits_for = next(entry.thread)
        except StopIteration:
            entry.has_ended = True
            self._threads.remove(entry)


@dataclasses.dataclass(eq=False)
class _Entry:
    """A thread, what it waits for, and how often it gets its turn."""

    thread: Thread
    owner: Worker | None
    turns: float
    waits_for: Callable[[], bool] | None = None
    has_ended: bool = False

    def can_go_on(self) -> bool:
        """Says whether it has something to do; a thread of a process that is gone has to end."""
        waits_for = self.waits_for
        return waits_for is None or waits_for() or (self.owner is not None and self.owner.is_gone)


def boundary_reached(worker: Worker, at: int) -> Callable[[], bool]:
    return lambda: worker.at >= at or worker.done


def start(world: World, workers: list[Worker], seed: int) -> Schedule:
    """A schedule with the main and the agreement thread of each worker."""
    schedule = Schedule(world, seed)
    for worker in workers:
        schedule.add(worker.main())
        schedule.add(worker.agreement())
    return schedule


def random_requests(
    draw: random.Random, workers: list[Worker], steps: int
) -> Iterator[tuple[Worker, Request, int]]:
    """One to four requests of any kind, from any worker, at any boundary, often the first or last."""
    kinds: list[RequestKind] = ["leave", "notice", "save", "save"]
    for number in range(draw.randint(1, 4)):
        worker, kind = draw.choice(workers), draw.choice(kinds)
        at = draw.choice([0, 1, steps - 1, steps, steps + 1, draw.randint(0, steps + 1)])
        yield worker, Request(kind=kind, worker=worker.index, reason=f"{kind} {number}"), at
