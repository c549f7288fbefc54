"""Tells what happens, line by line with the seconds since the start."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import IO, Any

__all__ = ["Story", "describe_event", "describe_log_line"]

_LOG_PREFIX = "tf-preempt: "
# Styles of rich, where there is a terminal.
_STYLES = {"good": "green", "bad": "bold red", "signal": "bold yellow", "head": "bold", "plain": ""}


class Story:
    """Prints the lines, in colours where they go to a terminal.

    Args:
        output: a text file.
        clock: monotonic time in seconds.
    """

    def __init__(self, output: IO[str], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._output = output
        self._clock = clock
        self._start = clock()
        self._console: Any = None
        if output.isatty():
            from rich.console import Console

            self._console = Console(file=output, highlight=False)

    def tell(self, text: str, style: str = "plain") -> None:
        """Prints one line.

        Args:
            text: what happened.
            style: ``"plain"``, ``"head"``, ``"signal"``, ``"good"`` or ``"bad"``.
        """
        stamp = f"{self._clock() - self._start:6.1f} s  "
        if self._console is None:
            print(f"{stamp}{text}", file=self._output, flush=True)
            return
        from rich.text import Text

        self._console.print(Text.assemble((stamp, "dim"), (text, _STYLES[style])), soft_wrap=True)


def describe_event(event: Mapping[str, Any]) -> str | None:
    """What an event of the checkpoint directory means; None: not worth telling.

    What all workers write alike is told once, as the chief has it.
    """
    kind, worker = event["kind"], event["worker"]
    if kind == "notice":
        return f"worker {worker} noticed {event.get('source')}"
    if kind == "peer_lost":
        return f"worker {worker} has lost another worker"
    if kind == "exit":
        return f"worker {worker} leaves with exit status {event.get('code')}"
    if worker != 0:
        return None
    if kind == "start":
        return f"incarnation {event['incarnation']} of {event.get('workers')} worker(s) has begun"
    if kind == "restore":
        return f"resumed {_place(event)} (step {event.get('step')} in all), from {event.get('checkpoint')}"
    if kind == "agreed":
        return f"all workers agreed to save {_place(event)} (step {event.get('global_step')} in all)"
    if kind == "commit":
        return f"{event.get('checkpoint')} is committed, with step {event.get('step')}"
    return f"finished at step {event.get('step')}" if kind == "finish" else None


def _place(event: Mapping[str, Any]) -> str:
    """A resume point in words; its numbers count what is done."""
    phase, step, epoch = event.get("phase"), event.get("step_in_epoch", event.get("step")), event.get("epoch")
    if phase == "finished":
        return "at the end of the training"
    if not isinstance(epoch, int):  # a custom loop
        return f"after {step} steps"
    if phase == "validate":
        return f"after {step} batches of the validation of epoch {epoch + 1}"
    return f"after {step} steps of epoch {epoch + 1}"


def describe_log_line(line: str) -> str | None:
    """What ``tf-preempt run`` or ``launch`` said; None: the line is from somebody else."""
    return line.removeprefix(_LOG_PREFIX) if line.startswith(_LOG_PREFIX) else None
