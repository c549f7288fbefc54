"""Agreeing under random schedules with faults: writes that are lost or late, processes that go or come.

A fault may cost a checkpoint and this life of the training, nothing else.
"""

from __future__ import annotations

import collections
import logging
import math
import random
from collections.abc import Callable

import pytest

from tests.checkpointing.schedules import Schedule, boundary_reached, random_requests
from tests.checkpointing.simulated_world import AT_ONCE, Delivery, Thread, World
from tests.checkpointing.simulation import Worker
from tests.checkpointing.test_random_schedules import named
from tf_preempt.checkpointing.rounds import Decision, Request, Rounds

NOTICE = Request(kind="notice", worker=0, reason="gce", deadline_s=60.0)
SAVE = Request(kind="save", worker=0, reason="every 600 s")
REPORT_TIMEOUT_S = 20.0
# For the reports, for the chief's answer, for parts and the chief's answer to them; a round may come before.
ENDS_WITHIN_S = 2 * (REPORT_TIMEOUT_S + 10.0) + 5 * REPORT_TIMEOUT_S
FAULTS = ("writes", "death", "restart alone", "chief leaves first")


class Training:
    """Workers of a training of random size, one kind of fault, and requests.

    Args:
        seed: of everything in it.
        fault: one of `FAULTS`.
        make: the protocol.
    """

    def __init__(self, seed: int, fault: str, make: type[Rounds] = Rounds) -> None:
        self.fault = fault
        self.draw = random.Random(seed)
        self.steps, self.count = self.draw.randint(1, 8), self.draw.randint(1, 5)
        self.make = make
        self.world = World()
        self.schedule = Schedule(self.world, seed)
        self.workers = [self.new_worker(index) for index in range(self.count)]
        for worker in list(self.workers):
            self.schedule.add_process(worker)
        for worker, request, at in random_requests(self.draw, self.workers, self.steps):
            self.schedule.add(worker.ask(request, boundary_reached(worker, at)), of=worker)
        if fault in ("death", "restart alone"):
            self.schedule.add(self.kill(self.draw.choice(self.workers)))
        self.workers[0].lingers = fault != "chief leaves first"

    def new_worker(self, index: int) -> Worker:
        worker = Worker(
            self.world,
            index,
            self.count,
            steps=self.steps,
            make=self.make,
            report_timeout_s=REPORT_TIMEOUT_S,
            commits=True,
        )
        if self.fault == "writes":
            worker.delivery = self.delivery
        return worker

    def delivery(self, key: str) -> Delivery:
        """Every sixth write is lost, late by seconds to minutes, or its answer is lost."""
        if self.draw.random() > 1 / 6:
            return AT_ONCE
        after_s = self.draw.choice([math.inf, 0.0, 5.0, 10.0, 15.0, 25.0, 60.0])
        return Delivery(after_s=after_s, is_answered=self.draw.random() < 0.7)

    def kill(self, worker: Worker) -> Thread:
        """Ends a process at a random operation after a random boundary."""
        at = self.draw.randint(0, self.steps + 1)
        yield boundary_reached(worker, at)
        for _ in range(self.draw.randint(0, 40)):
            yield None
        if worker.is_gone:
            return
        worker.end_process()
        if self.fault == "restart alone":
            newcomer = self.new_worker(worker.index)
            newcomer.is_newcomer = True
            self.workers.append(newcomer)
            self.schedule.add_process(newcomer)

    def run(self) -> None:
        self.schedule.run(lambda: all(worker.is_gone for worker in self.workers), limit_s=ENDS_WITHIN_S)

    def check(self) -> None:
        boundaries: dict[int, Decision] = {}
        for worker in self.workers:
            assert "past the agreed" not in str(worker.error), worker.error
            for number, acted in enumerate(worker.acted):
                decision = boundaries.setdefault(number, acted.decision)
                assert acted.decision == decision, "two workers acted on different decisions"
                assert acted.at == decision.boundary or acted.at == self.steps + 1 < decision.boundary
                assert decision.boundary <= self.world.first_hold[number] + 2
            # Who has not acted on a round that others acted on has not passed it either.
            following = boundaries.get(len(worker.acted))
            assert following is None or worker.at <= following.boundary
        for number, saved in self.world.commits.items():
            assert len(saved) == self.count
            assert len(set(saved)) == 1, f"checkpoint {number} holds parts of different boundaries: {saved}"
        for worker in self.workers:
            if worker.done:  # it leaves in order: all that it saved is there
                assert worker.saved == [self.world.commits[number][0] for number in range(len(worker.saved))]


def run_at_random(seed: int, fault: str, make: type[Rounds] = Rounds) -> Training:
    with named(seed):
        training = Training(seed, fault, make)
        training.run()
        training.check()
    return training


@pytest.mark.parametrize("fault", FAULTS)
def test_with_a_fault_all_save_at_one_boundary_or_none_commits(
    fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, logger="tf_preempt")
    ends = collections.Counter[str]()
    for seed in range(1000):
        training = run_at_random(2_000_000 + seed, fault)
        failed = [worker.error for worker in training.workers if worker.error is not None]
        ends["all in order"] += not failed and all(worker.done for worker in training.workers)
        ends["with errors"] += bool(failed)
        ends["after a commit"] += bool(failed and training.world.commits)
        ends["in a round"] += any("did not say" in str(error) for error in failed)
    # The schedules reach what they are for.
    assert ends["all in order"] > 200
    assert ends["with errors"] > 200
    assert ends["after a commit"] > 50
    assert ends["in a round"] > 10 or fault == "chief leaves first"  # its answers were there before it left


@pytest.mark.exhaustive
@pytest.mark.parametrize("fault", FAULTS)
def test_with_a_fault_all_save_at_one_boundary_or_none_commits_in_10_000_schedules(
    fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, logger="tf_preempt")
    for seed in range(10_000):
        run_at_random(3_000_000 + seed, fault)


# ------------------------------------------------------------------------------------- what is heard of it


def agreeing(count: int, seed: int, *, without: int | None = None) -> tuple[Schedule, list[Worker]]:
    """Workers whose agreement threads run, but not worker `without`; no main threads."""
    world = World()
    workers = [
        Worker(world, index, count, steps=10, report_timeout_s=REPORT_TIMEOUT_S) for index in range(count)
    ]
    schedule = Schedule(world, seed)
    for worker in workers:
        worker.send_away = schedule.add
        if worker.index != without:
            schedule.add(worker.agreement())
    return schedule, [worker for worker in workers if worker.index != without]


@pytest.mark.parametrize(
    ("lost", "heard", "after_s"),
    [
        (0, "The chief did not say what was agreed within 30 s (round 0)", 30.0),
        (2, "Worker 2 did not say where it is within 20 s (round 0)", 20.0),
    ],
)
@pytest.mark.parametrize("seed", range(10))
def test_a_lost_worker_releases_the_others_with_an_error_in_bounded_time(
    lost: int, heard: str, after_s: float, seed: int
) -> None:
    schedule, workers = agreeing(3, seed, without=lost)
    for worker in workers:
        schedule.add(worker.process())
    schedule.add(workers[-1].ask(SAVE, lambda: True))
    schedule.run(lambda: all(worker.failure for worker in workers), limit_s=2 * after_s)
    assert after_s <= workers[0].world.now
    for worker in workers:
        assert heard in str(worker.failure)
        assert worker.hold, "the next boundary must hear of it"


def test_a_main_thread_that_waits_hears_of_a_lost_worker() -> None:
    schedule, (worker,) = agreeing(2, seed=3, without=1)
    schedule.add(worker.ask(SAVE, lambda: True))
    schedule.run(lambda: worker.hold)
    schedule.add(worker.process())
    schedule.run(lambda: worker.is_gone)
    assert "Worker 1 did not say where it is" in str(worker.error)


def refuse(name: str) -> Callable[[str], Delivery]:
    """Writes of such keys are lost, all others arrive."""
    return lambda key: Delivery(after_s=math.inf) if name in key else AT_ONCE


@pytest.mark.parametrize("lost_write", ["/at/", "/agreed"])
def test_a_worker_whose_write_is_lost_hears_of_it_and_the_others_take_it_for_lost(lost_write: str) -> None:
    schedule, workers = agreeing(2, seed=5)
    writer = workers[1] if lost_write == "/at/" else workers[0]
    writer.delivery = refuse(lost_write)
    schedule.add(workers[0].ask(SAVE, lambda: True))
    schedule.run(lambda: all(worker.failure for worker in workers), limit_s=60.0)
    other = workers[1 - writer.index]
    assert f"no answer for p/round/0{lost_write}" in str(writer.failure)
    says = "Worker 1 did not say where it is" if lost_write == "/at/" else "The chief did not say"
    assert says in str(other.failure)


def test_the_answer_that_a_worker_is_lost_may_be_lost_too() -> None:
    schedule, workers = agreeing(3, seed=5, without=2)
    workers[0].delivery = refuse("/agreed")
    schedule.add(workers[0].ask(SAVE, lambda: True))
    schedule.run(lambda: all(worker.failure for worker in workers), limit_s=60.0)
    assert "Worker 2 did not say where it is" in str(workers[0].failure)
    assert "The chief did not say what was agreed" in str(workers[1].failure)


def test_a_claim_that_the_store_refuses_is_logged_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    schedule, (worker,) = agreeing(1, seed=5)
    worker.delivery = refuse("/claim")
    schedule.add(worker.ask(NOTICE, lambda: True))
    with caplog.at_level(logging.WARNING, logger="tf_preempt"):
        schedule.run(lambda: "A round could not be opened" in caplog.text)
    worker.delivery = lambda key: AT_ONCE
    schedule.run(lambda: worker.decision is not None)
    assert worker.decision == Decision(boundary=1, request=NOTICE)
