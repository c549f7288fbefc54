"""The small file through which a training program tells its supervisor how far it has come.

The supervisor names the file in ``TF_PREEMPT_STATUS_FILE``; the chief rewrites it after restoring and after
each commit.  An exit status alone cannot tell a run that is preempted every hour from one that crashes at the
same step for ever; the two steps in here can.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from tf_preempt import _files
from tf_preempt.errors import CheckpointFormatError, ConfigError, DirectoryNotWritableError

__all__ = ["FORMAT", "STATUS_FILE_VARIABLE", "Status", "StatusFile"]

STATUS_FILE_VARIABLE = "TF_PREEMPT_STATUS_FILE"
"""The environment variable that names the file."""
FORMAT = 1
"""The format that this version writes, and the newest that it reads."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Status:
    """How far one incarnation of a training program has come.

    Args:
        incarnation: which life of the program it is, from 0.
        restored_step: the global step it started from; None: from the beginning.
        committed_step: the newest global step that a committed checkpoint holds; None: there is none.
        commits: how many checkpoints this incarnation has committed.
        reason: why the last one was made, for people to read; None: there was none.
        format: version of the file's format.

    Raises:
        ConfigError: a number is negative or not an integer, or `reason` is no text.
    """

    incarnation: int
    restored_step: int | None = None
    committed_step: int | None = None
    commits: int = 0
    reason: str | None = None
    format: int = FORMAT

    def __post_init__(self) -> None:
        for name in ("format", "incarnation", "commits", "restored_step", "committed_step"):
            value = getattr(self, name)
            if value is None and name.endswith("_step"):
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise ConfigError(f"{name}={value!r} (an argument of Status) must be an integer, 0 or more.")
        if self.reason is not None and not isinstance(self.reason, str):
            raise ConfigError(f"reason={self.reason!r} (an argument of Status) must be text or None.")


class StatusFile:
    """Reads and writes a `Status` at a path, always a whole one.

    Args:
        path: the file; its directory must exist.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> StatusFile | None:
        """The file that the supervisor asked for; None when there is no supervisor.

        Args:
            environ: usually ``os.environ``.

        Environment:
            TF_PREEMPT_STATUS_FILE: the path; empty counts as not set.
        """
        path = environ.get(STATUS_FILE_VARIABLE)
        return cls(path) if path else None

    def write(self, status: Status) -> None:
        """Replaces the file's content in one step.

        Raises:
            DirectoryNotWritableError: the file cannot be written; what was there is untouched.
        """
        try:
            _files.write_atomic(self.path, json.dumps(dataclasses.asdict(status)).encode() + b"\n")
        except OSError as error:
            raise DirectoryNotWritableError(
                f"the status file {self.path!r} (from {STATUS_FILE_VARIABLE}) cannot be written: {error}",
                hint="name a file in a directory that exists and is writable, or unset the variable.",
            ) from error

    def read(self) -> Status | None:
        """What the file says; None when it does not exist.

        Raises:
            CheckpointFormatError: the file was written by a newer version of this package, or is no status.
            OSError: it is there and cannot be read.
        """
        try:
            content = _files.read_bytes(self.path)
        except FileNotFoundError:
            return None
        try:
            return _parse(json.loads(content))
        except (ValueError, TypeError) as error:
            raise CheckpointFormatError(
                f"the status file {self.path!r} cannot be understood: {error}",
                hint="use the same version of tf_preempt for the supervisor and the training program.",
            ) from error


def _parse(fields: Any) -> Status:
    """Checks the format first: a newer one may have any fields.

    Raises:
        ValueError: it is no status or a newer one; TypeError: fields are missing or unknown.
    """
    if not isinstance(fields, dict) or not isinstance(fields.get("format"), int):
        raise ValueError("it is no JSON object with a format number")
    if fields["format"] > FORMAT:
        raise ValueError(f"it has format {fields['format']}, and this version reads up to {FORMAT}")
    return Status(**fields)
