"""What each worker has done, batch by batch: one line of JSON per batch, one file per worker.

A line is one ``write`` to a file opened for appending, so that a worker which is killed leaves whole lines.
Two incarnations of a worker write to the same file and are told apart by their process ids.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import time
from collections.abc import Callable
from typing import NamedTuple

from tf_preempt import _files

__all__ = [
    "DIRECTORY_VARIABLE",
    "TRAIN",
    "VALIDATE",
    "Position",
    "ProgressFile",
    "ProgressFollower",
    "Record",
]

DIRECTORY_VARIABLE = "TF_PREEMPT_DEMO_PROGRESS"
"""The environment variable that names the folder of the files."""
TRAIN = "train"
VALIDATE = "validate"

_FILE_NAME = re.compile(r"worker-(\d+)\.jsonl")


class Position(NamedTuple):
    """A batch of a training; the earlier the smaller (``"train"`` comes before ``"validate"``).

    Args:
        epoch: from 0.
        phase: `TRAIN` or `VALIDATE`.
        step: in that phase of that epoch, from 0.
    """

    epoch: int
    phase: str
    step: int

    def __str__(self) -> str:
        what = "step" if self.phase == TRAIN else "validation batch"
        return f"epoch {self.epoch + 1}, {what} {self.step + 1}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    """A batch that a worker has finished.

    Args:
        worker: its number.
        pid: its process id.
        t: when, in seconds since 1970.
        position: which batch.
    """

    worker: int
    pid: int
    t: float
    position: Position


class ProgressFile:
    """The writing end, in a worker.

    Args:
        directory: the folder of the files.
        worker: this worker's number.
        clock: gives the time in seconds since 1970.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, directory: str, worker: int, *, clock: Callable[[], float] = time.time) -> None:
        path = os.path.join(directory, f"worker-{worker}.jsonl")
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._clock = clock

    def add(self, position: Position) -> None:
        """Notes that a batch is done; it can be read when this returns.

        Raises:
            OSError: the disk is full.
        """
        line = json.dumps([os.getpid(), self._clock(), *position]) + "\n"
        os.write(self._descriptor, line.encode())

    def close(self) -> None:
        """Lets go of the file."""
        os.close(self._descriptor)


class ProgressFollower:
    """The reading end: gives the records of all workers as they come.

    Args:
        directory: the folder of the files; it and they may appear later.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._offsets: dict[str, int] = {}

    def poll(self) -> list[Record]:
        """The records that have come since the last call, in the order of their times.

        Raises:
            OSError: a file cannot be read.
        """
        records: list[Record] = []
        for name in _files.list_dir(self._directory):
            if match := _FILE_NAME.fullmatch(name):
                lines = self._read_on(os.path.join(self._directory, name))
                records += [_parse(line, int(match[1])) for line in lines]
        return sorted(records, key=lambda record: record.t)

    def _read_on(self, path: str) -> list[bytes]:
        offset = self._offsets.get(path, 0)
        with open(path, "rb") as file:
            file.seek(offset)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._offsets[path] = offset + len(whole) + len(newline)
        return whole.splitlines()


def _parse(line: bytes, worker: int) -> Record:
    pid, t, epoch, phase, step = json.loads(line)
    return Record(worker=worker, pid=pid, t=t, position=Position(epoch, phase, step))
