"""Shuffles that begin anew in the middle of an epoch: ``shuffle(...).repeat(2)``, a data set behind itself.

How often such a shuffle has advanced its seeds by the end of an epoch is known to nobody.  So a position is
kept at which every shuffle still has its seeds, and what was taken since is gone through again, where the
iterator's own state has lost them.
"""

from __future__ import annotations

import logging
import weakref
from typing import Any

import tensorflow as tf

from tf_preempt.checkpointing.iterator_state import set_position, shuffles_in, take_position

_log = logging.getLogger("tf_preempt")


class SecondPasses:
    """Watches the iterators over one pipeline.

    Args:
        name: of the data; the position's name is made of it.
        shuffles: how many the pipeline has that order each iteration anew.
    """

    def __init__(self, name: str, shuffles: int) -> None:
        self._name = f"{name}_base"
        self._shuffles = shuffles
        # Not held, so that it ends in the background (`old_iterators`).
        self._base: weakref.ref[Any] | None = None
        self._is_at_base = False
        self._position: dict[str, Any] = {}
        self._taken = 0

    def at_step(self, iterator: Any) -> None:
        """Notes which iterator the next step takes from; before it takes."""
        self._is_at_base = self._is_base(iterator)
        if self._is_at_base:
            return
        # A shuffle behind another one has its seeds in the state only after the first element.
        position = take_position(iterator, self._name) or {}
        if shuffles_in(position, self._name) >= self._shuffles:
            self._begin_at(iterator, position, taken=0)

    def step_taken(self, elements: int) -> None:
        """Notes that so many elements were taken from the iterator of `at_step`."""
        if self._is_at_base:
            self._taken += elements

    def take(self, iterator: Any, *, is_begun: bool) -> tuple[int | None, bool, dict[str, Any]]:
        """The position that is kept, and what was taken since.

        Args:
            iterator: that Keras goes on with; None: it makes a new one.
            is_begun: something was taken from it.

        Returns:
            How many elements lie behind the position, None if there is no such position; whether `iterator`
            was made after the one to which it belongs; the position.
        """
        is_newer = iterator is not None and not self._is_base(iterator)
        if not self._position or (is_newer and is_begun):
            return None, False, {}
        return self._taken, is_newer, dict(self._position)

    def replay(self, iterator: Any, elements: int, tensors: dict[str, Any], *, to_end: bool) -> None:
        """Takes again what was taken since the position; all shuffles have their seeds afterwards.

        Args:
            iterator: a new one.
            elements: what `take` gave.
            tensors: those that it gave, possibly among others.
            to_end: the iterator was asked for one more element, and had none.
        """
        _log.info("The order of the data is restored by going through %d elements again.", elements)
        set_position(iterator, self._name, tensors)
        position = {name: one for name, one in tensors.items() if name.startswith(f"{self._name}/")}
        self._begin_at(iterator, position, taken=elements)
        for _ in range(elements + to_end):
            try:
                next(iterator)
            except (StopIteration, tf.errors.OutOfRangeError):
                return  # the last execution of an epoch may take fewer

    def _begin_at(self, iterator: Any, position: dict[str, Any], *, taken: int) -> None:
        self._base, self._position, self._taken = weakref.ref(iterator), position, taken
        self._is_at_base = True

    def _is_base(self, iterator: Any) -> bool:
        return self._base is not None and self._base() is iterator


def warn_of_lost_seeds() -> None:
    """Says that what this module is for could not be done."""
    _log.warning(
        "The data set begins a shuffle anew within an epoch (repeat or concatenate behind it), and the "
        "checkpoint does not say how often: the order of the epochs to come can differ from what it would "
        "have been. HINT: shuffle behind `repeat`, or tf_preempt.data.from_arrays and from_source."
    )
