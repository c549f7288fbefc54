"""Tests that run beside each other in threads, each on two nodes of its own: most of a job's life is waiting.

A module with `staged` tests has a module fixture `cluster` of `NODES` nodes; `scenes` is in conftest.
"""

import dataclasses
import queue
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.slurm.jobs import Job, preempt

AT_A_TIME = 3
NODES = 2 * AT_A_TIME
_FIRST_NODE = 9

_scenes: dict[str, dict[str, Callable[["Stage"], None]]] = {}


@dataclasses.dataclass(frozen=True)
class Stage:
    """Where a test takes place: on two nodes that no other test uses meanwhile."""

    cluster: Any
    place: Path
    nodes: tuple[str, str]
    undisturbed: dict[int, dict]

    def submit(self, name="job", *, options="-N2 -n2", **kinds) -> Job:
        where = f"-p low -w {','.join(self.nodes)} {options}"
        return Job(self.cluster, self.place / name, options=where, **kinds).submit()

    def preempt(self) -> None:
        preempt(self.cluster, ",".join(self.nodes), count=2)

    def assert_as_if_undisturbed(self, job, *, restarts, workers=2) -> None:
        assert job.wait_for_end() == "COMPLETED", job.output
        assert job.fields()["Restarts"] == str(restarts)
        job.assert_trained_each_step_once(workers)
        assert job.result() == self.undisturbed[workers]


def staged(scene):
    """A test that runs beside others; `scene` takes the `Stage`."""
    _scenes.setdefault(scene.__module__, {})[scene.__name__] = scene

    def test(scenes):
        scenes[scene.__name__].result(300)

    test.__name__, test.__doc__ = scene.__name__, scene.__doc__
    return test


def play(
    module: str, wanted: Iterable[str], cluster: Any, undisturbed: dict[int, dict], make_place: Callable
) -> tuple[ThreadPoolExecutor, dict[str, Future]]:
    """Starts a module's staged tests that are wanted, a few at a time, and gives their futures."""
    pairs: queue.SimpleQueue = queue.SimpleQueue()
    for first in range(_FIRST_NODE, _FIRST_NODE + NODES, 2):
        pairs.put((f"n{first}", f"n{first + 1}"))

    def act(name, scene):
        nodes = pairs.get()
        try:
            scene(Stage(cluster, make_place(name.removeprefix("test_")[:35]), nodes, undisturbed))
        finally:
            pairs.put(nodes)

    pool = ThreadPoolExecutor(AT_A_TIME)
    scenes = _scenes.get(module, {})
    return pool, {name: pool.submit(act, name, scene) for name, scene in scenes.items() if name in wanted}
