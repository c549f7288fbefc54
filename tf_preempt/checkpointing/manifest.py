"""The manifest: the one file whose appearance makes a checkpoint exist.

A checkpoint is several files written by several workers.  None of them counts until the chief has written
``ckpt-<number>.manifest.json``, last and atomically; a reader takes the newest manifest whose files are all
there in the right size and whose small files have the right checksum.  TensorFlow itself checks a CRC-32C
per tensor when it restores, so the large data files are not read twice.

This module imports no TensorFlow: listing and verifying local directories is instant.
"""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

from tf_preempt import _files
from tf_preempt.errors import CheckpointFormatError, NewerFormatError

FORMAT = 1
SET_ASIDE = "set-aside"
_MANIFEST = re.compile(r"^(?P<name>.+)-(?P<number>\d+)\.manifest\.json$")
_NUMBERED = re.compile(r"-(\d+)(?:[._]|$)")
_INCARNATION = re.compile(r"^(\d+)-(\d+)\b")
_SMALL_BYTES = 1 << 20
_INTEGERS = ("number", "step", "incarnation", "workers")
_TEXTS = ("prefix", "reason", "written")
_OBJECTS = ("resume", "versions")
_LISTS = ("variables",)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileRecord:
    """One file of a checkpoint.

    Args:
        name: path relative to the checkpoint directory, with ``/``.
        bytes: its size.
        crc32: eight hexadecimal digits for indices and small files, None for large data files, which
            TensorFlow checks when it restores.
    """

    name: str
    bytes: int
    crc32: str | None = None

    @classmethod
    def of(cls, directory: str, name: str) -> FileRecord:
        """Measures a file that has been written.

        Raises:
            OSError: it is not there.
        """
        path = _files.join(directory, name)
        size = _files.size_bytes(path)
        # TensorFlow reads an index with flipped bits without a word.
        is_checked = size <= _SMALL_BYTES or name.endswith(".index")
        return cls(name=name, bytes=size, crc32=_files.crc32_hex(path) if is_checked else None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a committed checkpoint is.

    Args:
        prefix: name of the TensorFlow checkpoint in the directory, e.g. ``"ckpt-7"``.
        number: its number; later commits have larger ones, and none is used twice.
        step: training steps done, over all epochs.
        incarnation: which life of the program wrote it.
        resume: the resume point, as its writer defines it.
        workers: how many workers wrote parts.
        reason: why it was made, for people.
        written: RFC 3339 time of the commit.
        seconds: how long the save took, from its start to the commit.
        versions: of the packages that wrote it.
        variables: path, shape and dtype of each variable, to tell another model from this one.
        files: all files, of all workers.
    """

    prefix: str
    number: int
    step: int
    incarnation: int
    resume: dict[str, Any]
    workers: int
    reason: str
    written: str
    seconds: float
    versions: dict[str, str]
    variables: list[list[Any]] = dataclasses.field(default_factory=list)
    files: list[FileRecord] = dataclasses.field(default_factory=list)

    @property
    def name(self) -> str:
        """Name of the manifest's own file."""
        return f"{self.prefix}.manifest.json"

    def to_bytes(self) -> bytes:
        """The manifest as the content of its file."""
        content = {"format": FORMAT, **dataclasses.asdict(self)}
        return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Damaged:
    """A manifest, or a checkpoint with one, that cannot be used."""

    name: str
    problem: str


def read_manifest(directory: str, name: str) -> Manifest:
    """Reads one manifest file.

    Raises:
        NewerFormatError: it is of a newer format.
        CheckpointFormatError: it is no manifest.
        OSError: it cannot be read (for URLs TensorFlow's own error).
    """
    path = _files.join(directory, name)
    try:
        content = json.loads(_files.read_bytes(path))
        written_format = content.pop("format")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointFormatError(f"{path} is not a manifest: {error}") from error
    if written_format != FORMAT:
        raise NewerFormatError(
            f"{path} has format {written_format!r}; this version of tf_preempt reads format {FORMAT}. "
            "Nothing was touched.",
            hint="upgrade tf_preempt, or use another directory",
        )
    try:
        files = [FileRecord(**record) for record in content.pop("files")]
        manifest = Manifest(files=files, **content)
    except (KeyError, TypeError) as error:
        raise CheckpointFormatError(f"{path} is not a manifest: {error}") from error
    if problem := _implausible(manifest, name):
        raise CheckpointFormatError(f"{path} is not a manifest: {problem}")
    return manifest


def _implausible(manifest: Manifest, name: str) -> str | None:
    """What a manifest's writer would not have written; files are deleted by the names that it holds."""
    found: dict[str, Any] = vars(manifest)
    for fields, kind in ((_INTEGERS, int), (_TEXTS, str), (_OBJECTS, dict), (_LISTS, list)):
        for field in fields:
            if not isinstance(found[field], kind) or isinstance(found[field], bool):
                return f"{field} is {found[field]!r}"
    if manifest.name != name:
        return f"it belongs to {manifest.prefix!r}"
    for record in map(vars, manifest.files):
        if not isinstance(record["name"], str) or not isinstance(record["bytes"], int):
            return f"it holds the file record {record}"
        if record["name"].startswith("/") or ".." in record["name"].split("/"):
            return f"it names the file {record['name']!r}, which is outside the directory"
    return None


def manifest_names(directory: str) -> list[tuple[int, str]]:
    """Numbers and names of all manifests in a directory, newest first."""
    found = []
    for name in _files.list_dir(directory):
        match = _MANIFEST.match(name)
        if match and not name.startswith("."):
            found.append((int(match["number"]), name))
    return sorted(found, reverse=True)


def problem_with(directory: str, manifest: Manifest) -> str | None:
    """What is wrong with a checkpoint's files; None when they are as the manifest says.

    Raises:
        OSError: a file is there and cannot be read, or has gone meanwhile (for URLs TensorFlow's own error).
    """
    for record in manifest.files:
        path = _files.join(directory, *record.name.split("/"))
        if not _files.exists(path):
            return f"{record.name} is missing"
        size = _files.size_bytes(path)
        if size != record.bytes:
            return f"{record.name} has {size} bytes, its manifest says {record.bytes}"
        if record.crc32 is not None and _files.crc32_hex(path) != record.crc32:
            return f"{record.name} does not have the checksum {record.crc32} of its manifest"
    return None


def readable_manifests(directory: str) -> tuple[list[Manifest], list[Damaged]]:
    """All manifests that can be read, newest first, and those that cannot.

    Raises:
        NewerFormatError: one is of a newer format: then nothing may be touched.
        OSError: the directory or one of them cannot be read (for URLs TensorFlow's own error).
    """
    good: list[Manifest] = []
    damaged: list[Damaged] = []
    for _, name in manifest_names(directory):
        try:
            good.append(read_manifest(directory, name))
        except NewerFormatError:  # no damage
            raise
        except CheckpointFormatError as error:
            damaged.append(Damaged(name=name, problem=str(error)))
    # Where a user's save_fn chose the name, its number says nothing about when that was.
    good.sort(key=lambda manifest: manifest.number, reverse=True)
    return good, damaged


def committed_in(directory: str, incarnation: int) -> bool:
    """Says whether a life of the program has committed a step.

    Raises:
        NewerFormatError, OSError: as `readable_manifests`.
    """
    good, _ = readable_manifests(directory)
    return any(manifest.incarnation == incarnation and manifest.step > 0 for manifest in good)


def set_aside(directory: str, *, prefix: str) -> None:
    """Moves a damaged checkpoint with all its files out of the way, for a look.

    Raises:
        OSError: a file could not be moved (for URLs TensorFlow's own error).
    """
    target = _files.join(directory, SET_ASIDE)
    _files.make_dirs(target)
    for name in _files.list_dir(directory):
        if name.startswith(f"{prefix}."):
            destination = _files.join(target, name)
            if _files.exists(destination):
                _files.remove_tree(destination)
                _files.remove(destination)
            _files.move(_files.join(directory, name), destination)


def next_number(directory: str) -> int:
    """The first checkpoint number that nothing in the directory has ever used."""
    used = [0]
    for place in (directory, _files.join(directory, SET_ASIDE)):
        for name in _files.list_dir(place):
            used += [int(match) for match in _NUMBERED.findall(name)]
    return max(used) + 1


def next_incarnation(directory: str) -> int:
    """The number of the life of the program that begins now: 0 in a new directory.

    Raises:
        NewerFormatError: a manifest is of a newer format.
        OSError: the directory or a manifest cannot be read (for URLs TensorFlow's own error).
    """
    seen = [-1]
    for name in _files.list_dir(_files.join(directory, "events")):
        match = _INCARNATION.match(name)
        if match:
            seen.append(int(match[1]))
    for manifest in readable_manifests(directory)[0]:
        seen.append(manifest.incarnation)
    return max(seen) + 1
