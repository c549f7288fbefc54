"""The data iterators that a custom loop tracks: where they are, and how they come there again.

Each has a key.  Its first iterator goes to where the checkpoint says, later ones under the same key (of new
epochs) begin at their beginning.  A place is the iterator's own state; or, with data of `tf_preempt.data` and
another number of workers, a number of steps (`step_counts`); or, where TensorFlow cannot save the state, a
number of elements that are taken again (`replay`).
"""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

from tf_preempt.checkpointing.any_workers import check_replicas
from tf_preempt.checkpointing.data_randomness import (
    describe_outside,
    warn_of_lost_cache,
    warn_of_unseeded_order,
)
from tf_preempt.checkpointing.data_variables import DataVariables
from tf_preempt.checkpointing.iterator_state import set_position, take_position
from tf_preempt.checkpointing.new_positions import NewPositions
from tf_preempt.checkpointing.old_iterators import delete_in_background
from tf_preempt.checkpointing.replay import ReplayedIterator, warn_of_replay
from tf_preempt.checkpointing.step_counts import StepCounts
from tf_preempt.checkpointing.worker_part import WorkerPart
from tf_preempt.strategies import _tf_internals

_log = logging.getLogger("tf_preempt")
_REPLAYED = "replayed"
_STEPS = "steps_taken"
_REPLICAS = "replicas"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RestoredPlaces:
    """What a checkpoint says of iterators.

    Args:
        part: this worker's.
        bound: iterators with which no other number of workers could go on, by key, and why.
        from_other_workers: another number of workers wrote it.
    """

    part: WorkerPart
    bound: dict[str, str]
    from_other_workers: bool


class TrackedIterators:
    """What `PreemptionCheckpointHandler.track` keeps.

    Args:
        workers: how many there are.
    """

    def __init__(self, workers: int) -> None:
        self._tracked: dict[str, Any] = {}
        self._new_positions = NewPositions()
        self._step_counts = StepCounts(workers)
        self._replayed: dict[str, ReplayedIterator] = {}
        self._restored: RestoredPlaces | None = None
        self._part = WorkerPart()
        self.data_variables = DataVariables()

    def __bool__(self) -> bool:
        """Says whether any iterator is tracked."""
        return bool(self._tracked)

    @property
    def bound(self) -> dict[str, str]:
        """Iterators with which no other number of workers can go on, by key, and why."""
        return self._step_counts.bound

    def expect(self, restored: RestoredPlaces) -> None:
        """Notes what the iterators that are tracked from now on are to be given."""
        self._restored, self._part = restored, restored.part
        self.data_variables.expect(restored.part.tensors)

    def track(self, iterator: Any, name: str | None) -> Any:
        """See `PreemptionCheckpointHandler.track`.

        Raises:
            UnsupportedStrategyError, ConfigError, CheckpointMismatchError, InternalsChangedError: as there.
        """
        key = name if name is not None else str(len(self._tracked))
        is_new = key not in self._tracked
        before = self._tracked.get(key)
        from_other_workers = self._restored is not None and self._restored.from_other_workers
        if is_new and not from_other_workers:
            saved_replicas = self._part.values.get(_REPLICAS, {}).get(key)
            check_replicas(saved_replicas, _tf_internals.elements_per_step(iterator), iterator=key)
        steps = self._part.values.get(_STEPS, {}).get(key)
        if before is not iterator:
            has_position = is_new and f"{_place(key)}/0" in self._part.tensors
            with_count = (steps is not None) if has_position else None
            self._step_counts.watch(iterator, key, saved_with_count=with_count)
            self._new_positions.keep(iterator, key)
        if is_new and from_other_workers and steps is not None:
            self._go_ahead(iterator, key, steps)
        elif is_new and set_position(iterator, _place(key), self._part.tensors):
            self._note_position(iterator, key, steps or 0)
        elif before is iterator:
            return iterator
        elif take_position(iterator, _place(key)) is None:
            self._track_by_count(iterator, key, is_new=is_new)
        else:
            self._replayed.pop(key, None)
            if is_new and self._restored is not None:
                _warn_of_no_position(key)
        if is_new and key not in self._replayed:
            warn_of_unseeded_order(iterator, f"tracked {key!r}")
            warn_of_lost_cache(iterator, f"tracked {key!r}")
        self._tracked[key] = iterator
        self.data_variables.look_at(iterator, key)
        old = [before]
        del before
        delete_in_background(old)
        return iterator

    def _go_ahead(self, iterator: Any, key: str, steps: int) -> None:
        beginning = self._new_positions.resume(key, self._part.tensors)
        _log.info("Data iterator %r goes to where another number of workers was: step %d.", key, steps)
        self._step_counts.go_ahead(iterator, key, steps, self._part.tensors, beginning=beginning)

    def _note_position(self, iterator: Any, key: str, steps: int) -> None:
        """Brings back, after an iterator's position, what belongs to it."""
        tensors = self._part.tensors
        self._new_positions.restore_seeds(iterator, key, tensors, place=_place(key))
        beginning = self._new_positions.resume(key, tensors)
        was_bound = self._restored is not None and key in self._restored.bound
        self._step_counts.resume(key, steps, tensors, beginning=beginning, was_bound=was_bound)
        _log.info("Data iterator %r goes on where it was.", key)

    def _track_by_count(self, iterator: Any, key: str, *, is_new: bool) -> None:
        """Counts what is taken, as the state cannot be saved; takes it again if a checkpoint says so."""
        outside = describe_outside(iterator)  # as the program made it: what counts is another function
        replayed = self._replayed[key] = ReplayedIterator(iterator, _place(key))
        if not is_new:
            return
        warn_of_replay(key, outside)
        taken = self._part.values.get(_REPLAYED, {}).get(key)
        if taken is not None:
            _log.info("Data iterator %r: %s elements are taken again and dropped.", key, taken)
            replayed.replay(taken, self._part.tensors)
        elif self._restored is not None:
            _warn_of_no_position(key)

    def take(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Where the iterators are, as tensors and as JSON values, for this worker's part of a checkpoint."""
        new_positions = self._new_positions.tensors
        (taken, positions), data_variables = self.data_variables.take_with(self._take_positions)
        values = {
            _REPLAYED: taken,
            _STEPS: self._step_counts.take(),
            _REPLICAS: {key: _tf_internals.elements_per_step(one) for key, one in self._tracked.items()},
        }
        return new_positions | positions | data_variables, values

    def _take_positions(self) -> tuple[dict[str, list[int]], dict[str, Any]]:
        """How many elements were taken from iterators to be replayed, and the positions of the others."""
        taken: dict[str, list[int]] = {}
        tensors: dict[str, Any] = {}
        for key, iterator in self._tracked.items():
            if key in self._replayed:
                taken[key], replayed_tensors = self._replayed[key].take()
                tensors |= replayed_tensors
            else:
                tensors |= take_position(iterator, _place(key)) or {}
        return taken, tensors


def _place(key: str) -> str:
    """Name of an iterator's position in a worker's part."""
    return f"iterator/{key}"


def _warn_of_no_position(key: str) -> None:
    _log.warning(
        "The checkpoint has no position of a data iterator %r: it begins at its beginning. "
        "HINT: track the same iterators in the same order, or under the same names; the one of a new "
        "epoch under the name of the one before.",
        key,
    )
