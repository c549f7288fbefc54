"""Lives of programs in this process.

``process.py DIRECTORY STRATEGY PROGRAM [MOMENT SIGNAL]`` lives once, as a job on a real machine does: a
notice ends the process.  It sends itself the signal at the moment of that name; a SIGTERM that comes in a
training is waited for.  What it sees is appended to ``DIRECTORY/seen``; a life that comes to its end writes
``DIRECTORY/outcome.json``.  ``process.py DIRECTORY STRATEGY all PROGRAM...`` lives undisturbed, one program
after the other; each has a directory of its own in DIRECTORY.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import signal
import sys
from typing import Any

from tests.exactness.lives import Life, Outcome, give_notice
from tests.exactness.programs import PROGRAMS
from tests.exactness.run import make_strategy, set_up


class LinesOf:
    """A list of lines that is a file."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path

    def append(self, line: str) -> None:
        with self._path.open("a") as file:
            file.write(f"{line}\n")


def interrupt_at(moment: str, name: str) -> Any:
    number = signal.Signals[name]

    def on_moment(found: str) -> None:
        if found != moment:
            return
        if number == signal.SIGKILL or moment.startswith("outside"):
            os.kill(os.getpid(), number)
        else:
            give_notice()

    return on_moment


def live(directory: pathlib.Path, strategy: Any, program: str, **how: Any) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    outcome = Outcome()
    outcome.seen = LinesOf(directory / "seen")  # type: ignore[assignment]
    life = Life(directory / "checkpoints", outcome, strategy=strategy, **how)
    life.live(PROGRAMS[program])
    outcome.seen = []
    (directory / "outcome.json").write_text(json.dumps(dataclasses.asdict(outcome)))


def main(directory: str, strategy_name: str, *words: str) -> None:
    set_up()
    strategy, root = make_strategy(strategy_name), pathlib.Path(directory)
    if words[0] == "all":
        for program in words[1:]:
            live(root / program, strategy, program)
        return
    program, *where = words
    how = {"on_moment": interrupt_at(*where)} if where else {}
    live(root, strategy, program, save_every=2, on_preemption="exit", **how)


if __name__ == "__main__":
    main(*sys.argv[1:])
