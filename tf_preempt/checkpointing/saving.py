"""What one worker writes of a checkpoint: the chief the variables, everybody its part."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_preempt import _files
from tf_preempt.checkpointing.committer import Committer, SaveRecord
from tf_preempt.checkpointing.manifest import FileRecord
from tf_preempt.checkpointing.position_size import warn_of_large_positions
from tf_preempt.checkpointing.startup import Cluster
from tf_preempt.checkpointing.worker_part import WorkerPart, part_name, write_part
from tf_preempt.errors import CheckpointWriteError, ConfigError

SaveFn = Callable[..., Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What is saved at a boundary besides the variables.

    Args:
        step: training steps done, over all epochs.
        resume: the resume point; JSON.
        part: what only this worker has.
    """

    step: int
    resume: dict[str, Any]
    part: WorkerPart = dataclasses.field(default_factory=WorkerPart)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Written:
    """What this worker has written.

    Args:
        prefix: name of the checkpoint.
        part_files: of this worker's part.
        save: the chief's description of the whole; None on the others.
        seconds: how long it held training up.
    """

    prefix: str
    part_files: list[FileRecord]
    save: SaveRecord | None
    seconds: float


class Saver:
    """Writes this worker's files of one checkpoint after the other.

    Args:
        checkpoint: of all variables that are alike on all workers.
        committer: of the checkpoint directory.
        cluster: who takes part.
        fit: ordinal of the training.
        on_all_workers: reading the variables is a collective, so every worker has to save.
    """

    def __init__(
        self, checkpoint: Any, committer: Committer, cluster: Cluster, *, fit: int, on_all_workers: bool
    ) -> None:
        self._checkpoint = checkpoint
        self._committer = committer
        self._cluster = cluster
        self._fit = fit
        self._on_all_workers = on_all_workers

    def write(
        self, number: int, snapshot: Snapshot, *, reason: str, save_fn: SaveFn | None = None
    ) -> Written:
        """Writes checkpoint `number`; all workers have to call it at the same boundary.

        Args:
            number: of the checkpoint.
            snapshot: what is saved besides the variables.
            reason: for people.
            save_fn: the user's way to save the variables, in place of the manager's.

        Raises:
            CheckpointWriteError: it could not be written; earlier checkpoints are untouched.
            ConfigError: `save_fn` returned something else than a checkpoint of this directory.
        """
        started, wall = time.monotonic(), time.time()
        # Named by the number, which all workers know; how the variables' files are named, the chief knows.
        name = part_name(self._committer.prefix(number), self._cluster.worker, self._cluster.workers)
        # The part first: variables without one are known to be of another program (see Committer.adoptable).
        try:
            part_files = write_part(self._committer.directory, name, snapshot.part)
        except (tf.errors.OpError, OSError) as error:
            raise CheckpointWriteError(f"Writing {name} failed: {error}") from error
        prefix, files = self._write_variables(number, save_fn)
        save = None
        if self._cluster.is_chief:
            save = SaveRecord(
                prefix=prefix,
                number=number,
                step=snapshot.step,
                resume={"fit": self._fit, **snapshot.resume},
                reason=reason,
                started=wall,
                files=files,
            )
        seconds = time.monotonic() - started
        warn_of_large_positions(snapshot.part.tensors, (record.bytes for record in part_files))
        return Written(prefix=prefix, part_files=part_files, save=save, seconds=seconds)

    def _write_variables(self, number: int, save_fn: SaveFn | None) -> tuple[str, list[FileRecord]]:
        """Lets the chief write the variables; returns the checkpoint's prefix and the chief's files."""
        if save_fn is not None:
            return self._let_user_save(number, save_fn)
        prefix = self._committer.prefix(number)
        if self._cluster.is_chief:
            free = self._committer.free_number(number)
            return self._committer.prefix(free), self._committer.save_variables(free)
        if self._on_all_workers:
            scratch = _files.join(self._committer.directory, f".scratch-{self._cluster.worker}")
            try:
                self._checkpoint.write(_files.join(scratch, "ckpt"))
            except (tf.errors.OpError, OSError) as error:
                raise CheckpointWriteError(f"Writing to {scratch} failed: {error}") from error
            finally:
                _files.remove_tree(scratch)
        return prefix, []

    def _let_user_save(self, number: int, save_fn: SaveFn) -> tuple[str, list[FileRecord]]:
        """Calls the user's `save_fn` in the manager's place and finds what it has written."""
        self._committer.count_from(self._committer.free_number(number))
        returned = save_fn()
        path = returned if isinstance(returned, str) else self._committer.newest_path()
        directory, _, prefix = (path or "").replace("\\", "/").rpartition("/")
        files = self._committer.files_of(prefix) if prefix else []
        if self._cluster.is_chief and (
            not files or directory != self._committer.directory.replace("\\", "/")
        ):
            raise ConfigError(
                f"save_fn returned {returned!r}, and there is no checkpoint of that name in "
                f"{self._committer.directory}, so nothing could be committed.",
                hint="let save_fn return the path that CheckpointManager.save returned",
            )
        return prefix or self._committer.prefix(number), files
