"""All interleavings of simulated workers: every choice of who does the next operation is followed.

A generator cannot be copied, so a state is reached by making everything anew and repeating the choices that
led there.  A state that has been seen is not gone on from again.  What is compared of states is all that
decides what can come: the world, each worker, and where each generator is, with its local variables.

What makes no difference when it is done (`Indifferent`) is done at once.  A wait for a key ends without it
only where that changes something: for the claim of a round, after the worker has asked for one itself;
otherwise the thread would just wait again.  Time stands still.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable
from typing import Any

from tests.checkpointing.schedules import DeadlockError
from tests.checkpointing.simulated_world import Indifferent, KeyWait, Thread, World
from tests.checkpointing.simulation import Acted, Worker
from tf_preempt.checkpointing import rounds
from tf_preempt.checkpointing.rounds import Decision, Request

_PLAIN = (
    int,
    str,
    float,
    type(None),
    Request,
    Decision,
    Acted,
    rounds._Message,
    *typing.get_args(rounds.Operation),
)
_WORKER = ("at", "hold", "done", "decision", "has_asked", "is_gone", "committed")

# Variables of generators that are read again only after they were written.
_STALE = {"_play": {"result", "error", "is_free"}, "serve": {"claimed"}}

Choices = tuple[int, ...]


class Scene:
    """A world with its workers, before anybody has done anything.

    Args:
        world: shared by all.
        workers: all of it.
    """

    def __init__(self, world: World, workers: list[Worker]) -> None:
        self.world, self.workers = world, workers
        self._threads: list[_Entry] = []

    def add_main(self, worker: Worker) -> None:
        self._threads.append(_Entry(worker.main(), worker))

    def add_background(self, thread: Thread, worker: Worker) -> None:
        """Adds a thread that begins with waiting, and has done so."""
        self._threads.append(_Entry(thread, worker, waits_for=next(thread)))

    def options(self) -> list[int]:
        """The threads that can do something; one of them, if it makes no difference when it does it."""
        able = [number for number, entry in enumerate(self._threads) if entry.can_go_on()]
        return next(([number] for number in able if self._threads[number].is_indifferent), able)

    def is_over(self) -> bool:
        """Says whether all main threads have come to their ends."""
        return all(worker.done for worker in self.workers)

    def advance(self, number: int) -> None:
        """Lets one thread do one operation."""
        entry = self._threads[number]
        try:
            entry.waits_for = next(entry.thread)
        except StopIteration:
            entry.has_ended = True

    def state(self) -> int:
        """The same for two scenes that can go on in the same ways only."""
        world = self.world
        return hash(
            (
                frozenset(world.keys.items()),
                tuple(world.entered.items()),
                tuple(world.first_hold.items()),
                tuple(self._of(worker) for worker in self.workers),
                tuple(entry.has_ended or _place(entry.thread) for entry in self._threads),
            )
        )

    @staticmethod
    def _of(worker: Worker) -> tuple[Any, ...]:
        return (
            *(getattr(worker, name) for name in _WORKER),
            tuple(worker.acted),
            tuple(worker.saved),
            tuple(_plain(vars(worker.rounds))),
            str(worker.failure or worker.commit_failure or worker.error),
        )


@dataclasses.dataclass
class _Entry:
    thread: Thread
    worker: Worker
    waits_for: Callable[[], bool] | None = None
    has_ended: bool = False

    def can_go_on(self) -> bool:
        if self.has_ended or self.worker.is_gone:
            return False
        if self.waits_for is None or self.waits_for():
            return True
        wait = self.waits_for
        return isinstance(wait, KeyWait) and self.worker.has_asked and wait.is_for_claim

    @property
    def is_indifferent(self) -> bool:
        wait = self.waits_for
        if isinstance(wait, KeyWait):
            return wait.is_there and not wait.is_for_claim
        return isinstance(wait, Indifferent)


def _place(thread: Any) -> tuple[Any, ...]:
    """Where a generator is, and those that it delegates to."""
    if thread.gi_frame is None:
        return ()
    stale = _STALE.get(thread.gi_code.co_name, ())
    variables = {name: value for name, value in thread.gi_frame.f_locals.items() if name not in stale}
    delegate = thread.gi_yieldfrom
    return (
        thread.gi_code.co_name,
        thread.gi_frame.f_lasti,
        tuple(_plain(variables)),
        tuple(_place(value) for value in variables.values() if isinstance(value, types.GeneratorType)),
        _place(delegate) if isinstance(delegate, types.GeneratorType) else None,
    )


def _plain(variables: Any) -> list[Any]:
    """Values by which two states may differ; the world and the workers are compared by themselves."""
    plain: list[Any] = []
    for name, value in variables.items():
        if isinstance(value, _PLAIN):
            plain.append((name, value))
        elif isinstance(value, list):
            plain.append((name, tuple(value)))
        elif isinstance(value, BaseException):
            plain.append((name, str(value)))
    return plain


@dataclasses.dataclass
class Explored:
    """What there is.

    Args:
        states: how many were seen.
        deepest: most operations from the beginning to a state when it was seen first.
        outcomes: what `check` said of the ends.
    """

    states: int = 0
    deepest: int = 0
    outcomes: set[Any] = dataclasses.field(default_factory=set)


def explore(make: Callable[[], Scene], check: Callable[[Scene], Any]) -> Explored:
    """Follows all choices.

    Args:
        make: gives the same scene each time.
        check: looks at a scene that is over; what it returns is collected.

    Raises:
        DeadlockError: from some state no end can be reached.
    """
    successors: dict[int, set[int]] = {}
    found = Explored()
    ends: set[int] = set()
    waiting: list[tuple[int | None, Choices]] = [(None, ())]
    while waiting:
        before, choices = waiting.pop()
        scene = make()
        for choice in choices:
            scene.advance(choice)
        while True:
            state = scene.state()
            if before is not None:
                successors[before].add(state)
            if state in successors:
                break
            successors[state] = set()
            found.deepest = max(found.deepest, len(choices))
            if scene.is_over():
                ends.add(state)
                found.outcomes.add(check(scene))
                break
            options = scene.options()
            if not options:
                raise DeadlockError(f"nobody can go on after {choices}")
            waiting += [(state, (*choices, option)) for option in options[1:]]
            scene.advance(options[0])
            before, choices = state, (*choices, options[0])
    found.states = len(successors)
    _see_that_all_end(successors, ends)
    return found


def _see_that_all_end(successors: dict[int, set[int]], ends: set[int]) -> None:
    predecessors: dict[int, list[int]] = {state: [] for state in successors}
    for state, following in successors.items():
        for one in following:
            predecessors[one].append(state)
    can_end, waiting = set(ends), list(ends)
    while waiting:
        for state in predecessors[waiting.pop()]:
            if state not in can_end:
                can_end.add(state)
                waiting.append(state)
    if len(can_end) < len(successors):
        raise DeadlockError(f"no end can be reached from {len(successors) - len(can_end)} states")
