"""Several notices with deadlines of their own: the earliest counts, whoever has it and whenever it came.

Each worker has the real `Asking`, which asks the real `Rounds`, in simulated time: steps and saves take some.
"""

from __future__ import annotations

import dataclasses
import random

import pytest

from tests.checkpointing.schedules import Schedule
from tests.checkpointing.simulated_world import Thread, World
from tests.checkpointing.simulation import Worker
from tests.checkpointing.test_random_schedules import check, named
from tf_preempt.checkpointing.asking import Asking
from tf_preempt.checkpointing.cadence import Cadence
from tf_preempt.checkpointing.rounds import Rounds
from tf_preempt.checkpointing.startup import Cluster
from tf_preempt.termination.notice import TerminationNotice

GRACE_PERIOD_S = 120.0
STEP_S, SAVE_S, TICK_S = 0.2, 2.0, 0.1
LEAVES_BEFORE_S = 2.0 + 3 * SAVE_S  # see `Asking`: 1 s, three saves, the longest step
ENDLESS = 100_000


@dataclasses.dataclass(frozen=True)
class Told:
    """Worker `worker` is given notice at `at`, and has until `deadline`; all in seconds."""

    worker: int
    at: float
    deadline: float


def train(told: list[Told], workers: int, seed: int, *, make: type[Rounds] = Rounds) -> float:
    """Trains until all have left; returns when the last one had saved, in seconds."""
    world = World()
    training = [Worker(world, index, workers, steps=ENDLESS, make=make) for index in range(workers)]
    schedule = Schedule(world, seed)
    for worker in training:
        worker.step_s, worker.save_s = STEP_S, SAVE_S
        asking = asking_of(worker)
        worker.on_poll = asking.on_poll
        schedule.add(worker.main())
        schedule.add(worker.agreement())
        for one in told:
            if one.worker == worker.index:
                schedule.add(notice(one, worker, asking))
    limit_s = min(one.deadline for one in told) + 60.0
    schedule.run_in_turns(lambda: all(one.done for one in training), tick_s=TICK_S, limit_s=limit_s)
    check(world, training, ENDLESS)
    assert training[0].acted[-1].decision.request.kind == "leave"
    return world.now


def asking_of(worker: Worker) -> Asking:
    asking = Asking(
        Cluster(worker=worker.index, workers=worker.workers),
        Cadence(kind="never"),
        GRACE_PERIOD_S,
        worker.rounds.want,
        at=lambda: worker.at,
        clock=lambda: worker.world.now,
    )
    asking.expect(SAVE_S)

    def saved() -> None:
        asking.saved(len(worker.saved), SAVE_S)
        asking.committed(len(worker.saved))

    worker.on_saved = saved
    return asking


def notice(told: Told, worker: Worker, asking: Asking) -> Thread:
    """What the thread does that was told: it asks, and opens the round."""
    yield lambda: worker.world.now >= told.at
    asking.on_notice(TerminationNotice(source="gce", reason="for a test", deadline=told.deadline))
    yield from worker.claim()


@pytest.mark.parametrize(
    "told",
    [
        [Told(0, 5.0, 65.0)],
        [Told(0, 5.0, 65.0), Told(1, 5.0, 45.0)],
        [Told(0, 5.0, 45.0), Told(1, 5.0, 65.0), Told(2, 5.0, 55.0)],
        [Told(2, 5.0, 115.0), Told(1, 40.0, 60.0)],  # in the countdown of another
        [Told(2, 5.0, 115.0), Told(2, 40.0, 60.0)],  # in its own
        [Told(2, 5.0, 60.0), Told(2, 40.0, 115.0)],
        [Told(1, 5.0, 60.0), Told(0, 53.0, 115.0)],  # when the other one is about to ask to leave
    ],
)
@pytest.mark.parametrize("seed", range(5))
def test_all_leave_for_the_earliest_deadline_and_train_until_then(told: list[Told], seed: int) -> None:
    earliest = min(one.deadline for one in told)
    with named(seed):
        assert earliest - LEAVES_BEFORE_S <= train(told, 3, seed) <= earliest


def run_at_random(seed: int, *, make: type[Rounds] = Rounds) -> None:
    """One to four notices at one to five workers; some leave no time to train on."""
    draw = random.Random(seed)
    workers = draw.randint(1, 5)
    told = [
        Told(draw.randrange(workers), at, at + draw.uniform(15.0, 40.0))
        for at in (draw.uniform(0.0, 20.0) for _ in range(draw.randint(1, 4)))
    ]
    with named(seed):
        assert train(told, workers, seed, make=make) <= min(one.deadline for one in told)


def test_all_leave_before_the_earliest_of_random_deadlines() -> None:
    for seed in range(100):
        run_at_random(seed)


@pytest.mark.exhaustive
def test_all_leave_before_the_earliest_of_random_deadlines_2_000_times() -> None:
    for seed in range(2_000):
        run_at_random(1_000_000 + seed)
