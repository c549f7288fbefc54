"""Has the checkpoints of two trainings compared, by a process that may import TensorFlow."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from tf_preempt.errors import LaunchError
from tf_preempt.testing.drill.training_run import TrainingRun
from tf_preempt.testing.watched_program import WatchedProgram, environment_of_its_own

__all__ = ["Comparison", "compare_runs", "parting"]

_CHILD = "tf_preempt.testing.children.compare_checkpoints"
_POLL_S = 0.02
# On the CPU: a comparison must not wait for a GPU, and copies bits only.
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """What two trainings have in common, and what not.

    Args:
        differences: each with ``name``, ``group``, ``differing`` of ``elements``, ``max_abs``, ``max_ulp``
            and ``note``, as `tf_preempt.testing.drill.differences.Difference` has them.
        compared: how many values were compared, by group.
        not_compared: how many data positions were left out.
        random: random states of the processes that differ; by themselves they are no difference.
        fits_missing: ordinals of trainings that only one of the two has completed.
        last_alike: the last common step at which both had the same variables; None: there is none.
        first_unlike: the first common step at which they had not; None: there is none.
        common_steps: at how many steps both have a checkpoint.
    """

    differences: tuple[Mapping[str, Any], ...]
    compared: Mapping[str, int]
    not_compared: int = 0
    random: tuple[str, ...] = ()
    fits_missing: tuple[int, ...] = ()
    last_alike: int | None = None
    first_unlike: int | None = None
    common_steps: int = 0

    @property
    def identical(self) -> bool:
        """Says whether everything that was compared is the same, to the last bit."""
        return not self.differences and not self.fits_missing

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups in which something differs."""
        return tuple(sorted({difference["group"] for difference in self.differences}))


def compare_runs(
    one: TrainingRun,
    other: TrainingRun,
    *,
    folder: str,
    environ: Mapping[str, str] = os.environ,
    timeout_s: float = 600.0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Comparison:
    """Compares the last checkpoints of two trainings in full, and the variables of those before.

    Args:
        one: a training.
        other: another one of the same program.
        folder: for what the comparing process reads and writes; created.
        environ: its environment variables.
        timeout_s: how long it may take, in seconds.
        clock: seconds, as `time.monotonic` gives them.
        sleep: waits for a number of seconds.

    Raises:
        LaunchError: the comparing process failed, or the trainings had different numbers of workers.
        OSError: the folder cannot be written to.
    """
    os.makedirs(folder, exist_ok=True)
    request, answer = (os.path.join(folder, f"{what}.json") for what in ("request", "answer"))
    with open(request, "w", encoding="utf-8") as file:
        json.dump(_request(one, other), file)
    program = WatchedProgram(
        [sys.executable, "-m", _CHILD, request, answer],
        name="comparison",
        folder=folder,
        environ=environment_of_its_own(environ, **_QUIET),
    )
    end = clock() + timeout_s
    with program:
        while program.is_alive() and clock() < end:
            sleep(_POLL_S)
    if failure := program.describe_failure():
        raise LaunchError(f"the checkpoints could not be compared: {failure}.\n{program.last_lines()}")
    with open(answer, encoding="utf-8") as file:
        return _comparison(json.load(file), one, other)


def _request(one: TrainingRun, other: TrainingRun) -> dict[str, Any]:
    pairs = []
    for fit in sorted(one.last.keys() & other.last.keys()):
        a, b = one.last[fit], other.last[fit]
        if a.workers != b.workers:
            raise LaunchError(
                f"the {one.name} training had {a.workers} worker(s), the {other.name} one {b.workers}.",
                hint="the program must not choose its number of workers anew in each life.",
            )
        pairs.append({"fit": fit, "prefixes": [a.prefix, b.prefix], "workers": a.workers})
    return {
        "pairs": pairs,
        "directories": [one.checkpoints, other.checkpoints],
        "kept": [one.kept, other.kept],
    }


def _comparison(answer: Mapping[str, Any], one: TrainingRun, other: TrainingRun) -> Comparison:
    last_alike, first_unlike = parting(answer["steps"], one.fit_steps)
    return Comparison(
        differences=tuple(answer["differences"]),
        compared=answer["compared"],
        not_compared=answer["not_compared"],
        random=tuple(answer["random"]),
        fits_missing=tuple(sorted(one.last.keys() ^ other.last.keys())),
        last_alike=last_alike,
        first_unlike=first_unlike,
        common_steps=len(answer["steps"]),
    )


def parting(steps: list[Mapping[str, Any]], fit_steps: Mapping[int, int]) -> tuple[int | None, int | None]:
    """Between which steps two trainings have parted: the last at which they were alike, the first not.

    Args:
        steps: at which both have a checkpoint, in order: ``fit``, ``step`` in it, ``identical``.
        fit_steps: steps of each training in the program, by its ordinal.

    Returns:
        Steps of the whole program, counted from its start; None: there is no such step.
    """
    last_alike = None
    for one in steps:
        step = one["step"] + sum(count for fit, count in fit_steps.items() if fit < one["fit"])
        if not one["identical"]:
            return last_alike, step
        last_alike = step
    return last_alike, None
