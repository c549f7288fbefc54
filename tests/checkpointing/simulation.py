"""Workers that agree on boundaries, without threads: a scheduler decides who does the next operation.

Each worker has a main thread that does synchronous steps (a step ends only when all workers have entered it,
like a collective), an agreement thread that plays the script of `Rounds`, and threads that ask for rounds.
They are generators; between any two of their operations every other one may run.  A run either ends or
raises what went wrong.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Generator, Iterator
from typing import Any

from tf_preempt.checkpointing import rounds
from tf_preempt.checkpointing.key_value import KeyExistsError
from tf_preempt.checkpointing.rounds import Decision, Request, RequestKind, Rounds
from tf_preempt.errors import CoordinationError

POLL_S = 0.5

# A thread yields what it waits for (None: nothing) and is sent whether that came; False is a poll's time-out.
Thread = Generator["Callable[[], bool] | None", bool, None]


class DeadlockError(Exception):
    """Nobody can go on, and not everybody is done."""


@dataclasses.dataclass(frozen=True)
class Acted:
    """A main thread acted on a decision at `at`."""

    at: int
    decision: Decision


class World:
    """What all workers share: the store, the clock, and who has entered which step."""

    def __init__(self) -> None:
        self.keys: dict[str, str] = {}
        self.now = 0.0
        self.entered: dict[int, int] = {}
        # Where the first worker was that was held in a round, by the round's number.
        self.first_hold: dict[int, int] = {}

    def write(self, key: str, value: str) -> None:
        if key in self.keys:
            raise KeyExistsError(key)
        self.keys[key] = value


class Worker:
    """One simulated process."""

    def __init__(
        self,
        world: World,
        index: int,
        workers: int,
        *,
        steps: int,
        make: type[Rounds],
        report_timeout_s: float,
    ) -> None:
        self.world, self.index, self.workers, self.steps = world, index, workers, steps
        self.rounds = make(
            worker=index,
            workers=workers,
            prefix="p",
            report_timeout_s=report_timeout_s,
            clock=lambda: world.now,
        )
        self.at, self.hold, self.done = 0, False, False
        self.decision: Decision | None = None
        self.failure: CoordinationError | None = None
        self.acted: list[Acted] = []
        self.fails_at_write: str | None = None

    # ------------------------------------------------------------------------------ the main thread

    def main(self) -> Thread:
        for _ in range(self.steps):
            if (yield from self._boundary(finished=False)):
                self.done = True
                return
            yield from self._step()
        yield from self._boundary(finished=True)
        self.done = True

    def _step(self) -> Thread:
        entered, step = self.world.entered, self.at
        entered[step] = entered.get(step, 0) + 1
        yield lambda: entered[step] == self.workers

    def _boundary(self, *, finished: bool) -> Generator[Any, bool, bool]:
        """Does what `Agreement.boundary` does; returns whether training is left."""
        self.at += 1
        yield None
        if not self.hold:
            return False
        yield lambda: self.decision is not None or self.failure is not None
        if self.failure is not None:
            raise self.failure
        decision = self.decision
        assert decision is not None
        if not decision.acts_at(self.at, finished=finished):
            return False
        self.acted.append(Acted(self.at, decision))
        self.decision, self.hold = None, False
        self.rounds.acted()
        return decision.request.kind == "leave"

    # -------------------------------------------------------------------------- the background threads

    def agreement(self) -> Thread:
        try:
            yield from self._play(self.rounds.serve())
        except CoordinationError as error:
            self.failure, self.hold = error, True

    def ask(self, request: Request, when: Callable[[], bool]) -> Thread:
        yield when
        self.rounds.want(request)
        yield from self._play(self.rounds.claim())

    def _play(self, script: rounds.Script) -> Thread:
        result: Any = None
        error: CoordinationError | None = None
        while True:
            try:
                operation = script.throw(error) if error else script.send(result)
            except StopIteration:
                return
            result, error = None, None
            yield None
            try:
                result = yield from self._perform(operation)
            except CoordinationError as raised:
                error = raised

    def _perform(self, operation: rounds.Operation) -> Generator[Any, bool, Any]:
        keys = self.world.keys
        match operation:
            case rounds.Await(key):
                came = yield lambda: key in keys
                return keys[key] if came else None
            case rounds.Write(key, value):
                if self.fails_at_write and self.fails_at_write in key:
                    raise CoordinationError(f"no answer for {key}")
                self.world.write(key, value)
            case rounds.Hold():
                self.hold = True
                self.world.first_hold.setdefault(len(self.acted), self.at)
            case rounds.ReadBoundary():
                return self.at
            case rounds.Decide(decision):
                self.decision = decision
                while self.decision is not None:
                    yield lambda: self.decision is None
        return None


class Schedule:
    """Runs threads one operation at a time, in an order drawn from `seed`.

    In half of the schedules some threads are slow: they get a fiftieth of the others' turns.
    """

    def __init__(self, world: World, seed: int, *, impatience: float = 0.02) -> None:
        self._world = world
        self._random = random.Random(seed)
        self._impatience = impatience  # chance that a poll ends before the key is there
        self._threads: list[_Entry] = []

    def add(self, thread: Thread, *, polls: bool = False) -> None:
        """Adds a thread; one that `polls` looks up from waiting for keys."""
        is_slow = self._random.random() < 0.15 and self._random.random() < 0.5
        self._threads.append(_Entry(thread=thread, polls=polls, turns=0.02 if is_slow else 1.0))

    def run(self, is_over: Callable[[], bool], *, at_most: int = 300_000) -> None:
        """Runs until `is_over`.

        Raises:
            DeadlockError: nobody can go on before that.
        """
        draw, threads = self._random.random, self._threads
        in_vain = quiet_rounds = 0
        for _ in range(at_most):
            if is_over():
                return
            if in_vain > 20 * len(threads):
                self._let_polls_time_out()
                in_vain, quiet_rounds = 0, quiet_rounds + 1
                if quiet_rounds > 50:
                    raise DeadlockError("nobody can go on")
                continue
            if not threads:
                raise DeadlockError("all threads have ended")
            entry = threads[int(draw() * len(threads))]
            ready = entry.waits_for is None or entry.waits_for()
            if not (ready or (entry.polls and draw() < self._impatience)):
                in_vain += 1
                continue
            if draw() < entry.turns:
                in_vain = 0
                quiet_rounds = 0 if ready else quiet_rounds
                self._advance(entry, came=ready)
        raise DeadlockError(f"not over after {at_most} operations")

    def run_in_turns(self, is_over: Callable[[], bool], *, at_most: int = 10_000) -> None:
        """Runs every thread as far as it comes, one after the other: quick also with very many.

        Raises:
            DeadlockError: it is not over after `at_most` turns of everybody.
        """
        for _ in range(at_most):
            if is_over():
                return
            self._random.shuffle(self._threads)
            for entry in list(self._threads):
                while not entry.has_ended and (entry.waits_for is None or entry.waits_for()):
                    self._advance(entry, came=True)
        raise DeadlockError(f"not over after {at_most} turns")

    def _let_polls_time_out(self) -> None:
        self._world.now += POLL_S
        for entry in list(self._threads):
            if entry.polls and entry.waits_for is not None and not entry.waits_for():
                self._advance(entry, came=False)

    def _advance(self, entry: _Entry, *, came: bool) -> None:
        try:
            entry.waits_for = entry.thread.send(came if entry.is_started else None)  # type: ignore[arg-type]
            entry.is_started = True
        except StopIteration:
            entry.has_ended = True
            self._threads.remove(entry)


@dataclasses.dataclass(eq=False)
class _Entry:
    """A thread, what it waits for, and how often it gets its turn."""

    thread: Thread
    polls: bool
    turns: float
    waits_for: Callable[[], bool] | None = None
    is_started: bool = False
    has_ended: bool = False


def boundary_reached(worker: Worker, at: int) -> Callable[[], bool]:
    return lambda: worker.at >= at or worker.done


def workers_of(
    world: World, count: int, *, steps: int, make: type[Rounds] = Rounds, report_timeout_s: float = 1e9
) -> list[Worker]:
    return [
        Worker(world, index, count, steps=steps, make=make, report_timeout_s=report_timeout_s)
        for index in range(count)
    ]


def start(world: World, workers: list[Worker], seed: int) -> Schedule:
    """A schedule with the main and the agreement thread of each worker."""
    schedule = Schedule(world, seed)
    for worker in workers:
        schedule.add(worker.main())
        schedule.add(worker.agreement(), polls=True)
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
