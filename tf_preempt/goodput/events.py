"""The event log of a checkpoint directory: one line of JSON per thing that happened, one file per worker.

``<directory>/events/<incarnation>-<worker>.jsonl``, each line like::

    {"v": 1, "t": 1795994195.29, "worker": 1, "incarnation": 3, "kind": "notice", "source": "SIGTERM"}

Every worker has a file to itself in every incarnation, so nobody waits for anybody.  On a local file system a
line is one ``write`` to a file opened for appending: a process that is killed leaves whole lines and at most
one torn one.  Object stores cannot append: there lines are collected and each `EventLog.flush` makes one
object more, ``00003-00001.0000.jsonl``, ``00003-00001.0001.jsonl`` and so on.  Events that tell how a life
went (start, restore, notice, commit, error, exit) flush by themselves, so that a killed process leaves them.

A log is for looking back; a full disk must not end a training.  So writing never raises for what the file
system does; it says so once and goes on.
"""

from __future__ import annotations

import collections
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable
from typing import Any

from tf_preempt import _files
from tf_preempt.errors import ConfigError, NewerFormatError

__all__ = ["EventFollower", "EventLog", "FORMAT", "read_events"]

FORMAT = 1
"""The ``v`` of the lines that this version writes, and the newest that it reads."""

_FOLDER = "events"
_FILE_NAME = re.compile(r"\d{5,}-\d{5,}(\.\d{4,})?\.jsonl")
# Rare, and what a reader needs of a life that was killed.
_FLUSHED_KINDS = frozenset({"start", "restore", "notice", "commit", "exit", "error"})
_RESERVED = frozenset({"v", "t", "worker", "incarnation", "kind"})
# Lines kept in memory while an object store cannot be reached; an hour's worth of anything sensible.
_MAX_BUFFERED_LINES = 10_000

_logger = logging.getLogger("tf_preempt")


class EventLog:
    """Writes one worker's events of one incarnation; may be used from several threads.

    Example::

        with EventLog("/data/run-7", incarnation=3, worker=1) as events:
            events.write("notice", source="SIGTERM", deadline_s=None, boundary=315)

    Args:
        directory: the checkpoint directory, local or a URL.  The file is created at the first event.
        incarnation: this life of the training program, from 0.
        worker: this worker's number, from 0.
        clock: gives the time of an event, in seconds since 1970.

    Raises:
        ConfigError: `incarnation` or `worker` is negative.
    """

    def __init__(
        self, directory: str, *, incarnation: int, worker: int, clock: Callable[[], float] = time.time
    ) -> None:
        for name, value in (("incarnation", incarnation), ("worker", worker)):
            if value < 0:
                raise ConfigError(f"{name}={value} (an argument of EventLog) must be 0 or more.")
        self._incarnation = incarnation
        self._worker = worker
        self._clock = clock
        self._lock = threading.Lock()
        self._closed = False
        self._failure_was_logged = False
        folder, name = _files.join(directory, _FOLDER), f"{incarnation:05d}-{worker:05d}"
        self._sink: _Segments | _AppendedFile = (
            _Segments(folder, name) if _files.is_url(directory) else _AppendedFile(folder, name)
        )

    def write(self, kind: str, /, **fields: Any) -> None:
        """Adds an event that happened now.  After `close` it does nothing.

        For URLs the kinds start, restore, notice, commit and exit are written out at once, with what has
        been collected before them.

        Args:
            kind: what happened, for example ``"commit"``.
            **fields: what belongs to it: numbers, strings, None, lists and dicts of these; NumPy's too, and
                anything else is written as its ``str``.

        Raises:
            ConfigError: a field is called like one that every event has (v, t, worker, incarnation, kind).
        """
        if clash := sorted(_RESERVED & fields.keys()):
            raise ConfigError(
                f"field {clash[0]!r} of event {kind!r} has a name that every event uses itself.",
                hint=f"call it something else than {', '.join(sorted(_RESERVED))}.",
            )
        event = {"v": FORMAT, "t": self._clock(), "worker": self._worker, "incarnation": self._incarnation}
        line = json.dumps({**event, "kind": kind, **fields}, default=_plain).encode() + b"\n"
        self._try(lambda: self._add(line, flush=kind in _FLUSHED_KINDS))

    def _add(self, line: bytes, *, flush: bool) -> None:
        self._sink.add(line)
        if flush:
            self._sink.flush()

    def flush(self) -> None:
        """Makes what was written visible to readers: a new object for URLs, nothing to do for files."""
        self._try(self._sink.flush)

    def close(self) -> None:
        """Flushes and lets go of the file; again is fine."""
        self._try(self._sink.flush)
        with self._lock:
            self._closed = True
            self._sink.close()

    def __enter__(self) -> EventLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _try(self, action: Callable[[], None]) -> None:
        with self._lock:
            if self._closed:
                return
            try:
                action()
            except Exception as error:  # noqa: BLE001 - TensorFlow's file errors are no OSError
                if not self._failure_was_logged:
                    _logger.warning("the event log %s misses events from here on: %s", self._sink.path, error)
                self._failure_was_logged = True


class _AppendedFile:
    """A local file that gets each line in one append."""

    def __init__(self, folder: str, name: str) -> None:
        self.path = _files.join(folder, f"{name}.jsonl")
        self._folder = folder
        self._descriptor: int | None = None
        self._ends_in_a_torn_line = False

    def add(self, line: bytes) -> None:
        if self._descriptor is None:
            self._descriptor = self._open()
        if self._ends_in_a_torn_line:
            line = b"\n" + line
        # A disk that fills up takes part of a line; the next one must not be glued to it.
        self._ends_in_a_torn_line = True
        written = os.write(self._descriptor, line)
        self._ends_in_a_torn_line = written != len(line)
        if self._ends_in_a_torn_line:
            raise OSError(f"only {written} of {len(line)} bytes could be written")

    def _open(self) -> int:
        _files.make_dirs(self._folder)
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        size = os.fstat(descriptor).st_size
        self._ends_in_a_torn_line = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        return descriptor

    def flush(self) -> None:
        pass

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class _Segments:
    """Objects in an object store, one per flush."""

    def __init__(self, folder: str, name: str) -> None:
        self.path = _files.join(folder, name)
        self._folder = folder
        self._lines: collections.deque[bytes] = collections.deque(maxlen=_MAX_BUFFERED_LINES)
        self._next_segment = 0

    def add(self, line: bytes) -> None:
        self._lines.append(line)

    def flush(self) -> None:
        if not self._lines:
            return
        _files.make_dirs(self._folder)
        # Another log of this process may have written the first ones; an object is replaced without a word.
        while _files.exists(target := f"{self.path}.{self._next_segment:04d}.jsonl"):
            self._next_segment += 1
        _files.write_atomic(target, b"".join(self._lines))
        self._lines.clear()
        self._next_segment += 1

    def close(self) -> None:
        self._lines.clear()


def read_events(directory: str, *, incarnation: int | None = None) -> list[dict[str, Any]]:
    """All events of all workers and incarnations, in the order of their times.

    Lines that are no events (a worker was killed while it wrote) are left out; one that is not the last of
    its file is mentioned in the log.

    Args:
        directory: the checkpoint directory; without an event log it has no events.
        incarnation: only the events of this one; None: of all.

    Raises:
        NewerFormatError: a line was written by a newer version of this package.
        OSError: a file cannot be read (for URLs TensorFlow's own error).
    """
    events: list[dict[str, Any]] = []
    for path in _event_files(directory, "" if incarnation is None else f"{incarnation:05d}-"):
        content = _files.read_bytes(path)
        whole, _, rest = content.rpartition(b"\n")
        events += _parse_lines(whole, path)
        last = _parse_line(rest, path)
        events += [last] if last else []
    return sorted(events, key=_time_of)


class EventFollower:
    """Gives the events of a directory as they come, for somebody who watches.

    Example::

        follower = EventFollower("/data/run-7")
        while training.is_alive():
            for event in follower.poll():
                print(event["worker"], event["kind"])

    Args:
        directory: the checkpoint directory; it and its files may appear later.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._offsets: dict[str, int] = {}

    def poll(self) -> list[dict[str, Any]]:
        """The events that have become complete since the last call, in the order of their times.

        Raises:
            NewerFormatError: a line was written by a newer version of this package.
            OSError: a file cannot be read (for URLs TensorFlow's own error).
        """
        events: list[dict[str, Any]] = []
        for path in _event_files(self._directory):
            whole, newline, _ = self._read_on(path).rpartition(b"\n")
            events += _parse_lines(whole, path)
            self._offsets[path] = self._offsets.get(path, 0) + len(whole) + len(newline)
        return sorted(events, key=_time_of)

    def _read_on(self, path: str) -> bytes:
        offset = self._offsets.get(path, 0)
        if _files.is_url(path):
            return b"" if offset else _files.read_bytes(path)  # objects do not grow
        if offset == _files.size_bytes(path):
            return b""
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read()


def _event_files(directory: str, beginning: str = "") -> list[str]:
    folder = _files.join(directory, _FOLDER)
    names = [name for name in _files.list_dir(folder) if _FILE_NAME.fullmatch(name)]
    return [_files.join(folder, name) for name in names if name.startswith(beginning)]


def _parse_lines(content: bytes, path: str) -> list[dict[str, Any]]:
    events = []
    for line in content.split(b"\n"):
        if event := _parse_line(line, path):
            events.append(event)
        elif line.strip():
            _logger.warning("left out a line of %s that is no event: %.60r", path, line)
    return events


def _parse_line(line: bytes, path: str) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    if not isinstance(event, dict) or not isinstance(event.get("v"), int):
        return None
    if event["v"] > FORMAT:
        raise NewerFormatError(
            f"{path} has an event with v={event['v']}; this version of tf_preempt reads up to v={FORMAT}.",
            hint="read it with the version of tf_preempt that wrote it, or a newer one.",
        )
    return event if isinstance(event.get("t"), int | float) and "kind" in event else None


def _time_of(event: dict[str, Any]) -> float:
    return float(event["t"])


def _plain(value: object) -> object:
    """Turns what JSON does not know into what it does: NumPy's numbers and arrays, else text."""
    to_list = getattr(value, "tolist", None)
    return to_list() if callable(to_list) else str(value)
