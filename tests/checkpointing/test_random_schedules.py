"""The protocol of agreeing under random schedules: any thread may be overtaken between two operations."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import pytest

from tests.checkpointing import schedules
from tests.checkpointing.schedules import Schedule, boundary_reached, random_requests
from tests.checkpointing.simulated_world import World
from tests.checkpointing.simulation import Worker
from tf_preempt.checkpointing.rounds import (
    Decide,
    Decision,
    Hold,
    ReadBoundary,
    Request,
    Rounds,
    Script,
)
from tf_preempt.errors import CoordinationError


@contextlib.contextmanager
def named(seed: int) -> Iterator[None]:
    """Says with which seed it fails."""
    try:
        yield
    except (AssertionError, CoordinationError, schedules.DeadlockError) as error:
        raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error


def run_at_random(seed: int, *, make: type[Rounds] = Rounds) -> list[Worker]:
    """A training of random size with random requests, under a random schedule, checked at its end."""
    draw = random.Random(seed)
    steps = draw.randint(1, 8)
    world, count = World(), draw.randint(1, 5)
    workers = [Worker(world, index, count, steps=steps, make=make, commits=True) for index in range(count)]
    schedule = Schedule(world, seed)
    with named(seed):
        for worker in workers:
            schedule.add_process(worker)
        for worker, request, at in random_requests(draw, workers, steps):
            schedule.add(worker.ask(request, boundary_reached(worker, at)), of=worker)
        schedule.run(lambda: all(worker.is_gone for worker in workers))
        check(world, workers, steps)
    return workers


def check(world: World, workers: list[Worker], steps: int) -> None:
    last = steps + 1
    assert [worker.error for worker in workers] == [None] * len(workers)
    for number in range(max(len(worker.acted) for worker in workers)):
        acted = [worker.acted[number] for worker in workers if len(worker.acted) > number]
        decision = acted[0].decision
        assert all(one.decision == decision for one in acted)
        # At most the running step is finished: the one that the first held worker is in, and the next one if
        # another worker had entered that already.
        assert decision.boundary <= world.first_hold[number] + 2
        if decision.boundary <= last:
            assert len(acted) == len(workers), "a worker did not act at a boundary that it came by"
            assert {one.at for one in acted} == {decision.boundary}
        else:  # some had finished: the others need not act before their own last boundary
            assert {one.at for one in acted} == {last}
            assert number == max(len(worker.acted) for worker in workers) - 1
    for worker in workers:
        leaves = bool(worker.acted) and worker.acted[-1].decision.request.kind == "leave"
        assert worker.at == (worker.acted[-1].at if leaves else last)
        if worker.decision is not None:  # of a round that came when it was leaving or had finished
            assert leaves or worker.decision.boundary > last, "a decision was not acted on"
    if workers[0].commits:
        assert world.commits == {number: [at] * len(workers) for number, at in enumerate(workers[0].saved)}, (
            "what was saved is not what was committed"
        )


@pytest.mark.parametrize("block", range(4))
def test_all_workers_act_at_one_common_boundary_under_1000_random_schedules(block: int) -> None:
    rounds_acted = finished_in_a_round = left = 0
    for seed in range(block * 1000, (block + 1) * 1000):
        workers = run_at_random(seed)
        acted = [one for worker in workers for one in worker.acted]
        rounds_acted += len(workers[0].acted)
        finished_in_a_round += any(one.at < one.decision.boundary for one in acted)
        left += workers[0].at <= workers[0].steps
    # The schedules reach what they are for.
    assert rounds_acted > 500
    assert finished_in_a_round > 5
    assert left > 100


@pytest.mark.exhaustive
def test_all_workers_act_at_one_common_boundary_under_100_000_random_schedules() -> None:
    for seed in range(100_000):
        run_at_random(1_000_000 + seed)


# --------------------------------------------------------------------- what the simulation would find


class ReadsBeforeItHolds(Rounds):
    """A main thread can pass a boundary between the two."""

    def _settle(self, request: Request) -> Script:
        script = super()._settle(request)
        hold = next(script)
        at = yield ReadBoundary()
        yield hold
        assert next(script) == ReadBoundary()
        result = at
        while True:
            try:
                result = yield script.send(result)
            except StopIteration:
                return


class NeverHolds(Rounds):
    def _settle(self, request: Request) -> Script:
        script = super()._settle(request)
        assert next(script) == Hold()
        yield from script


class AgreesOnTheLargestReport(Rounds):
    """Where a main thread may be already, or past."""

    def _settle(self, request: Request) -> Script:
        script = super()._settle(request)
        operation = next(script)
        while True:
            if isinstance(operation, Decide):
                operation = Decide(Decision(boundary=operation.decision.boundary - 1, request=request))
            result = yield operation
            try:
                operation = script.send(result)
            except StopIteration:
                return


class LooksAtItselfOnly(Rounds):
    def _report_of(self, worker: int, deadline: float):  # type: ignore[no-untyped-def]
        return (yield from super()._report_of(self._worker, deadline))


class ForgetsWishesOfOthersRounds(Rounds):
    def _settle(self, request: Request) -> Script:
        self._wanted = []
        yield from super()._settle(request)


def run_many(make: type[Rounds]) -> None:
    for seed in range(500):
        run_at_random(seed, make=make)


@pytest.mark.parametrize(
    "broken", [ReadsBeforeItHolds, NeverHolds, AgreesOnTheLargestReport, LooksAtItselfOnly]
)
def test_the_simulation_finds_a_protocol_that_is_broken(broken: type[Rounds]) -> None:
    with pytest.raises((AssertionError, CoordinationError, schedules.DeadlockError)):
        run_many(broken)


def serve_all(seed: int, make: type[Rounds]) -> None:
    """A long training in which a save, a notice and leaving are wanted, each by another worker."""
    world = World()
    workers = [Worker(world, index, 3, steps=10_000, make=make) for index in range(3)]
    schedule = schedules.start(world, workers, seed)
    draw = random.Random(seed)
    for worker, kind in zip(workers, ("save", "notice", "leave"), strict=True):
        request = Request(kind=kind, worker=worker.index, reason="r")  # type: ignore[arg-type]
        schedule.add(worker.ask(request, boundary_reached(worker, draw.randint(0, 3))))
    schedule.run(lambda: all(worker.done for worker in workers), at_most=60_000)
    assert {worker.acted[-1].decision.request.kind for worker in workers} == {"leave"}
    assert {worker.acted[-1].at for worker in workers} == {workers[0].at}


def serve_many(make: type[Rounds]) -> None:
    for seed in range(100):
        serve_all(seed, make)


def test_leaving_is_never_lost_in_rounds_of_others() -> None:
    serve_many(Rounds)


def test_the_simulation_finds_a_wish_that_is_lost() -> None:
    with pytest.raises(schedules.DeadlockError):
        serve_many(ForgetsWishesOfOthersRounds)
