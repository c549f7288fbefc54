"""What agreeing costs: operations of the store, counted with few and with very many workers."""

from __future__ import annotations

import collections

import pytest

from tests.checkpointing import schedules
from tests.checkpointing.schedules import boundary_reached
from tests.checkpointing.simulated_world import World
from tests.checkpointing.simulation import Worker
from tests.checkpointing.test_random_schedules import check
from tf_preempt.checkpointing.rounds import Request

NOTICE = Request(kind="notice", worker=0, reason="gce", deadline_s=60.0)


def messages(count: int, *, notices: int, steps: int = 6) -> collections.Counter[str]:
    """Operations of the store of one training; every agreement thread has one wait for the next claim."""
    world = World()
    workers = [Worker(world, index, count, steps=steps) for index in range(count)]
    schedule = schedules.start(world, workers, seed=1)
    for number in range(notices):
        asking = workers[(617 * (number + 1)) % count]
        schedule.add(asking.ask(NOTICE, boundary_reached(asking, 2 + 2 * number)))
    while schedule.turn():
        pass
    assert all(worker.done for worker in workers)
    check(world, workers, steps)
    assert [acted.decision.request for acted in workers[0].acted] == [NOTICE] * notices
    return world.messages


@pytest.mark.parametrize("count", [1, 10, 1000])
def test_without_notice_nothing_is_written_and_each_worker_has_one_wait(count: int) -> None:
    assert messages(count, notices=0) == {"reads": count}
    assert messages(count, notices=0, steps=60) == {"reads": count}


@pytest.mark.parametrize("count", [10, 100, 1000])
def test_messages_of_a_notice_grow_linearly_with_workers(count: int) -> None:
    """Written: a claim, a report of each worker, the chief's answer.  Read: the reports, by the chief; the
    answer, by the others; the next claim, by all."""
    quiet = messages(count, notices=0)
    one, two = messages(count, notices=1), messages(count, notices=2)
    assert one - quiet == {"writes": 1 + count + 1, "reads": count + (count - 1) + count}
    assert two - one == one - quiet
