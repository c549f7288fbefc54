"""What the demo has found: as a table for people, as an object for programs."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
from collections.abc import Callable, Sequence
from typing import IO, Any

from tf_preempt import __version__
from tf_preempt.cli.demo.comparison import Comparison, Cost
from tf_preempt.cli.demo.interruptions import Interruption
from tf_preempt.cli.demo.progress import Position
from tf_preempt.cli.demo.result import HISTORY, OPTIMIZER, WEIGHTS
from tf_preempt.cli.demo.settings import DemoSettings

__all__ = ["Interrupted", "Report", "versions"]

_HEADINGS = ("what", "after", "steps run", "steps repeated", "seconds lost")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Interrupted:
    """An interruption with what came of it.

    Args:
        interruption: what was sent to whom.
        done: the last batch that was known to be finished when it was sent.
        cost: in steps and seconds.
    """

    interruption: Interruption
    done: Position
    cost: Cost

    @property
    def kept_promise(self) -> bool:
        """Says whether nothing was repeated, where there was notice."""
        return (
            not self.interruption.gives_notice or self.cost.steps_repeated + self.cost.batches_repeated == 0
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """The outcome of a demo.

    Args:
        settings: how big it was.
        comparison: of the two trainings.
        interrupted: the interruptions, in order.
        steps_total: training steps of the interrupted training, repeated ones included.
        steps_undisturbed: of the other.
        accuracy: on held-out images, 0 to 1.
        versions: of the packages that matter.
    """

    settings: DemoSettings
    comparison: Comparison
    interrupted: Sequence[Interrupted]
    steps_total: int
    steps_undisturbed: int
    accuracy: float
    versions: dict[str, str]

    @property
    def success(self) -> bool:
        """Says whether all was bit-identical and no step was repeated after a notice."""
        return self.comparison.bit_identical and all(one.kept_promise for one in self.interrupted)

    def to_json(self) -> dict[str, Any]:
        """The object that ``--json`` prints."""
        costs = [one.cost for one in self.interrupted]
        return {
            "bit_identical": self.comparison.bit_identical,
            "differing": list(self.comparison.differing),
            "steps_total": self.steps_total,
            "steps_undisturbed": self.steps_undisturbed,
            "steps_repeated": [cost.steps_repeated for cost in costs],
            "validation_batches_repeated": [cost.batches_repeated for cost in costs],
            "restart_seconds": [round(cost.restart_seconds, 2) for cost in costs],
            "interruptions": [
                {
                    "signal": one.interruption.signal.name,
                    "worker": one.interruption.worker,
                    **one.done._asdict(),
                }
                for one in self.interrupted
            ],
            "test_accuracy": self.accuracy,
            **dataclasses.asdict(self.settings),
            "versions": self.versions,
        }

    def print(self, output: IO[str]) -> None:
        """Prints the table and the verdict, with lines and colours where `output` is a terminal."""
        if output.isatty():
            self._print_rich(output)
        else:
            print("\n".join(["", *_aligned([_HEADINGS, *self._rows()]), "", *self.verdict()]), file=output)

    def verdict(self) -> list[str]:
        """The lines below the table."""
        same = ", ".join(
            f"{group} {'yes' if self.comparison.same(group) else 'NO'}"
            for group in (WEIGHTS, OPTIMIZER, HISTORY)
        )
        lines = [
            f"{self.steps_total} training steps, {self.steps_undisturbed} of them needed",
            f"bit-identical to the undisturbed training: {same}",
        ]
        if self.comparison.differing:
            lines.append(f"differing: {', '.join(self.comparison.differing)}")
        return [*lines, f"test accuracy: {self.accuracy:.3f}"]

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (
                f"{one.interruption.signal.name} to worker {one.interruption.worker}",
                str(one.done),
                str(one.cost.steps_run),
                str(one.cost.steps_repeated),
                f"{one.cost.restart_seconds:.1f}",
            )
            for one in self.interrupted
        ]

    def _print_rich(self, output: IO[str]) -> None:
        from rich.console import Console
        from rich.table import Table

        table = Table()
        for number, heading in enumerate(_HEADINGS):
            table.add_column(heading, justify="right" if number > 1 else "left")
        for row in self._rows():
            table.add_row(*row)
        console = Console(file=output, highlight=False)
        console.print(table)
        for line in self.verdict():
            console.print(line, style="green" if self.success else "bold red", soft_wrap=True)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """A table in plain text: words to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if number < 2 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def versions(version_of: Callable[[str], str] = importlib.metadata.version) -> dict[str, str]:
    """Versions of what the result may depend on; packages are not imported for it.

    Args:
        version_of: gives the version of an installed package.
    """
    packages = {name: version_of(name) for name in ("tensorflow", "keras", "tensorflow-datasets")}
    return {"tf_preempt": __version__, "python": platform.python_version(), **packages}
