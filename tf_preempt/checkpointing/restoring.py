"""Going on from a commit: all workers restore the same checkpoint, or all of them the one before it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from tf_preempt import errors
from tf_preempt.checkpointing.committer import Committer
from tf_preempt.checkpointing.key_value import KeyValueStore
from tf_preempt.checkpointing.leaving import gist
from tf_preempt.checkpointing.manifest import Manifest
from tf_preempt.checkpointing.merging import Component, merge_parts
from tf_preempt.checkpointing.startup import Cluster, Plan, begin_together, first_problem
from tf_preempt.checkpointing.worker_part import WorkerPart, part_name, read_part

__all__ = ["NothingGoodLeftError", "Restored", "Restorer"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Restored:
    """What training goes on from: the commit and this worker's part of it.

    Args:
        manifest: the commit.
        part: this worker's part; see `merged` where another number of workers wrote it.
        of_others: the parts of all workers that wrote it, if they were another number.
        worker: index of this worker.
        seconds: how long reading it took.
    """

    manifest: Manifest
    part: WorkerPart
    of_others: tuple[WorkerPart, ...] = ()
    worker: int = 0
    seconds: float = 0.0

    def merged(self, components: Callable[[], Iterable[Component]], families: tuple[str, ...]) -> Restored:
        """Makes this worker's part of those of another number of workers; else returns itself.

        Args:
            components: gives those of this worker, as for `merge_parts`; called only if they are needed.
            families: as for `merge_parts`.
        """
        if not self.of_others:
            return self
        part = merge_parts(list(self.of_others), components(), worker=self.worker, families=families)
        return dataclasses.replace(self, part=part, of_others=())


class NothingGoodLeftError(errors.CheckpointError):
    """The only checkpoint was damaged, and is set aside; only a new process can begin afresh.

    Workers whose own files were whole have assigned values that the others do not have.
    """


class Restorer:
    """Reads checkpoints into the variables, together with the other workers.

    Args:
        checkpoint: ``tf.train.Checkpoint`` of the variables.
        committer: of the checkpoint directory.
        store: shared by all workers.
        cluster: who takes part.
        prefix: for the keys.
        fit: ordinal of the training whose checkpoints count.
    """

    def __init__(
        self,
        checkpoint: Any,
        committer: Committer,
        store: KeyValueStore,
        cluster: Cluster,
        *,
        prefix: str,
        fit: int,
    ) -> None:
        self._checkpoint = checkpoint
        self._committer = committer
        self._store = store
        self._cluster = cluster
        self._prefix = prefix
        self._fit = fit

    def restore(self, plan: Plan) -> Restored | None:
        """Restores the plan's checkpoint, or the one before it if a worker finds that one damaged.

        Returns:
            What was restored; None if there is nothing to restore.

        Raises:
            NothingGoodLeftError: one of several workers found the only checkpoint damaged.
            TfPreemptError: something else is wrong with it, on all workers alike.
        """
        attempt = 0
        while plan.restore is not None:
            prefix = f"{self._prefix}/restore/{attempt}"
            started = time.monotonic()
            parts = self._restore_together(plan.restore, prefix)
            if parts is not None:
                return Restored(
                    manifest=plan.restore,
                    part=parts[0],
                    of_others=tuple(parts) if plan.restore.workers != self._cluster.workers else (),
                    worker=self._cluster.worker,
                    seconds=time.monotonic() - started,
                )
            plan = begin_together(self._committer, self._store, self._cluster, prefix=prefix, fit=self._fit)
            if plan.restore is None and self._cluster.workers > 1:
                raise NothingGoodLeftError("The only checkpoint was damaged and is set aside.")
            attempt += 1
        return None

    def _restore_together(self, manifest: Manifest, prefix: str) -> list[WorkerPart] | None:
        """Reads a checkpoint into the variables; None if it was damaged on any worker: then it is set aside.

        What each worker reads by itself comes first: in the scope of a strategy the workers restore variables
        together, and one that is not there, because it could not read its own, would be waited for in vain.

        Returns:
            This worker's part; where another number of workers wrote the checkpoint, the parts of them all.
        """
        parts, problem = self._read_parts(manifest)
        problem = self._first_problem(f"{prefix}/parts", problem)
        if problem is None:
            problem = self._first_problem(f"{prefix}/variables", self._restore_variables(manifest))
        if problem is None:
            return parts
        if not isinstance(problem, errors.CheckpointFormatError):
            raise problem
        if self._cluster.is_chief:
            self._committer.set_aside(manifest.prefix, gist(problem))
        return None

    def _first_problem(self, prefix: str, problem: Exception | None) -> Exception | None:
        return first_problem(self._store, self._cluster, prefix=prefix, problem=problem)

    def _read_parts(self, manifest: Manifest) -> tuple[list[WorkerPart], Exception | None]:
        """Reads what this worker needs of the parts of workers, or says what is wrong."""
        prefix = self._committer.prefix(manifest.number)
        is_same = manifest.workers == self._cluster.workers
        workers = [self._cluster.worker] if is_same else range(manifest.workers)
        names = [part_name(prefix, worker, manifest.workers) for worker in workers]
        parts: list[WorkerPart] = []

        def read() -> None:
            parts.extend(read_part(self._committer.directory, name) for name in names)
            self._committer.look_at_variables(manifest.prefix)

        return parts, _problem_in(read)

    def _restore_variables(self, manifest: Manifest) -> Exception | None:
        """Reads the variables, or says what is wrong."""
        return _problem_in(lambda: self._committer.restore_variables(self._checkpoint, manifest.prefix))


def _problem_in(read: Callable[[], None]) -> Exception | None:
    """What reading raises; damage is a `CheckpointFormatError`."""
    try:
        read()
    except tf.errors.DataLossError as error:
        return errors.CheckpointFormatError(gist(error))
    except Exception as error:  # noqa: BLE001 - the other workers wait for this one's answer
        return error
    return None
