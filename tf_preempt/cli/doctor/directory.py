"""Whether checkpoints can be written to the directory, are seen by all tasks, and how fast that is.

The first task writes a file with a name that nobody could guess, tells the others its name when they meet,
and keeps it until they have looked.  Whatever is written here is deleted again, and so are directories that
were made for it.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tf_preempt import _files
from tf_preempt.checkpointing.directory import WriteProof, check_shared, directory_news, resolve_directory
from tf_preempt.cli.doctor.finding import Finding, Status, from_error
from tf_preempt.cli.doctor.place import Member
from tf_preempt.errors import DirectoryNotGivenError

__all__ = [
    "Speed",
    "check_shared_by_all",
    "check_speed",
    "find_directory",
    "look_for_proof",
    "measure_speed",
    "prove_writable",
    "remove_proof",
]

_SMALL_BYTES = 1024
_SMALL_COMMITS = 3
_CHUNK_BYTES = 1 << 20
_SLOW_MB_PER_S = 20.0
_SLOW_SMALL_MS = 1000.0
_ANOTHER = "choose a directory that this user can create and write files in"


def find_directory(given: str | None, environ: Mapping[str, str]) -> tuple[str | None, list[Finding]]:
    """Finds the directory as the callback does.

    Args:
        given: on the command line; None if nothing was.
        environ: environment variables.

    Returns:
        The directory, None if there is none; and what there is to say.

    Environment:
        See `resolve_directory`.
    """
    try:
        directory = resolve_directory(given, environ)
    except DirectoryNotGivenError:
        message = "none was given, so none is looked at: tf-preempt doctor DIRECTORY, or set TF_PREEMPT_DIR"
        return None, [Finding(Status.INFO, "directory", message, values={"directory": None})]
    message = directory_news(given, environ) or f"{directory}, as given"
    return directory, [Finding(Status.INFO, "directory", message, values={"directory": directory})]


def prove_writable(directory: str) -> tuple[WriteProof | None, Finding]:
    """Writes a file with an unguessable name to the directory, which is made if it is missing.

    Returns:
        The file, to be removed by the caller, None if it could not be written; and what there is to say: a
        directory that had to be made is neither good nor bad, as it is right for a new training only.
    """
    parent = _existing_parent(directory)
    values = {"directory": directory, "existed": None if _files.is_url(directory) else parent is None}
    file = parent or directory
    if not _files.is_url(directory) and os.path.exists(file) and not os.path.isdir(file):
        message = f"{directory} cannot be a directory: {file} is a file"
        return None, Finding(Status.ERROR, "writable", message, f"{_ANOTHER}, or move that file away", values)
    try:
        proof = WriteProof(directory)
    except Exception as error:  # noqa: BLE001 - a URL's errors are TensorFlow's
        finding = from_error("writable", error, hint=_ANOTHER)
        return None, dataclasses.replace(finding, values=values)
    if parent is None:
        return proof, Finding(Status.OK, "writable", f"{directory} can be written to", values=values)
    message = f"{directory} does not exist yet; it would be made in {parent}, where this user can write"
    if os.path.dirname(os.path.abspath(directory)) == parent:
        hint = "right for a new training; one that is to go on has its directory: look for a slip in the path"
        return proof, Finding(Status.INFO, "writable", message, hint, values)
    missing = os.path.dirname(os.path.abspath(directory))
    hint = (
        f"look for a slip in the path, as {missing} does not exist either; if it is right: mkdir -p {missing}"
    )
    return proof, Finding(Status.WARNING, "writable", message, hint, values)


def _existing_parent(directory: str) -> str | None:
    """The nearest directory above one that does not exist; None if it exists, or is in an object store."""
    if _files.is_url(directory) or os.path.exists(directory):
        return None
    parent = os.path.dirname(os.path.abspath(directory))
    while not os.path.exists(parent):
        parent = os.path.dirname(parent)
    return parent


def remove_proof(proof: WriteProof, *, also_directory: bool = False) -> list[Finding]:
    """Deletes a file of `prove_writable`; says so where files can be made, but not deleted.

    Args:
        proof: the file.
        also_directory: whether directories that were made for it go, too.
    """
    try:
        proof.remove(also_directory=also_directory)
    except Exception as error:  # noqa: BLE001 - a URL's errors are TensorFlow's
        hint = f"let this user delete files there, too: old checkpoints are deleted; then delete {proof.name}"
        return [from_error("writable", error, hint=hint)]
    return []


@dataclasses.dataclass(frozen=True, kw_only=True)
class Speed:
    """How fast a directory takes a checkpoint.

    Args:
        size_mb: how much was written, in MB (10^6 bytes).
        large_s: how long that and the flush to disk took, in seconds.
        small_ms: how long an atomic write of a small file took, in milliseconds; the median of a few.
    """

    size_mb: int
    large_s: float
    small_ms: float

    @property
    def mb_per_s(self) -> float:
        """MB per second of the large write."""
        return self.size_mb / max(self.large_s, 1e-9)


def measure_speed(directory: str, size_mb: int, *, clock: Callable[[], float] = time.perf_counter) -> Speed:
    """Writes what a checkpoint consists of, one large and a few small files, and deletes it.

    Args:
        directory: exists and can be written to; local or a URL.
        size_mb: how much to write, in MB.
        clock: seconds.

    Raises:
        OSError: something could not be written (for URLs TensorFlow's own error).
    """
    path = _files.join(directory, f".tf_preempt-doctor-{uuid.uuid4().hex}")
    try:
        started = clock()
        _write_large(path, size_mb * 1_000_000)
        large_s = clock() - started
        small_ms = []
        for _ in range(_SMALL_COMMITS):
            started = clock()
            _files.write_atomic(f"{path}.json", b"x" * _SMALL_BYTES)
            small_ms.append(1000 * (clock() - started))
    finally:
        _files.remove(path)
        _files.remove(f"{path}.json")
    return Speed(size_mb=size_mb, large_s=large_s, small_ms=statistics.median(small_ms))


def _write_large(path: str, size_bytes: int) -> None:
    chunk = os.urandom(_CHUNK_BYTES)  # nothing that a file system could compress
    chunks, rest = divmod(size_bytes, _CHUNK_BYTES)
    if _files.is_url(path):
        _files.write_atomic(path, chunk * chunks + chunk[:rest])
        return
    with open(path, "wb") as file:
        for _ in range(chunks):
            file.write(chunk)
        file.write(chunk[:rest])
        file.flush()
        os.fsync(file.fileno())


def check_speed(speed: Speed) -> Finding:
    """Judges how fast a directory is."""
    message = (
        f"{speed.size_mb} MB written and flushed in {speed.large_s:.2f} s ({speed.mb_per_s:.0f} MB/s), "
        f"a small file committed in {speed.small_ms:.1f} ms"
    )
    values = {
        "size_mb": speed.size_mb,
        "seconds": round(speed.large_s, 4),
        "mb_per_s": round(speed.mb_per_s, 1),
        "small_ms": round(speed.small_ms, 2),
    }
    if speed.mb_per_s >= _SLOW_MB_PER_S and speed.small_ms <= _SLOW_SMALL_MS:
        return Finding(Status.OK, "speed", message, values=values)
    hint = (
        "a save of a large model may not fit into a notice: use a faster file system (scratch, a parallel "
        "file system, a bucket in the same region), and look whether somebody else is writing to this one"
    )
    return Finding(Status.WARNING, "speed", f"{message}: that is slow.", hint, values)


def look_for_proof(
    directory: str | None, proof_name: object, *, rank: int, patience_s: float = 5.0
) -> Finding:
    """Looks for the first task's file, in a task that is not the first.

    Args:
        directory: as this task names it; None if it has none that it can use.
        proof_name: name of the file, as the first task told it; None if it has not.
        rank: of this task.
        patience_s: see `check_shared`.
    """
    if directory is None or not isinstance(proof_name, str):
        who = "this task has" if directory is None else "the first task told of"
        message = f"not checked, as {who} no directory that can be written to"
        return Finding(Status.INFO, "shared", message, values={"shared": None})
    try:
        check_shared(directory, os.path.basename(proof_name), worker=rank, patience_s=patience_s)
    except Exception as error:  # noqa: BLE001 - a URL's errors are TensorFlow's
        finding = from_error("shared", error, hint=_ANOTHER)
        return dataclasses.replace(finding, values={"shared": False})
    message = f"{directory}: the first task's file is seen here"
    return Finding(Status.OK, "shared", message, values={"shared": True})


def check_shared_by_all(
    members: Sequence[Member], reports: Mapping[int, Mapping[str, Any]], directory: str
) -> Finding:
    """Says in the first task whether all others have seen its file.

    Args:
        members: all tasks.
        reports: what the others have said, by rank; ``shared`` is True, False or None.
        directory: as the first task names it.
    """
    others = range(1, len(members))
    blind = [rank for rank in others if reports.get(rank, {}).get("shared") is False]
    silent = [rank for rank in others if reports.get(rank, {}).get("shared") is None]
    values = {"shared": not blind if not silent else None, "not_seen_by": blind, "unknown_of": silent}
    if blind:
        return Finding(
            Status.ERROR,
            "shared",
            f"{_names(members, blind)} do(es) not see what this task wrote to {directory}.",
            "all workers need the same directory: a network file system, or a bucket (gs://...)",
            values,
        )
    if silent:
        return Finding(
            Status.WARNING,
            "shared",
            f"Whether {_names(members, silent)} see(s) {directory} is not known.",
            "mend what the other lines say about these tasks and the directory there, and run this again",
            values,
        )
    message = f"all {len(members)} tasks see what the first one writes to {directory}"
    return Finding(Status.OK, "shared", message, values=values)


def _names(members: Sequence[Member], ranks: Sequence[int], limit: int = 4) -> str:
    shown = ", ".join(f"{members[rank].name} on {members[rank].host}" for rank in ranks[:limit])
    return shown + (f" and {len(ranks) - limit} more" if len(ranks) > limit else "")
