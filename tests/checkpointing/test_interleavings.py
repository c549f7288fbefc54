"""The protocol of agreeing under all schedules of small trainings.

Threads are stepped one operation at a time, so the shells that have real threads are simulated; the scripts
of `Rounds` and `Decision.acts_at` are the real ones.  A request may come at any time.  The bound is the size
of the training; all of its schedules are followed to their ends.  Under each of them: all act at one boundary
or at their last one, nobody passes it, at most the running step is finished, and an end can be reached.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.checkpointing.interleavings import Explored, Scene, explore
from tests.checkpointing.simulated_world import World
from tests.checkpointing.simulation import Worker
from tests.checkpointing.test_random_schedules import check, named
from tf_preempt.checkpointing.rounds import Request, RequestKind, Rounds

Asks = list[tuple[int, RequestKind]]  # which worker, for what


def all_schedules(
    workers: int, *, steps: int, asks: Asks, make: type[Rounds] = Rounds, begun: int = 0, seed: int = 0
) -> Explored:
    """Follows all schedules, or all that begin with `begun` operations drawn from `seed`."""

    def scene() -> Scene:
        world = World()
        scene = Scene(
            world, [Worker(world, index, workers, steps=steps, make=make) for index in range(workers)]
        )
        for worker in scene.workers:
            scene.add_main(worker)
            scene.add_background(worker.agreement(), worker)
        for index, kind in asks:
            worker = scene.workers[index]
            request = Request(kind=kind, worker=index, reason="r")
            scene.add_background(worker.ask(request, lambda: True), worker)
        draw = random.Random(seed)
        for _ in range(begun):
            scene.advance(draw.choice(scene.options()))
        return scene

    def outcome(scene: Scene) -> Any:
        check(scene.world, scene.workers, steps)
        kinds = [[(one.decision.request.kind, one.at) for one in worker.acted] for worker in scene.workers]
        return tuple(map(tuple, kinds))

    return explore(scene, outcome)


def test_two_workers_leave_together_wherever_they_were_told() -> None:
    """5,300 states, up to 30 operations."""
    explored = all_schedules(2, steps=2, asks=[(1, "leave")])
    nothing, last = (), (("leave", 3),)
    assert explored.outcomes == {
        ((("leave", 1),), (("leave", 1),)),
        ((("leave", 2),), (("leave", 2),)),
        (last, last),
        (nothing, last),  # the other one had finished when it came
        (last, nothing),
        (nothing, nothing),
    }


@pytest.mark.parametrize("seed", range(4))
def test_three_workers_agree_however_a_schedule_goes_on(seed: int) -> None:
    """Up to 2,600 states after a beginning of 16 operations."""
    with named(seed):
        explored = all_schedules(3, steps=2, asks=[(1, "leave"), (2, "save")], begun=16, seed=seed)
    assert explored.states > 100


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("workers", "steps", "asks"),
    [
        (3, 0, [(1, "leave")]),  # 27,000 states, up to 29 operations
        (3, 1, [(1, "leave")]),  # 56,000 states, up to 38 operations
        (2, 1, [(1, "leave"), (0, "save")]),  # 31,000 states, up to 40 operations
    ],
)
def test_all_schedules_end_with_all_at_one_boundary(workers: int, steps: int, asks: Asks) -> None:
    assert len(all_schedules(workers, steps=steps, asks=asks).outcomes) > 1
