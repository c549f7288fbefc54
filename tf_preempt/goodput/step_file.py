"""The small file through which a training program tells its step to somebody who wants to disturb it.

Commits are too rare to aim by, and a step of a small model takes a millisecond.  So each worker overwrites
one short line in a file of its own before each step, if ``TF_PREEMPT_STEP_FILE`` says so; else nothing is
written.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["STEP_FILE_VARIABLE", "Place", "StepFile", "read_places"]

STEP_FILE_VARIABLE = "TF_PREEMPT_STEP_FILE"
"""The environment variable that names the files, each with a dot and the worker's number behind it."""

# One length for all lines, so that none is ever read with the end of a longer one.
_LINE = "{:10d} {:6d} {:16d}\n"
_LINE_BYTES = len(_LINE.format(0, 0, 0))
_WORKER = re.compile(r"\d+")

_logger = logging.getLogger("tf_preempt")


class Place(NamedTuple):
    """Where a worker is."""

    pid: int
    """Its process id."""
    fit: int
    """Ordinal of the training in the program."""
    step: int
    """Training steps that are done."""


class StepFile:
    """The writing end, in a worker.  A file that cannot be written is said once, and ends no training.

    Args:
        path: as the variable has it.
        worker: this worker's number.
        fit: ordinal of the training in the program.
    """

    def __init__(self, path: str, *, worker: int, fit: int) -> None:
        self._path = f"{path}.{worker}"
        self._fit = fit
        self._descriptor: int | None = None
        try:
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            self._give_up(error)

    @classmethod
    def from_environ(cls, environ: Mapping[str, str], *, worker: int, fit: int) -> StepFile | None:
        """The file that somebody asked for; None when nobody did.

        Args:
            environ: usually ``os.environ``.
            worker: this worker's number.
            fit: ordinal of the training in the program.

        Environment:
            TF_PREEMPT_STEP_FILE: the path; empty counts as not set.
        """
        path = environ.get(STEP_FILE_VARIABLE)
        return cls(path, worker=worker, fit=fit) if path else None

    def write(self, step: int) -> None:
        """Says how many training steps are done; it can be read when this returns."""
        if self._descriptor is None:
            return
        try:
            os.pwrite(self._descriptor, _LINE.format(os.getpid(), self._fit, step).encode(), 0)
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Lets go of the file; again is fine."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _give_up(self, error: OSError) -> None:
        _logger.warning(
            "%s (from %s) cannot be written, so nobody learns which step this is: %s",
            self._path,
            STEP_FILE_VARIABLE,
            error,
        )
        self.close()


def read_places(path: str) -> dict[int, Place]:
    """Where each worker was last; workers that have not written yet are left out.

    Args:
        path: as the variable has it.

    Raises:
        OSError: a file is there and cannot be read.
    """
    folder, name = os.path.split(path)
    places = {}
    for found in os.listdir(folder or "."):
        worker = found.removeprefix(f"{name}.")
        if worker == found or not _WORKER.fullmatch(worker):
            continue
        with open(os.path.join(folder, found), "rb") as file:
            line = file.read()
        if len(line) == _LINE_BYTES:
            pid, fit, step = map(int, line.split())
            places[int(worker)] = Place(pid, fit, step)
    return places
