"""The protocol of agreeing under thousands of schedules: any thread may be overtaken between operations."""

from __future__ import annotations

import logging
import random

import pytest

from tests.checkpointing import simulation
from tests.checkpointing.simulation import Schedule, Worker, World, boundary_reached, workers_of
from tf_preempt.checkpointing.key_value import KeyExistsError
from tf_preempt.checkpointing.rounds import (
    Await,
    Decide,
    Decision,
    Hold,
    ReadBoundary,
    Request,
    Rounds,
    Script,
    Write,
)
from tf_preempt.errors import CoordinationError

LEAVE = Request(kind="leave", worker=0, reason="SIGTERM", deadline_s=12.5)
NOTICE = Request(kind="notice", worker=0, reason="gce", deadline_s=60.0)
SAVE = Request(kind="save", worker=0, reason="every 600 s")


def run_at_random(seed: int, *, make: type[Rounds] = Rounds) -> list[Worker]:
    """A training of random size with random requests, under a random schedule, checked at its end."""
    draw = random.Random(seed)
    steps = draw.randint(1, 8)
    world = World()
    workers = workers_of(world, draw.randint(1, 5), steps=steps, make=make)
    schedule = simulation.start(world, workers, seed)
    for worker, request, at in simulation.random_requests(draw, workers, steps):
        schedule.add(worker.ask(request, boundary_reached(worker, at)))
    schedule.run(lambda: all(worker.done for worker in workers))
    check(world, workers, steps)
    return workers


def check(world: World, workers: list[Worker], steps: int) -> None:
    last = steps + 1
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
        assert worker.decision is None or worker.decision.boundary > last, "a decision was not acted on"
        left_early = worker.at < last
        assert left_early == bool(
            worker.acted and worker.acted[-1].decision.request.kind == "leave" and worker.acted[-1].at < last
        )


@pytest.mark.parametrize("block", range(8))
def test_all_workers_act_at_one_common_boundary_under_500_random_schedules(block: int) -> None:
    rounds_acted = finished_in_a_round = left = 0
    for seed in range(block * 500, (block + 1) * 500):
        workers = run_at_random(seed)
        acted = [one for worker in workers for one in worker.acted]
        rounds_acted += len(workers[0].acted)
        finished_in_a_round += any(one.at < one.decision.boundary for one in acted)
        left += workers[0].at <= workers[0].steps
    # The schedules reach what they are for.
    assert rounds_acted > 250
    assert finished_in_a_round > 5
    assert left > 50


@pytest.mark.exhaustive
def test_all_workers_act_at_one_common_boundary_under_200_000_random_schedules() -> None:
    for seed in range(200_000):
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
    with pytest.raises((AssertionError, CoordinationError, simulation.DeadlockError)):
        run_many(broken)


def serve_all(seed: int, make: type[Rounds]) -> None:
    """A long training in which a save, a notice and leaving are wanted, each by another worker."""
    world = World()
    workers = workers_of(world, 3, steps=10_000, make=make)
    schedule = simulation.start(world, workers, seed)
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
    with pytest.raises(simulation.DeadlockError):
        serve_many(ForgetsWishesOfOthersRounds)


# -------------------------------------------------------------------------------------- size and faults


def test_a_thousand_workers_agree() -> None:
    world = World()
    workers = workers_of(world, 1000, steps=4)
    schedule = simulation.start(world, workers, seed=1)
    schedule.add(workers[617].ask(NOTICE, boundary_reached(workers[617], 2)))
    schedule.run_in_turns(lambda: all(worker.done for worker in workers))
    check(world, workers, steps=4)
    assert workers[0].acted[0].decision.request == NOTICE


@pytest.mark.parametrize("lost", [0, 2])
@pytest.mark.parametrize("seed", range(10))
def test_a_lost_worker_releases_the_others_with_an_error_in_bounded_time(lost: int, seed: int) -> None:
    world = World()
    workers = workers_of(world, 3, steps=10, report_timeout_s=20.0)
    schedule = Schedule(world, seed)
    heard: list[str] = []
    for worker in workers:
        if worker.index != lost:
            schedule.add(until_error(worker, heard))
            schedule.add(worker.agreement(), polls=True)
    schedule.add(workers[1].ask(SAVE, lambda: True))
    schedule.run(lambda: all(worker.failure for worker in workers if worker.index != lost))
    assert 20.0 <= world.now <= 40.0  # a slow worker begins to wait later than the others
    for worker in workers:
        if worker.index != lost:
            assert f"Worker {lost} did not say where it is within 20 s" in str(worker.failure)
            assert worker.hold, "the next boundary must hear of it"


def until_error(worker: Worker, heard: list[str]) -> simulation.Thread:
    try:
        yield from worker.main()
    except CoordinationError as error:
        heard.append(str(error))


def test_a_main_thread_that_waits_hears_of_a_lost_worker() -> None:
    world = World()
    workers = workers_of(world, 2, steps=10, report_timeout_s=20.0)
    schedule = Schedule(world, seed=3)
    heard: list[str] = []
    schedule.add(workers[0].agreement(), polls=True)
    schedule.add(workers[0].ask(SAVE, lambda: True))
    schedule.run(lambda: workers[0].hold)
    schedule.add(until_error(workers[0], heard))
    schedule.run(lambda: bool(heard))
    assert "Worker 1 did not say where it is" in heard[0]


def test_a_worker_whose_report_cannot_be_written_hears_of_it_and_the_others_take_it_for_lost() -> None:
    world = World()
    workers = workers_of(world, 2, steps=10, report_timeout_s=20.0)
    workers[1].fails_at_write = "/at/"
    schedule = Schedule(world, seed=5)
    for worker in workers:
        schedule.add(worker.agreement(), polls=True)
    schedule.add(workers[0].ask(SAVE, lambda: True))
    schedule.run(lambda: all(worker.failure for worker in workers))
    assert "no answer" in str(workers[1].failure)
    assert "Worker 1 did not say where it is" in str(workers[0].failure)


def test_a_claim_that_the_store_refuses_is_logged_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    (worker,) = workers_of(world, 1, steps=10)
    worker.fails_at_write = "/claim"
    schedule = Schedule(world, seed=5)
    schedule.add(worker.agreement(), polls=True)
    schedule.add(worker.ask(NOTICE, lambda: True))
    with caplog.at_level(logging.WARNING, logger="tf_preempt"):
        schedule.run(lambda: "A round could not be opened" in caplog.text)
    worker.fails_at_write = None
    schedule.run(lambda: worker.decision is not None)
    assert worker.decision == Decision(boundary=1, request=NOTICE)


# ------------------------------------------------------------------------------------ the script itself


def rounds_of_one(*, worker: int = 0, workers: int = 1) -> Rounds:
    return Rounds(worker=worker, workers=workers, prefix="p", report_timeout_s=1.0, clock=lambda: 0.0)


def test_a_round_is_these_operations_in_this_order() -> None:
    rounds = rounds_of_one(worker=1, workers=2)
    script = rounds.serve()
    assert next(script) == Await("p/round/0/claim")
    assert script.send(NOTICE.to_json()) == Hold()
    assert script.send(None) == ReadBoundary()
    assert script.send(7) == Write("p/round/0/at/1", "7")
    assert script.send(None) is not None  # the announcement
    assert script.send(None) == Await("p/round/0/at/0", 1.0)
    assert script.send("8") == Await("p/round/0/at/1", 1.0)
    assert script.send("7") == Decide(Decision(boundary=9, request=NOTICE))
    rounds.acted()
    assert script.send(None) == Await("p/round/1/claim")


def test_a_claim_that_somebody_else_made_stays_wanted() -> None:
    rounds = rounds_of_one()
    rounds.want(NOTICE)
    claim = rounds.claim()
    assert next(claim) == Write("p/round/0/claim", NOTICE.to_json())
    with pytest.raises(StopIteration):
        claim.throw(KeyExistsError("there"))
    assert next(rounds.claim()) == Write("p/round/0/claim", NOTICE.to_json())


@pytest.mark.parametrize(
    ("settled", "wanted", "claims_again"),
    [
        (SAVE, SAVE, False),
        (SAVE, NOTICE, True),
        (SAVE, LEAVE, True),
        (NOTICE, SAVE, False),
        (NOTICE, NOTICE, False),
        (NOTICE, LEAVE, True),
        (LEAVE, SAVE, False),
        (LEAVE, NOTICE, False),
        (LEAVE, LEAVE, False),
        (Request(kind="leave", worker=1, reason="gce"), LEAVE, False),
        (Request(kind="save", worker=1, reason="r"), SAVE, False),
    ],
)
def test_a_wish_is_served_by_a_round_that_does_as_much(
    settled: Request, wanted: Request, claims_again: bool
) -> None:
    rounds = rounds_of_one()
    rounds.want(wanted)
    script = rounds.serve()
    next(script)
    operation = script.send(settled.to_json())
    results = {ReadBoundary: 3, Await: "3"}
    while not isinstance(operation, Decide):
        operation = script.send(results.get(type(operation)))
    rounds.acted()
    following = script.send(None)
    assert isinstance(following, Write) == claims_again


def test_nobody_claims_while_a_round_is_open() -> None:
    rounds = rounds_of_one()
    script = rounds.serve()
    next(script)
    script.send(SAVE.to_json())
    rounds.want(NOTICE)
    assert list(rounds.claim()) == []


@pytest.mark.parametrize("request_", [LEAVE, NOTICE, SAVE, Request(kind="save", worker=3, reason='"ä\n')])
def test_a_request_survives_its_way_through_a_key(request_: Request) -> None:
    assert Request.from_json(request_.to_json()) == request_


@pytest.mark.parametrize(
    ("at", "finished", "acts"),
    [(4, False, False), (5, False, True), (4, True, True), (5, True, True)],
)
def test_a_decision_is_acted_on_at_its_boundary_or_at_the_last(at: int, finished: bool, acts: bool) -> None:
    assert Decision(boundary=5, request=SAVE).acts_at(at, finished=finished) is acts


@pytest.mark.parametrize("finished", [False, True])
def test_a_main_thread_past_the_agreed_boundary_is_an_error_with_the_cure(finished: bool) -> None:
    with pytest.raises(CoordinationError, match=r"(?s)boundary 6, past the agreed 5.*HINT: give all workers"):
        Decision(boundary=5, request=SAVE).acts_at(6, finished=finished)
