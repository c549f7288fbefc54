"""Going on from a commit: all workers restore the same checkpoint, or all of them the one before it."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import tensorflow as tf

from tf_preempt import errors
from tf_preempt.checkpointing.committer import Committer
from tf_preempt.checkpointing.key_value import KeyValueStore
from tf_preempt.checkpointing.leaving import gist
from tf_preempt.checkpointing.manifest import Manifest
from tf_preempt.checkpointing.startup import Cluster, Plan, begin_together, first_problem
from tf_preempt.checkpointing.worker_part import WorkerPart, part_name, read_part

__all__ = ["NothingGoodLeftError", "Restored", "Restorer"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Restored:
    """What training goes on from: the commit and this worker's part of it.

    Args:
        manifest: the commit.
        part: this worker's part.
        seconds: how long reading it took.
    """

    manifest: Manifest
    part: WorkerPart
    seconds: float = 0.0


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
            part = self._restore_together(plan.restore, prefix)
            if part is not None:
                return Restored(manifest=plan.restore, part=part, seconds=time.monotonic() - started)
            plan = begin_together(self._committer, self._store, self._cluster, prefix=prefix, fit=self._fit)
            if plan.restore is None and self._cluster.workers > 1:
                raise NothingGoodLeftError("The only checkpoint was damaged and is set aside.")
            attempt += 1
        return None

    def _restore_together(self, manifest: Manifest, prefix: str) -> WorkerPart | None:
        """This worker's part, or None if the checkpoint was damaged on any worker; then it is set aside."""
        part, problem = self._read(manifest)
        problem = first_problem(self._store, self._cluster, prefix=prefix, problem=problem)
        if part is not None and problem is None:
            return part
        if not isinstance(problem, errors.CheckpointFormatError):
            raise problem or errors.CheckpointError(f"Checkpoint {manifest.prefix} could not be read.")
        if self._cluster.is_chief:
            self._committer.set_aside(manifest.prefix, gist(problem))
        return None

    def _read(self, manifest: Manifest) -> tuple[WorkerPart | None, Exception | None]:
        """Reads a checkpoint into the variables; returns this worker's part, or what is wrong.

        Damage is a `CheckpointFormatError`.
        """
        prefix = self._committer.prefix(manifest.number)
        name = part_name(prefix, self._cluster.worker, self._cluster.workers)
        try:
            part = read_part(self._committer.directory, name)
            self._committer.restore_variables(self._checkpoint, manifest.prefix)
        except tf.errors.DataLossError as error:
            return None, errors.CheckpointFormatError(gist(error))
        except Exception as error:  # noqa: BLE001 - the other workers wait for this one's answer
            return None, error
        return part, None
