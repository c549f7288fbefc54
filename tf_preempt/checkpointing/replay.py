"""Iterators whose state TensorFlow cannot save: what was taken is counted, and taken again after a resume.

Python generators and stateful random ops keep their state where no checkpoint reaches.  What comes again is
what the pipeline gives when it is gone through again from its beginning, so that the resume is exact if that
is the same each time; its time grows with the position.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

from tf_preempt.checkpointing.data_randomness import Outside
from tf_preempt.checkpointing.iterator_state import set_epochs, take_epochs
from tf_preempt.errors import CheckpointMismatchError
from tf_preempt.strategies import _tf_internals

_log = logging.getLogger("tf_preempt")


def _count(taken: list[int], index: int) -> None:
    """Is called by an iterator, and knows nothing of it: its end would have to wait for a collection."""
    taken[index] += 1


class ReplayedIterator:
    """An iterator that is brought to its place by taking its elements again.

    Made before anything is taken from the iterator, which it puts at the beginning of its data set.

    Args:
        iterator: a ``tf.data.Iterator`` or an iterator over a distributed data set.
        name: of its place in checkpoints.

    Raises:
        UnsupportedStrategyError: the iterator is of a kind whose elements cannot be counted.
        InternalsChangedError: TensorFlow's private names have changed.
    """

    def __init__(self, iterator: Any, name: str) -> None:
        self._iterator = iterator
        self._name = name
        self._owned = _tf_internals.owned_iterators(iterator)
        self._taken = [0] * len(self._owned)
        self._at_beginning = take_epochs(iterator, f"{name}_new")
        for index, owned in enumerate(self._owned):
            _tf_internals.count_elements(owned, functools.partial(_count, self._taken, index))

    def take(self) -> tuple[list[int], dict[str, Any]]:
        """How many elements were taken on this worker, for each of its iterators; and tensors beside it."""
        return list(self._taken), dict(self._at_beginning)

    def replay(self, taken: list[int], tensors: dict[str, Any]) -> None:
        """Takes as many elements as were taken before, and drops them.

        Args:
            taken: what `take` gave.
            tensors: those that it gave, possibly among others.

        Raises:
            CheckpointMismatchError: the data set has fewer elements than were taken; or see `set_epochs`.
        """
        set_epochs(self._iterator, f"{self._name}_new", tensors)
        self._at_beginning = take_epochs(self._iterator, f"{self._name}_new")
        for owned, count in zip(self._owned, taken, strict=False):
            for index in range(count):
                if next(owned, None) is None:
                    raise CheckpointMismatchError(
                        f"Data iterator {self._name!r} ends after {index} elements; {count} had been taken "
                        "from it when the checkpoint was written.",
                        hint="let the pipeline give the same elements each time, or use another directory",
                    )


def warn_of_replay(key: str, outside: Outside) -> None:
    """Says once for an iterator what a resume will cost.

    Args:
        key: name of the iterator.
        outside: what its pipeline keeps outside of it.
    """
    _log.warning(
        "The state of data iterator %r cannot be saved: its pipeline holds %s. A resumed run takes all "
        "elements again that were taken from this iterator, and drops them: as slow as reading them was, and "
        "%s.\nHINT: %s; track an iterator before anything is taken from it.",
        key,
        outside.holds,
        outside.result,
        outside.hint,
    )
