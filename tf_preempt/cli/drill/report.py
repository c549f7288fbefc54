"""What a drill has found, for the terminal: in colours where there is one."""

from __future__ import annotations

from typing import IO

from tf_preempt.testing.drill.outcome import Outcome, Verdict

__all__ = ["print_report"]


def print_report(outcome: Outcome, output: IO[str]) -> None:
    """Prints the report.

    Args:
        outcome: of the drill.
        output: a text file.
    """
    lines = outcome.lines()
    if not output.isatty():
        print("\n".join(["", *lines]), file=output, flush=True)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(file=output, highlight=False)
    verdict = Text(lines[0], style="bold green" if outcome.verdict is Verdict.IDENTICAL else "bold red")
    for line in (Text(), verdict, *map(Text, lines[1:])):
        console.print(line, soft_wrap=True)
