"""The matrix: which programs are interrupted under which strategies, how they are run, and what must hold."""

from __future__ import annotations

import concurrent.futures
import json
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from tests.integration import cluster

SCRIPT = pathlib.Path(__file__).with_name("run.py")

# What `programs.PROGRAMS` holds, named here so that collecting tests does not import TensorFlow.
FITS = (
    "known length",
    "unknown length",
    "no validation",
    "unknown length, no validation",
    "repeat, steps_per_epoch",
    "known length, fewer steps_per_epoch",
    "unknown length, fewer steps_per_epoch",
    "known length, more steps_per_epoch",
    "unknown length, more steps_per_epoch",
    "2 steps_per_execution",
    "3 steps_per_execution",
    "3 steps_per_execution, unknown length",
    "2 steps_per_execution, repeat, steps_per_epoch",
    "initial_epoch",
    "validation_freq",
    "validation_freq as a list",
    "validation_steps",
    "validation_steps of repeat",
    "arrays",
    "arrays, validation_split",
    "arrays, validation_data",
    "PyDataset",
    "Python generator",
)
SEVERAL = (
    "fine-tuning",
    "layers of a trained model",
    "the same fit again",
    "evaluate and predict between",
    "evaluate in on_epoch_begin",
    "evaluate in on_train_batch_end",
    "evaluate in on_train_batch_end, unknown length",
    "evaluate in on_epoch_end",
)
LOOPS = (
    "steps of repeat",
    "steps, drawn in the function",
    "run without steps",
    "an iterator per epoch",
    "an iterator per epoch, prefetch",
    "an iterator per epoch, unknown length",
    "validation within",
    "two loops",
)
PROGRAMS = FITS + SEVERAL + LOOPS
STRATEGIES = ("default", "mirrored", "multi_worker")
# Of the moments of a program, in the long tests.  Where in a program a notice comes is the same story under
# each strategy, and a life under two replicas takes four times as long.
LONG_SHARES = {"default": "all", "mirrored": "third", "multi_worker": "third"}


class Cell(NamedTuple):
    """A program under a strategy."""

    strategy: str
    program: str

    def __str__(self) -> str:
        return f"{self.strategy}-{self.program}"


CELLS = [Cell(strategy, program) for strategy in STRATEGIES for program in PROGRAMS]

# Left to the long tests in the default strategy: what differs little from another program, or is interrupted
# at every boundary in tests/integration/test_exact_resume.py.
_LONG_ONLY = {
    "known length",
    "unknown length",
    "no validation",
    "unknown length, no validation",
    "repeat, steps_per_epoch",
    "2 steps_per_execution",
    "validation_freq as a list",
    "arrays",
    "arrays, validation_data",
    "evaluate in on_epoch_begin",
    "steps, drawn in the function",
    "an iterator per epoch",
    "known length, fewer steps_per_epoch",
    "unknown length, more steps_per_epoch",
    "3 steps_per_execution, unknown length",
    "2 steps_per_execution, repeat, steps_per_epoch",
    "validation_steps",
    "PyDataset",
    "layers of a trained model",
    "evaluate in on_train_batch_end, unknown length",
    "evaluate in on_epoch_end",
    "run without steps",
    "an iterator per epoch, unknown length",
    "validation within",
}
SAMPLED = {
    "default": tuple(program for program in PROGRAMS if program not in _LONG_ONLY),
    "mirrored": (
        "2 steps_per_execution, repeat, steps_per_epoch",
        "validation_steps",
        "fine-tuning",
        "validation within",
        "an iterator per epoch, prefetch",
    ),
    "multi_worker": ("repeat, steps_per_epoch", "fine-tuning", "steps of repeat"),
}
SAMPLED_CELLS = [cell for cell in CELLS if cell.program in SAMPLED[cell.strategy]]


def run(root: pathlib.Path, cells: Sequence[Cell], share: str, *, timeout_s: float = 560.0) -> None:
    """Runs cells of one strategy in new processes, two cells at a time; results go to `root`."""
    strategy = cells[0].strategy
    groups = [cells] if strategy == "multi_worker" else [cells[half::2] for half in range(2)]

    def run_group(number: int, group: Sequence[Cell]) -> None:
        output = root / f"output {strategy} {number}"
        output.mkdir(parents=True)
        cluster.run_workers(
            SCRIPT,
            [str(root / strategy), strategy, share, *(cell.program for cell in group)],
            directory=output,
            workers=2 if strategy == "multi_worker" else 0,
            timeout_s=timeout_s,
        )

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        running = [pool.submit(run_group, *numbered) for numbered in enumerate(groups) if numbered[1]]
    for one in running:
        one.result()


def outcomes(root: pathlib.Path, cell: Cell) -> list[dict[str, Any]]:
    """What each worker found in a cell: outcomes by the way of the interruption."""
    paths = sorted((root / cell.strategy / cell.program).glob("*.json"))
    return [json.loads(path.read_text()) for path in paths]


_OF_UNKNOWN_LENGTH = {program for program in PROGRAMS if "unknown length" in program}
_OF_UNKNOWN_LENGTH |= {"Python generator", "fine-tuning"}

# So that a notice that is never given does not look like one that is survived.
_FEWEST_LIVES = {"told after every step": 6, "told while restoring": 2, "told while saving": 2}
# Of two workers, who is in a step that the other one has not entered does one more.
_FEWEST_LIVES_OF_TWO_WORKERS = {**_FEWEST_LIVES, "told after every step": 3}


def problems(found: dict[str, Any], cell: Cell | None = None) -> list[str]:
    """What is not as in the undisturbed life, over all ways to be interrupted; empty if all is well.

    Args:
        found: outcomes by the way of the interruption, ``undisturbed`` among them.
        cell: whose outcomes they are; None: of a program in one process, without a strategy.
    """
    fewest = _FEWEST_LIVES_OF_TWO_WORKERS if cell and cell.strategy == "multi_worker" else _FEWEST_LIVES
    if cell and cell.strategy == "mirrored" and cell.program in _OF_UNKNOWN_LENGTH:
        # The step that finds no more data counts itself on a replica or not; docs/exactness.md tells more.
        found = {way: _without_counts(outcome) for way, outcome in found.items()}
    whole = found["undisturbed"]
    return [
        f"{way}: {problem}"
        for way, outcome in found.items()
        for problem in _problems_of(way, outcome, whole, fewest.get(way, 1))
    ]


def _without_counts(outcome: dict[str, Any]) -> dict[str, Any]:
    variables = {name: one for name, one in outcome["variables"].items() if "/iteration " not in name}
    return {**outcome, "variables": variables}


def _problems_of(way: str, outcome: dict[str, Any], whole: dict[str, Any], fewest: int) -> list[str]:
    if not outcome["ended"]:
        return [f"did not end in {outcome['lives']} lives"]
    if outcome["lives"] < fewest:
        return [f"was interrupted less often than it should be: {outcome['lives']} lives, not {fewest}"]
    wrong = ["histories differ"] if outcome["histories"] != whole["histories"] else []
    if outcome["variables"] != whole["variables"]:
        names = [
            name for name, value in whole["variables"].items() if outcome["variables"].get(name) != value
        ]
        wrong.append(f"variables differ ({names[:3]})")
    return wrong + _wrongly_seen(way, outcome["seen"], whole["seen"])


def _wrongly_seen(way: str, seen: list[str], expected: list[str]) -> list[str]:
    """A notice repeats no step, a kill repeats some, and who is at the end trains nothing."""
    if way == "started again":
        return [f"saw {seen[0]} again"] if seen else []
    if way.startswith("killed"):
        seen, expected = sorted(set(seen)), sorted(set(expected))
    if seen == expected:
        return []
    pairs = enumerate(zip(seen, expected, strict=False))
    place = next((number for number, (one, other) in pairs if one != other), min(len(seen), len(expected)))
    return [f"saw {seen[place : place + 1]} in place of {expected[place : place + 1]}"]
