"""The seeds of shuffles for the next epoch, where an iterator's own state has lost them.

A custom loop that makes an iterator for each epoch is saved at the end of one sooner or later.  The state of
an iterator at its end has let go of the shuffles, and of the seeds with which they would order the next
epoch; the state that it had when it was new has them still.
"""

from __future__ import annotations

import logging
from typing import Any

from tf_preempt.checkpointing.iterator_state import shuffles_in, take_position
from tf_preempt.strategies import _tf_internals

_log = logging.getLogger("tf_preempt")


class NewPositions:
    """The positions that tracked iterators had before anything was taken from them."""

    def __init__(self) -> None:
        self._positions: dict[str, dict[str, Any]] = {}

    @property
    def tensors(self) -> dict[str, Any]:
        """All of them, as they are saved: variant tensors by name."""
        return {name: tensor for position in self._positions.values() for name, tensor in position.items()}

    def keep(self, iterator: Any, key: str) -> None:
        """Keeps the position of a new iterator.

        Args:
            iterator: nothing was taken from it.
            key: under which it is tracked; the iterator of the epoch before is forgotten.

        Raises:
            UnsupportedStrategyError: the iterator is of a kind that has no position.
        """
        self._positions[key] = take_position(iterator, _name(key)) or {}

    def resume(self, key: str, tensors: dict[str, Any]) -> str:
        """Keeps on with what was saved, for an iterator that goes on where another one was.

        Args:
            key: under which it is tracked.
            tensors: what was saved.

        Returns:
            The name of the position in it.
        """
        name = _name(key)
        self._positions[key] = {one: tensors[one] for one in tensors if one.startswith(f"{name}/")}
        return name

    def restore_seeds(self, iterator: Any, key: str, tensors: dict[str, Any], *, place: str) -> None:
        """Lets the epochs after the present one come in the order in which they would have come.

        Args:
            iterator: at its saved position, where it stays.
            key: under which it is tracked.
            tensors: what was saved.
            place: name of the iterator's own position in it.

        Raises:
            UnsupportedStrategyError: the iterator is of a kind that has no position.
        """
        name = self.resume(key, tensors)
        found, found_when_new = shuffles_in(tensors, place), shuffles_in(tensors, name)
        behind = [_tf_internals.dataset_behind(one) for one in _tf_internals.owned_iterators(iterator)]
        datasets = {index: dataset for index, dataset in enumerate(behind) if dataset is not None}
        if found < found_when_new:
            for index, dataset in datasets.items():
                # Any iterator of the data set will do: they share the seeds.
                _tf_internals.deserialize_iterator(iter(dataset), tensors[f"{name}/{index}"])
        shuffles = [len(set(map(id, _tf_internals.reshuffles(one)))) for one in datasets.values()]
        # Within an epoch a shuffle may have advanced its seeds beyond those that it had at the beginning.
        is_outdated = any(map(_tf_internals.has_second_passes, datasets.values()))
        if max(found, 0 if is_outdated else found_when_new) < max(shuffles, default=0):
            _warn_of_lost_seeds(key)


def _name(key: str) -> str:
    return f"new_iterator/{key}"


def _warn_of_lost_seeds(key: str) -> None:
    _log.warning(
        "Data iterator %r was saved at the end of an epoch, and its pipeline has several shuffles, or begins "
        "one anew within an epoch (repeat or concatenate behind it): the order of the epochs to come can "
        "differ from what it would have been. "
        "HINT: one shuffle behind all others, Dataset.shuffle(..., reshuffle_each_iteration=False), or one "
        "iterator of dataset.repeat() for all epochs.",
        key,
    )
