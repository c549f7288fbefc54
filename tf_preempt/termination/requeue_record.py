"""How the runs of a requeued job ended, kept in the checkpoint directory, as Slurm counts restarts only.

``<directory>/requeues.json``::

    {"format": 1, "job": "12", "requeues": 3, "lives": [{"run": 1, "incarnation": 2, "progress": true}]}

A directory that another job goes on with begins to count anew: whoever submits a job has had a look.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from typing import Any

from tf_preempt import _files

__all__ = ["FILE_NAME", "History", "RequeueRecord"]

_log = logging.getLogger("tf_preempt")

FILE_NAME = "requeues.json"
FORMAT = 1
_LIVES_KEPT = 50


@dataclasses.dataclass(frozen=True, kw_only=True)
class History:
    """What counts of the past.

    Args:
        requeues: how often the job was requeued by this package.
        no_progress: how many lives in a row, the newest among them, have made no progress; lives that had no
            chance to are passed over.
    """

    requeues: int = 0
    no_progress: int = 0


class RequeueRecord:
    """Reads and writes the record of one job; a file that cannot be read or written costs a warning only.

    Args:
        directory: the checkpoint directory, local or a URL.
        job: what identifies the job.
    """

    def __init__(self, directory: str, job: str) -> None:
        self._path = _files.join(directory, FILE_NAME)
        self._job = job

    def add(self, *, run: int = 0, incarnation: int | None, made_progress: bool | None) -> History:
        """Notes how a life of the program ends; several workers may do it.

        Args:
            run: how often the job was restarted before this run of it.
            incarnation: number of that life; None: it ended before it had one.
            made_progress: None: it had no chance to make any.

        Returns:
            The history, with this life.
        """
        record = self._read()
        which = {"run": run, "incarnation": incarnation}
        lives = [life for life in record["lives"] if {name: life[name] for name in which} != which]
        lives.append({**which, "progress": made_progress})
        record["lives"] = lives[-_LIVES_KEPT:]
        self._write(record)
        return History(requeues=record["requeues"], no_progress=_no_progress(record["lives"]))

    def count_requeue(self) -> None:
        """Notes that the job was requeued."""
        record = self._read()
        record["requeues"] += 1
        self._write(record)

    def _read(self) -> dict[str, Any]:
        afresh: dict[str, Any] = {"format": FORMAT, "job": self._job, "requeues": 0, "lives": []}
        try:
            if not _files.exists(self._path):
                return afresh
            record = json.loads(_files.read_bytes(self._path))
            if record["format"] > FORMAT:
                raise ValueError(f"it has format {record['format']}, which is newer than {FORMAT}")
            if record["job"] != self._job:
                return afresh
            requeues = int(record["requeues"])
            names = ("run", "incarnation", "progress")
            lives = [{name: life[name] for name in names} for life in record["lives"]]
        except Exception as error:  # noqa: BLE001 - a URL's errors are TensorFlow's; leaving must go on
            _log.warning("%s cannot be read, and requeues are counted anew: %s", self._path, error)
            return afresh
        return {**afresh, "requeues": requeues, "lives": lives}

    def _write(self, record: dict[str, Any]) -> None:
        try:
            _files.write_atomic(self._path, json.dumps(record).encode() + b"\n")
        except Exception as error:  # noqa: BLE001 - as above
            _log.warning("%s cannot be written, so that this run is not counted: %s", self._path, error)


def _no_progress(lives: list[dict[str, Any]]) -> int:
    count = 0
    for life in reversed(lives):
        if life["progress"]:
            break
        count += life["progress"] is False
    return count
