"""Workers that agree on boundaries, without threads: a schedule decides who does the next operation.

Each worker has a main thread that does synchronous steps (a step ends only when all workers have entered it,
like a collective), an agreement thread that plays the script of `Rounds`, and threads that ask for rounds.
Where saves are committed, it has one that does what `CommitThread` does.  They are generators; between any
two of their operations every other one may run (`schedules`, `interleavings`).

Driven are the real scripts of `Rounds` and the real `Decision.acts_at`.  The shells around them, `Agreement`,
`CommitThread` and `TrainingSession`, have real threads that cannot be stopped between two operations; what
they do is told here once more, and tested with threads elsewhere.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Callable, Generator
from typing import Any

from tests.checkpointing.simulated_world import AT_ONCE, Delivery, Indifferent, KeyWait, Thread, World
from tf_preempt.checkpointing import rounds
from tf_preempt.checkpointing.key_value import DEFAULT_SET_TIMEOUT_S
from tf_preempt.checkpointing.rounds import Decision, Request, Rounds
from tf_preempt.errors import CoordinationError, WorkerLostError

POLL_S = 0.5
CHIEF = 0
CHIEF_LINGERS_S = 5.0


@dataclasses.dataclass(frozen=True)
class Acted:
    """A main thread acted on a decision at `at`."""

    at: int
    decision: Decision


class Worker:
    """One simulated process.

    Args:
        world: shared by all.
        index: of this worker.
        workers: how many there are.
        steps: how many a training has.
        make: its protocol.
        report_timeout_s: of the protocol.
        commits: saves are committed, and who has ended answers no more.
    """

    def __init__(
        self,
        world: World,
        index: int,
        workers: int,
        *,
        steps: int,
        make: type[Rounds] = Rounds,
        report_timeout_s: float = 1e9,
        commits: bool = False,
    ) -> None:
        self.world, self.index, self.workers, self.steps = world, index, workers, steps
        self.commits, self.commit_timeout_s = commits, 2 * report_timeout_s
        self.rounds = make(
            worker=index,
            workers=workers,
            prefix="p",
            report_timeout_s=report_timeout_s,
            clock=lambda: world.now,
        )
        self.at, self.hold = 0, False
        self.done = False  # the main thread has come to its end, rightly
        self.is_gone = False  # the process has ended
        self.is_newcomer = False  # it was started alone; no collective takes it in
        self.lingers = True  # the chief leaves last
        self.has_asked = False
        self.decision: Decision | None = None
        self.failure: CoordinationError | None = None  # of the agreement
        self.commit_failure: CoordinationError | None = None
        self.error: CoordinationError | None = None  # with which it left
        self.acted: list[Acted] = []
        self.saved: list[int] = []  # at which boundaries
        self.committed = 0
        self.step_s = self.save_s = 0.0
        self.on_poll: Callable[[], None] = lambda: None
        self.on_saved: Callable[[], None] = lambda: None
        self.delivery: Callable[[str], Delivery] = lambda key: AT_ONCE
        self.send_away: Callable[[Thread], None] = lambda thread: None

    # ------------------------------------------------------------------------------ the main thread

    def main(self) -> Thread:
        """Trains to the end, or until a round decides to leave."""
        leaves = False
        for _ in range(self.steps):
            leaves = yield from self._boundary(finished=False)
            if leaves:
                break
            yield from self._step()
        if not leaves:
            acted = len(self.acted)
            yield from self._boundary(finished=True)
            if len(self.acted) == acted:
                yield from self._save()  # the end is saved also if nobody asked
        yield from self._see_commit()
        self.done = True

    def process(self) -> Thread:
        """Trains, and leaves with an error if there is one; then the process is gone."""
        try:
            yield from self.main()
        except CoordinationError as error:
            self.error = error
        yield None
        self.end_process()

    def end_process(self) -> None:
        """All of it is gone, and the store with the chief's."""
        self.is_gone = self.world.is_broken = True
        self.world.store_is_gone |= self.index == CHIEF

    def _step(self) -> Thread:
        entered, step, world = self.world.entered, self.at, self.world
        entered[step] = entered.get(step, 0) + (not self.is_newcomer)
        if self.is_newcomer:
            raise WorkerLostError(f"collective {step} takes in nobody who was started alone")
        yield lambda: entered[step] == self.workers or world.is_broken
        if entered[step] != self.workers:
            raise WorkerLostError(f"collective {step} failed")
        if self.step_s:
            until = world.now + self.step_s
            yield lambda: world.now >= until

    def _boundary(self, *, finished: bool) -> Generator[Any, None, bool]:
        """Does what `Agreement.boundary` does, and acts; returns whether training is left."""
        self.at += 1
        yield None
        if not self.hold:
            if self.commit_failure is not None:
                raise self.commit_failure
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
        yield from self._save()
        return decision.request.kind == "leave"

    # ---------------------------------------------------------------------------------------- commits

    def _save(self) -> Thread:
        if self.save_s:
            until = self.world.now + self.save_s
            yield lambda: self.world.now >= until
        self.saved.append(self.at)
        self.on_saved()

    def _see_commit(self) -> Thread:
        """Waits for the last commit; the chief, in whose process the keys live, leaves last."""
        if not self.commits:
            return
        yield lambda: self.committed == len(self.saved) or self.commit_failure is not None
        if self.commit_failure is not None:
            raise self.commit_failure
        if self.index != CHIEF:
            with contextlib.suppress(CoordinationError):
                yield from self._send(f"seen/{self.index}", "")
        elif self.lingers:
            with contextlib.suppress(CoordinationError):
                for worker in range(1, self.workers):
                    yield from self._receive(f"seen/{worker}", CHIEF_LINGERS_S)

    def commit_thread(self) -> Thread:
        """Hands in parts; the chief's makes a commit of them when it has all."""
        try:
            for number in itertools.count():
                yield lambda: len(self.saved) > self.committed
                yield from self._commit(number) if self.index == CHIEF else self._contribute(number)
                self.committed += 1
        except CoordinationError as error:
            self.commit_failure = error

    def _contribute(self, number: int) -> Thread:
        yield from self._send(f"part/{number}/{self.index}", str(self.saved[number]))
        yield from self._receive(f"done/{number}", 1.5 * self.commit_timeout_s)

    def _commit(self, number: int) -> Thread:
        boundaries = [self.saved[number]]
        for worker in range(1, self.workers):
            part = yield from self._receive(f"part/{number}/{worker}", self.commit_timeout_s)
            boundaries.append(int(part))
        self.world.commits[number] = boundaries
        yield from self._send(f"done/{number}", "")

    def _receive(self, key: str, timeout_s: float) -> Generator[Any, None, str]:
        wait = KeyWait(self.world, key, self.world.now + timeout_s)
        yield lambda: wait()  # not a wait that may come to nothing
        value = self.world.read(key)
        if value is None:
            raise CoordinationError(f"no {key} in time")
        return value

    # -------------------------------------------------------------------------- the background threads

    def agreement(self) -> Thread:
        try:
            yield from self._play(self.rounds.serve())
        except CoordinationError as error:
            self.failure, self.hold = error, True

    def ask(self, request: Request, when: Callable[[], bool]) -> Thread:
        yield when
        self.rounds.want(request)
        yield from self.claim()

    def claim(self) -> Thread:
        """Opens a round for what is wanted."""
        self.has_asked = True
        yield from self._play(self.rounds.claim())

    def _play(self, script: rounds.Script) -> Thread:
        result: Any = None
        error: CoordinationError | None = None
        is_free = False  # what it did last could as well be done together with what follows
        while True:
            try:
                operation = script.throw(error) if error else script.send(result)
            except StopIteration:
                return
            result, error = None, None
            if not is_free and not isinstance(operation, rounds.Await | rounds.Announce | rounds.LookAround):
                yield self._pause_before(operation)
            try:
                result = yield from self._perform(operation)
            except CoordinationError as raised:
                error = raised
            # A key that is there stays as it is.
            is_free = (isinstance(operation, rounds.Await) and result is not None) or (
                is_free and isinstance(operation, rounds.Announce | rounds.LookAround)
            )

    @staticmethod
    def _pause_before(operation: rounds.Operation) -> Indifferent | None:
        is_claim = isinstance(operation, rounds.Write) and operation.key.endswith("/claim")
        is_waited_for = isinstance(operation, rounds.Write | rounds.Decide) and not is_claim
        return Indifferent() if is_waited_for else None

    def _perform(self, operation: rounds.Operation) -> Generator[Any, None, Any]:
        match operation:
            case rounds.Await(key, at_most_s):
                self.world.messages["reads"] += 1
                wait_s = POLL_S if at_most_s is None else min(POLL_S, at_most_s)
                yield KeyWait(self.world, key, self.world.now + wait_s)
                return self.world.read(key)
            case rounds.Write(key, value):
                yield from self._send(key, value)
            case rounds.LookAround():
                self.on_poll()
            case rounds.Hold():
                self.hold = True
                if not self.is_newcomer:
                    self.world.first_hold.setdefault(len(self.acted), self.at)
            case rounds.ReadBoundary():
                return self.at
            case rounds.Decide(decision):
                self.decision = decision
                yield lambda: self.decision is None
        return None

    def _send(self, key: str, value: str) -> Thread:
        self.world.messages["writes"] += 1
        delivery = self.delivery(key)
        if delivery == AT_ONCE:
            self.world.write(key, value)
            return
        answer: list[CoordinationError | None] = []
        if delivery.after_s < math.inf:
            self.send_away(self.world.deliver(key, value, delivery.after_s, answer))
        until = self.world.now + DEFAULT_SET_TIMEOUT_S
        yield lambda: bool(answer and delivery.is_answered) or self.world.now >= until
        if not (answer and delivery.is_answered):
            raise CoordinationError(f"no answer for {key}")
        if answer[0] is not None:
            raise answer[0]
