"""How many steps the tracked iterators of a custom loop have given, for another number of workers to go on.

Only of data that `any_workers` allows.  The count is part of the iterator's own state, so that it is right
wherever elements are taken, also in a ``tf.function``, and costs no collective.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tf_preempt.checkpointing.any_workers import bound_to_workers, go_ahead, steps_taken
from tf_preempt.checkpointing.iterator_state import epoch_counters_of, saved_epochs, set_epochs
from tf_preempt.data.epochs import EpochCounter
from tf_preempt.errors import CheckpointMismatchError
from tf_preempt.strategies import _tf_internals

_SHARED = "another iterator of its data set was begun, so that the number of its epoch is not known"


@dataclasses.dataclass(kw_only=True)
class _Count:
    """Is called by an iterator, and does not hold it: its end would have to wait for a collection."""

    counters: list[EpochCounter]
    first_epochs: list[int]
    has_rounds: bool
    elements: int = 0
    is_shared: bool = False

    def note(self, elements: int) -> None:
        self.elements = elements
        # What reads ahead may begin a second round by itself, but hardly before the first element is there.
        self.is_shared |= elements == 1 and self._begun() != 1

    def _begun(self) -> int:
        """How many epochs were begun since this iterator was tracked; the most, where they differ."""
        pairs = zip(self.counters, self.first_epochs, strict=True)
        return max(counter.next_epoch - first for counter, first in pairs)

    def look_for_others(self) -> bool:
        """Says whether another iterator has begun epochs of the data, so that this one's are not known."""
        if not self.has_rounds:
            self.is_shared |= self._begun() != min(1, self.elements)
        return self.is_shared


class StepCounts:
    """Counts what is taken from tracked iterators.

    Args:
        workers: how many there are now.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._counts: dict[str, _Count] = {}
        self._iterators: dict[str, Any] = {}
        self._bound: dict[str, str] = {}

    @property
    def bound(self) -> dict[str, str]:
        """Tracked iterators with which no other number of workers can go on, by key, and why."""
        shared = {key: _SHARED for key, count in self._counts.items() if count.look_for_others()}
        return self._bound | shared

    def watch(self, iterator: Any, key: str, *, saved_with_count: bool | None = None) -> None:
        """Counts from now on what is taken from an iterator, in place of the one before under that key.

        Args:
            iterator: that is to be tracked.
            key: under which.
            saved_with_count: whether the position that it will be given has a count; None: it is given none.

        Raises:
            UnsupportedStrategyError: the iterator is of a kind that has no position.
            ConfigError: a data set of `tf_preempt.data` has ``options.experimental_symbolic_checkpoint``.
            InternalsChangedError: TensorFlow's private names have changed.
        """
        self._bound.pop(key, None)
        self._counts.pop(key, None)
        self._iterators.pop(key, None)
        reason = bound_to_workers(iterator, workers=self._workers)
        owned_iterators = _tf_internals.owned_iterators(iterator)
        if reason is None and saved_with_count is None:
            # Its elements so far are not in the count that begins now.
            saved_with_count = all(map(_tf_internals.is_at_beginning, owned_iterators))
        if reason is None and not saved_with_count:
            reason = "elements were taken from its iterator before that was tracked"
        if reason is not None:
            self._bound[key] = reason
            return
        counters = epoch_counters_of(iterator)
        count = self._counts[key] = _Count(
            counters=counters,
            first_epochs=[counter.next_epoch for counter in counters],
            has_rounds=any(map(_tf_internals.has_rounds, map(_tf_internals.dataset_behind, owned_iterators))),
        )
        self._iterators[key] = iterator
        for owned in owned_iterators:
            _tf_internals.count_in_state(owned, count.note)

    def take(self) -> dict[str, int]:
        """How many steps each counted iterator has given, by key."""
        return {key: steps_taken(self._iterators[key], one.elements) for key, one in self._counts.items()}

    def resume(
        self, key: str, steps: int, tensors: dict[str, Any], *, beginning: str, was_bound: bool = False
    ) -> None:
        """Notes how many steps an iterator had given that has got its state back.

        Args:
            key: under which it is tracked.
            steps: that it had given.
            tensors: what was saved.
            beginning: name of the position at the iterator's beginning in it.
            was_bound: no other number of workers could go on with it then, and so none can now.
        """
        count = self._counts.get(key)
        if count is not None:
            count.first_epochs = saved_epochs(beginning, tensors) or count.first_epochs
            count.is_shared |= was_bound
            count.elements = steps * _tf_internals.elements_per_step(self._iterators[key])

    def go_ahead(
        self, iterator: Any, key: str, steps: int, tensors: dict[str, Any], *, beginning: str
    ) -> None:
        """Brings a new iterator to where those of another number of workers were.

        Args:
            iterator: that is watched under `key`.
            key: under which it is tracked.
            steps: that had been taken.
            tensors: what was saved.
            beginning: name of the position at the iterator's beginning in it.

        Raises:
            CheckpointMismatchError: with this iterator another number of workers cannot go on; or the data is
                not what it was.
            UnsupportedStrategyError, ConfigError, InternalsChangedError: as for `watch`.
        """
        if key in self._bound:
            raise CheckpointMismatchError(
                f"The checkpoint was written by another number of workers, and this one cannot go on with "
                f"the data iterator {key!r}: {self._bound[key]}.",
                hint="start as many workers as wrote it, or distribute the data set with "
                "strategy.experimental_distribute_dataset",
            )
        set_epochs(iterator, beginning, tensors)
        count = self._counts[key]
        count.first_epochs = [counter.next_epoch for counter in count.counters]
        go_ahead(iterator, steps)
