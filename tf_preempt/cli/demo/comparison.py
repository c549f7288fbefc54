"""Are two trainings the same, and what did the interruptions cost?  Computes only."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from tf_preempt.cli.demo.progress import TRAIN, Position, Record
from tf_preempt.cli.demo.result import HISTORY, OPTIMIZER, WEIGHTS, Arrays
from tf_preempt.errors import LaunchError

__all__ = ["Comparison", "Cost", "compare", "count_costs", "count_steps", "progress_of_lives"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """Which arrays of two results differ in a bit, a shape or a type, or are missing in one of them.

    Args:
        differing: their names, sorted.
    """

    differing: tuple[str, ...]

    def same(self, group: str) -> bool:
        """Says whether all arrays of a group (`WEIGHTS`, `OPTIMIZER`, `HISTORY`) are alike."""
        return not any(name.startswith(f"{group}/") for name in self.differing)

    @property
    def bit_identical(self) -> bool:
        """Says whether everything is alike."""
        return not self.differing


def compare(one: Arrays, other: Arrays) -> Comparison:
    """Compares two results bit by bit; NaN equals the same NaN, 0.0 does not equal -0.0.

    Raises:
        LaunchError: a result lacks a group altogether, so that nothing would be compared.
    """
    for result in (one, other):
        for group in (WEIGHTS, OPTIMIZER, HISTORY):
            if not any(name.startswith(f"{group}/") for name in result):
                raise LaunchError(f"a result of the training has no {group}; it has {sorted(result)}.")
    names = sorted(one.keys() | other.keys())
    return Comparison(differing=tuple(name for name in names if not _alike(one, other, name)))


def _alike(one: Arrays, other: Arrays, name: str) -> bool:
    if name not in one or name not in other:
        return False
    a, b = one[name], other[name]
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """What an interruption cost.

    Args:
        steps_run: training steps that the interrupted incarnation ran.
        steps_repeated: of those of the next incarnation, training steps that had been run before.
        batches_repeated: likewise, batches of validations.
        restart_seconds: from the signal to the end of the first batch that had not been run before.
    """

    steps_run: int
    steps_repeated: int
    batches_repeated: int
    restart_seconds: float


def progress_of_lives(
    records: Iterable[Record], incarnations: Mapping[int, int]
) -> list[dict[Position, float]]:
    """Sorts the records of all workers by incarnation.

    Args:
        records: of one training, in any order.
        incarnations: the incarnation of each process id, from 0 without gaps.

    Returns:
        For each incarnation the batches that any worker finished, with the time when the first one did.

    Raises:
        LaunchError: a record is of a process that is not known.
    """
    lives: list[dict[Position, float]] = [{} for _ in range(max(incarnations.values(), default=-1) + 1)]
    for record in records:
        if record.pid not in incarnations:
            raise LaunchError(
                f"worker {record.worker} notes progress as process {record.pid}, which is unknown."
            )
        life = lives[incarnations[record.pid]]
        life[record.position] = min(record.t, life.get(record.position, record.t))
    return lives


def count_costs(lives: Sequence[Mapping[Position, float]], sent: Mapping[int, float]) -> list[Cost]:
    """Counts what each interruption cost.

    Args:
        lives: as `progress_of_lives` gives them.
        sent: for each interrupted incarnation, when its signal was sent, in seconds since 1970.

    Returns:
        One cost per interruption, in their order.

    Raises:
        LaunchError: after an interruption nothing new was run.
    """
    costs = []
    for incarnation, t in sorted(sent.items()):
        before: set[Position] = set().union(*lives[: incarnation + 1])
        after = lives[incarnation + 1] if incarnation + 1 < len(lives) else {}
        repeated = before & after.keys()
        new = [
            time
            for life in lives[incarnation + 1 :]
            for position, time in life.items()
            if position not in before
        ]
        if not new:
            raise LaunchError(f"after the interruption of incarnation {incarnation} nothing new was run.")
        steps_repeated = _training_steps(repeated)
        costs.append(
            Cost(
                steps_run=_training_steps(lives[incarnation]),
                steps_repeated=steps_repeated,
                batches_repeated=len(repeated) - steps_repeated,
                restart_seconds=min(new) - t,
            )
        )
    return costs


def count_steps(lives: Sequence[Mapping[Position, float]]) -> int:
    """Training steps that were run in all incarnations together, repeated ones included."""
    return sum(map(_training_steps, lives))


def _training_steps(positions: Iterable[Position]) -> int:
    return sum(position.phase == TRAIN for position in positions)
