"""Commits in the background: workers hand in their files, the chief writes the manifest.

The main thread only writes its files and goes on; a keyed answer per checkpoint tells who waits for it
whether it exists now.  One daemon thread per worker does this in order.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import logging
import queue
import threading
import time
from collections.abc import Callable

from tf_preempt.checkpointing.committer import Committer, SaveRecord, decode_files, encode_files
from tf_preempt.checkpointing.key_value import KeyValueStore
from tf_preempt.checkpointing.manifest import FileRecord, Manifest
from tf_preempt.checkpointing.startup import Cluster
from tf_preempt.errors import CheckpointWriteError, CoordinationError

_log = logging.getLogger("tf_preempt")
_COMMITTED = "committed"
_FAILED = "failed: "
# What the chief may take from the last part to its answer: it writes the manifest and deletes what is old.
_ANSWER_MARGIN_S = 30.0


class PendingCommit:
    """A checkpoint whose files this worker has written.

    Args:
        number: of the checkpoint.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self._done = threading.Event()
        self._error: Exception | None = None
        self._surfaced = False

    def settle(self, error: Exception | None = None) -> None:
        """Says how it ended."""
        self._error = error
        self._done.set()

    def wait(self, timeout_s: float) -> None:
        """Waits until the checkpoint is committed.

        Raises:
            CheckpointWriteError: it could not be committed, or not in time.
            CoordinationError: it was not, because another worker is lost.
        """
        if not self._done.wait(timeout_s):
            raise CheckpointWriteError(f"Checkpoint {self.number} was not committed within {timeout_s:g} s.")
        if self._error is not None:
            self._surfaced = True
            raise _surfaced(self._error, f"Checkpoint {self.number} was not committed") from self._error

    def take_error(self) -> Exception | None:
        """The error with which it ended, unless somebody has seen it already."""
        if self._surfaced:
            return None
        self._surfaced = True
        return self._error


def _surfaced(error: Exception, what: str) -> Exception:
    """The error that the main thread sees: a lost worker means a restart, all else a failed save."""
    kind = CoordinationError if isinstance(error, CoordinationError) else CheckpointWriteError
    return kind(f"{what}: {error}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Task:
    pending: PendingCommit
    files: list[FileRecord]
    save: SaveRecord | None  # the chief's
    failure: Exception | None = None  # this worker could not write its files


class CommitThread:
    """Takes saves and makes commits of them.

    Args:
        committer: of the checkpoint directory.
        store: shared by all workers.
        cluster: who takes part.
        prefix: for the keys.
        incarnation: of this life of the program.
        part_timeout_s: how long the chief waits for the parts of all other workers together, in seconds; the
            others wait half a minute longer for its answer.
        on_commit: called in the thread, on the chief, after each commit.
        on_end: called in the thread, on every worker, with the number of each checkpoint that was handed in,
            and whether it is committed.
        clock: monotonic seconds.
        wall_clock: seconds since the epoch.
    """

    def __init__(
        self,
        committer: Committer,
        store: KeyValueStore,
        cluster: Cluster,
        *,
        prefix: str,
        incarnation: int,
        part_timeout_s: float = 120.0,
        on_commit: Callable[[Manifest], None] = lambda _: None,
        on_end: Callable[[int, bool], None] = lambda _number, _is_committed: None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._committer = committer
        self._store = store
        self._cluster = cluster
        self._prefix = prefix
        self._incarnation = incarnation
        self._part_timeout_s = part_timeout_s
        self._on_commit = on_commit
        self._on_end = on_end
        self._clock = clock
        self._wall_clock = wall_clock
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._failed: collections.deque[PendingCommit] = collections.deque()
        self._thread = threading.Thread(target=self._run, name="tf_preempt-commit", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def hand_in(self, number: int, files: list[FileRecord], save: SaveRecord | None) -> PendingCommit:
        """Hands in this worker's files of a checkpoint; returns at once.

        Args:
            number: of the checkpoint.
            files: what this worker has written.
            save: what the chief knows; None on the others.
        """
        pending = PendingCommit(number)
        self._tasks.put(_Task(pending=pending, files=files, save=save))
        return pending

    def give_up(self, number: int, failure: Exception) -> None:
        """Lets the others hear that this worker could not write its files; returns at once.

        Args:
            number: of the checkpoint.
            failure: why.
        """
        self._tasks.put(_Task(pending=PendingCommit(number), files=[], save=None, failure=failure))

    def check(self) -> None:
        """Lets an error of the background surface that `PendingCommit.wait` has not raised; each does once.

        Raises:
            CheckpointWriteError: an earlier save could not be committed.
            CoordinationError: it could not, because another worker is lost.
        """
        while self._failed:
            failed = self._failed.popleft()
            if error := failed.take_error():
                raise _surfaced(
                    error, f"A checkpoint could not be committed, number {failed.number}"
                ) from error

    def close(self, timeout_s: float = 10.0) -> None:
        """Ends the thread after what has been handed in; may be called more than once."""
        self._tasks.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            if task.failure is not None:
                self._tell_failure(task)
                continue
            try:
                self._commit(task) if self._cluster.is_chief else self._contribute(task)
            except Exception as error:  # noqa: BLE001 - surfaces at the next boundary
                self._on_end(task.pending.number, False)
                task.pending.settle(error)
                self._failed.append(task.pending)
            else:
                self._on_end(task.pending.number, True)
                task.pending.settle()

    def _tell_failure(self, task: _Task) -> None:
        """Ends the others' waiting; the main thread knows already."""
        name = "done" if self._cluster.is_chief else f"part/{self._cluster.worker}"
        says = "the chief says: " if self._cluster.is_chief else _FAILED
        with contextlib.suppress(CoordinationError):
            self._store.set(self._key(task.pending.number, name), f"{says}{task.failure}")

    def _contribute(self, task: _Task) -> None:
        number = task.pending.number
        self._store.set(self._key(number, f"part/{self._cluster.worker}"), encode_files(task.files))
        try:
            answer = self._store.get(self._key(number, "done"), self._part_timeout_s + _ANSWER_MARGIN_S)
        except TimeoutError as error:
            raise CoordinationError(f"The chief did not commit checkpoint {number} in time.") from error
        if answer != _COMMITTED:
            raise CheckpointWriteError(answer)

    def _commit(self, task: _Task) -> None:
        number = task.pending.number
        try:
            manifest = self._gather_and_commit(task)
        except Exception as error:
            self._store.set(self._key(number, "done"), f"the chief says: {error}")
            raise
        try:
            self._on_commit(manifest)
        finally:  # the checkpoint exists, whatever happened to the news of it
            self._store.set(self._key(number, "done"), _COMMITTED)

    def _gather_and_commit(self, task: _Task) -> Manifest:
        if task.save is None:
            raise CheckpointWriteError("The chief handed in a checkpoint without its description.")
        files = [*task.save.files, *task.files, *self._parts_of_others(task.pending.number)]
        now = self._wall_clock()
        return self._committer.commit(
            dataclasses.replace(task.save, files=files),
            incarnation=self._incarnation,
            workers=self._cluster.workers,
            now=now,
            seconds=now - task.save.started,
        )

    def _parts_of_others(self, number: int) -> list[FileRecord]:
        """The files of all other workers; there is one time-out for all, as they write at the same time."""
        deadline = self._clock() + self._part_timeout_s
        files: list[FileRecord] = []
        for worker in range(1, self._cluster.workers):
            left_s = max(0.0, deadline - self._clock())
            try:
                text = self._store.get(self._key(number, f"part/{worker}"), left_s)
            except TimeoutError as error:
                raise CoordinationError(
                    f"Worker {worker} did not hand in its part within {self._part_timeout_s:g} s."
                ) from error
            if text.startswith(_FAILED):
                raise CheckpointWriteError(f"Worker {worker} says: {text.removeprefix(_FAILED)}")
            files += decode_files(text)
        return files

    def _key(self, number: int, name: str) -> str:
        return f"{self._prefix}/commit/{number}/{name}"
