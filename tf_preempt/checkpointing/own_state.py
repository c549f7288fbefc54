"""What only this worker has of a custom loop's variables, and how it comes back to as many workers or others.

Three kinds: the parts of sync-on-read variables (metrics under a strategy), the parts of what each replica
writes by itself (`replica_parts`), and random generators that no checkpoint reaches (`generators`).
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_preempt.checkpointing import replica_parts
from tf_preempt.checkpointing.generators import FAMILY, Generators
from tf_preempt.checkpointing.merging import Component, Way
from tf_preempt.checkpointing.restoring import Restored
from tf_preempt.checkpointing.worker_part import WorkerPart
from tf_preempt.errors import CheckpointMismatchError
from tf_preempt.strategies import _tf_internals

_SYNC_ON_READ = "sync_on_read/"
_CHECKSUMS = "replica_checksums"
_FAMILIES = (_SYNC_ON_READ, *replica_parts.FAMILIES, FAMILY)
_WAYS: dict[Any, Way] = {
    tf.VariableAggregation.SUM: "sum",
    tf.VariableAggregation.MEAN: "mean",
}


class OwnState:
    """This worker's own state of all that a checkpoint holds.

    Args:
        checkpoint: the program's ``tf.train.Checkpoint``, before a session adds anything to it.
    """

    def __init__(self, checkpoint: Any) -> None:
        self._sync_on_read = _sync_on_read_parts(checkpoint)
        untracked = replica_parts.untracked_variables(checkpoint)
        self._parts, self._parts_of_several = (
            [
                *replica_parts.replica_parts(
                    replica_parts.written_by_replicas(checkpoint, also_by_one=also_by_one)
                ),
                *replica_parts.replica_parts(untracked, kept_nowhere_else=True),
            ]
            for also_by_one in (False, True)
        )
        self._generators = Generators(checkpoint, known=untracked)

    @property
    def is_read_by_all(self) -> bool:
        """Says whether the checkpoint holds variables whose reading is a collective."""
        return bool(self._sync_on_read)

    def take(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The state as tensors and as JSON values, for this worker's part of a checkpoint."""
        # TensorFlow saves the sum of such a variable and restores an equal share to each replica.
        tensors = {name: variable.read_value() for name, variable in self._sync_on_read.items()}
        replica_tensors, checksums = replica_parts.take(self._parts)
        return tensors | replica_tensors | self._generators.take(), {_CHECKSUMS: checksums}

    def part_from(self, restored: Restored) -> WorkerPart:
        """This worker's part of what was restored, also where another number of workers wrote it.

        Raises:
            CheckpointMismatchError: other workers had more or fewer variables that replicas write themselves.
        """
        for other in restored.of_others:
            checksums = other.values.get(_CHECKSUMS, {})
            replica_parts.check_as_many(self._parts_of_several, [*other.tensors, *checksums])
        metrics = [
            Component(name=name, variable=variable, way=_WAYS.get(variable.aggregation, "first"))
            for name, variable in self._sync_on_read.items()
        ]
        others = [*replica_parts.components(self._parts_of_several), *self._generators.components()]
        return restored.merged(lambda: [*metrics, *others], _FAMILIES).part

    def restore(self, part: WorkerPart, *, from_other_workers: bool) -> None:
        """Gives the variables back what `take` has read.

        Args:
            part: this worker's, see `part_from`.
            from_other_workers: another number of workers wrote the checkpoint.

        Raises:
            CheckpointMismatchError: the program has other variables than the checkpoint.
        """
        parts = self._parts_of_several if from_other_workers else self._parts
        saved = {name for name in part.tensors if name.startswith(_SYNC_ON_READ)}
        # Where there was one replica, or is one now, TensorFlow gives back the sum that the checkpoint has.
        if saved != set(self._sync_on_read) and not from_other_workers:
            raise _other_sync_on_read(len(saved), len(self._sync_on_read))
        for name in saved & set(self._sync_on_read):
            self._sync_on_read[name].assign(part.tensors[name])
        replica_parts.check(parts, part.tensors)
        replica_parts.restore(parts, part.tensors, part.values.get(_CHECKSUMS, {}))
        self._generators.restore(part.tensors)


def _sync_on_read_parts(checkpoint: Any) -> dict[str, Any]:
    """This worker's parts of the checkpoint's sync-on-read variables (metrics under a strategy), by name."""
    variables = [
        node for node in replica_parts.variables_in(checkpoint) if _tf_internals.is_sync_on_read(node)
    ]
    return {
        f"{_SYNC_ON_READ}{index}/{replica}": part
        for index, variable in enumerate(variables)
        for replica, part in enumerate(_tf_internals.local_values(variable))
    }


def _other_sync_on_read(saved: int, present: int) -> CheckpointMismatchError:
    """The error where a checkpoint holds other parts of sync-on-read variables than the program has."""
    variables = "variables with synchronization=ON_READ (metrics under a strategy)"
    if saved and present:
        return CheckpointMismatchError(
            f"The checkpoint holds {saved} parts of {variables}, the program's checkpoint object {present}.",
            hint="build the checkpoint object as it was when the checkpoint was written",
        )
    if saved:
        return CheckpointMismatchError(
            f"The checkpoint was written under a strategy and holds {saved} part(s) of {variables}; the "
            "program's checkpoint object has none: without a strategy TensorFlow makes plain variables.",
            hint="make the same variables, in the scope of the strategy that wrote the checkpoint",
        )
    return CheckpointMismatchError(
        f"The program's checkpoint object has {present} part(s) of {variables}; the checkpoint, which was "
        "perhaps written without a strategy, has none.",
        hint="make the same variables, and as then: without a strategy if there was none",
    )
