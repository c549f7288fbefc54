"""The data of `fit` or of its validation: where it is, and how to bring it there again.

Two things have to come back: the iterator of the running epoch, and the seeds with which the shuffles of the
pipeline will order the epochs after it.  The seeds belong to the data set, not to an iterator: each new
iterator advances them (and a shuffle behind another one is advanced only when the first element is taken).
An iterator's state usually carries them, but not at its end, when what lies behind has let go of the shuffle.
So three sources are used, cheapest first:

1. the iterator's own state;
2. the state that it had when it was new, which is kept for this;
3. making and beginning as many iterators as the saved program had, without going through their elements;
   where shuffles begin anew within an epoch (`second_passes`), going through the elements of one again.

Data sets of `tf_preempt.data` need none of this: which epoch is next is a number, saved and set last.
"""

from __future__ import annotations

import logging
import weakref
from typing import Any

from tf_preempt.callbacks._keras_internals import Epochs
from tf_preempt.callbacks.resume_point import DataPlace
from tf_preempt.callbacks.second_passes import SecondPasses, warn_of_lost_seeds
from tf_preempt.checkpointing.any_workers import bound_to_workers, go_ahead, refuse_data
from tf_preempt.checkpointing.iterator_state import (
    advance,
    set_epochs,
    set_position,
    shuffles_in,
    take_epochs,
    take_position,
)
from tf_preempt.checkpointing.old_iterators import delete_in_background
from tf_preempt.strategies import _tf_internals

_log = logging.getLogger("tf_preempt")

_left_midway: weakref.WeakSet[Any] = weakref.WeakSet()
"""Shuffles of data sets whose `fit` was left in this process; in a new process they begin afresh."""


class DataStream:
    """One of Keras's epoch iterators, watched.

    Args:
        epochs: the epoch iterator.
        name: under which its positions are saved.
    """

    def __init__(self, epochs: Epochs, name: str) -> None:
        self._epochs = epochs
        self._name = name
        self._current: Any = None
        self._new_position: dict[str, Any] = {}
        self._begun = 0
        self._current_begun = False
        dataset = _tf_internals.undistributed(epochs.dataset)
        self._reshuffles = [] if dataset is None else _tf_internals.reshuffles(dataset)
        self._counters = [] if dataset is None else _tf_internals.epoch_counters(dataset)
        self._shuffles = len(self._shuffle_ids)
        has_second_passes = dataset is not None and _tf_internals.has_second_passes(dataset)
        self._second_passes = SecondPasses(name, self._shuffles) if has_second_passes else None

    @property
    def _shuffle_ids(self) -> set[int]:
        return {id(one) for one in self._reshuffles}

    @property
    def _counter_ids(self) -> set[int]:
        return {id(one) for one in self._counters if one.options.shuffle}

    def leave(self) -> None:
        """Notes that `fit` ends before its time, with the seeds of its data set where they are."""
        _left_midway.update(self._reshuffles)

    def shares_shuffle_with(self, other: DataStream) -> bool:
        """Says whether both draw from one shuffle, so that each advances the other's seeds."""
        return bool(self._shuffle_ids & other._shuffle_ids or self._counter_ids & other._counter_ids)

    def at_step(self, iterator: Any) -> None:
        """Notes which iterator the next step takes from; before it takes."""
        if iterator is not self._current:
            old = [self._current]
            self._current, self._current_begun = iterator, False
            delete_in_background(old)
            self._new_position = _place_of(iterator, f"{self._name}_new")
        if self._second_passes is not None:
            self._second_passes.at_step(iterator)

    def step_taken(self) -> None:
        """Notes that an element was taken from the iterator of `at_step`."""
        if not self._current_begun:
            self._current_begun = True
            self._begun += 1
        if self._second_passes is not None:
            self._second_passes.step_taken(self._epochs.steps_per_execution)

    def take(self, *, within: bool) -> tuple[DataPlace, dict[str, Any]]:
        """Where the data is, as JSON values and as tensors.

        Args:
            within: the phase to which this data belongs is running, and its next step has not begun.
        """
        iterator = self._current if within else self._epochs.iterator
        tensors = dict(self._new_position)
        if iterator is not None:
            tensors |= _place_of(iterator, self._name)
            if iterator is not self._current:  # made, but no step has come to it
                tensors |= _place_of(iterator, f"{self._name}_new")
        elif self._current is not None:  # between epochs of unknown length
            tensors |= take_epochs(self._current, self._name)
        seen, batches = self._epochs.counters
        replay, remade = None, False
        if self._second_passes is not None and shuffles_in(tensors, self._name) < self._shuffles:
            is_begun = iterator is self._current and self._current_begun
            replay, remade, base = self._second_passes.take(iterator, is_begun=is_begun)
            tensors |= base
        place = DataPlace(
            # Keras counts a step before it gives it.
            taken=seen - (self._epochs.steps_per_execution if within else 0),
            batches=batches,
            creations=self._epochs.creations,
            begun=self._begun,
            kept=iterator is not None,
            replay=replay,
            remade=remade,
        )
        return place, tensors

    def restore(self, place: DataPlace, tensors: dict[str, Any]) -> Any:
        """Brings the seeds of shuffles and a new iterator to where they were; returns the iterator.

        Raises:
            CheckpointMismatchError: the data set is not what it was, so that its place means nothing.
        """
        new = f"{self._name}_new"
        has_position = f"{self._name}/0" in tensors
        seeds_in_state = shuffles_in(tensors, self._name) >= self._shuffles
        iterator = self._epochs.create_iterator()
        passes = None if seeds_in_state else self._second_passes
        if passes is not None and place.replay is not None:
            return self._replay(passes, iterator, place, tensors)
        if passes is not None and place.begun:
            warn_of_lost_seeds()
        if not seeds_in_state and shuffles_in(tensors, new) < self._shuffles:
            iterator = self._begin_again(iterator, place, advanced_later=place.kept and not has_position)
        epochs = tensors
        if not set_position(iterator, self._name, tensors) and place.kept:
            set_epochs(iterator, new, tensors)
            self._go_without_state(iterator, place.taken)
            epochs = take_epochs(iterator, self._name)
        if not seeds_in_state and f"{new}/0" in tensors:
            set_position(self._epochs.create_iterator(), new, tensors)
        set_epochs(iterator, self._name, epochs)
        self._note_restored(iterator, place, tensors)
        return iterator

    def _go_without_state(self, iterator: Any, taken: int) -> None:
        """Goes to a place of which TensorFlow could save no state, or another number of workers did.

        Raises:
            CheckpointMismatchError: other workers wrote the checkpoint, and this data is bound to them.
        """
        reason = bound_to_workers(iterator, workers=1)
        if reason is None:
            go_ahead(iterator, taken)
        elif self._counters and take_position(iterator, self._name) is not None:
            refuse_data(self._name, reason)
        else:
            advance(iterator, taken)

    def _replay(self, passes: SecondPasses, iterator: Any, place: DataPlace, tensors: dict[str, Any]) -> Any:
        """Goes through the elements of the last epoch again; returns the iterator to go on with."""
        passes.replay(iterator, place.replay or 0, tensors, to_end=not place.kept)
        if place.remade:
            iterator = self._epochs.create_iterator()
            set_position(iterator, self._name, tensors)
        set_epochs(iterator, self._name, tensors)
        self._note_restored(iterator, place, tensors)
        return iterator

    def _note_restored(self, iterator: Any, place: DataPlace, tensors: dict[str, Any]) -> None:
        self._epochs.creations, self._begun = place.creations, place.begun
        self._epochs.counters = (place.taken, place.batches)
        self._current, self._current_begun = iterator, place.taken > 0
        new = f"{self._name}_new/"
        self._new_position = {name: tensor for name, tensor in tensors.items() if name.startswith(new)}

    def _begin_again(self, iterator: Any, place: DataPlace, *, advanced_later: bool) -> Any:
        """Makes as many iterators as were made, and begins as many as were begun; returns the last."""
        if any(one in _left_midway for one in self._reshuffles):
            _log.warning(
                "This data set was used by a training that was interrupted in this process, which moved the "
                "seeds of its shuffles on: after this resume the order of the data can differ. "
                "HINT: make the data set anew before fit is called again, or give the pipeline one shuffle."
            )
        to_begin = place.begun - (1 if advanced_later and place.taken else 0)
        if to_begin > 1:
            _log.info("The order of the data is restored by beginning %d epochs of it again.", to_begin)
        for made in range(place.creations):
            if made > 0:
                iterator = self._epochs.create_iterator()
            if made < to_begin:
                advance(iterator, 1)
        return iterator

    def draw_unused(self, kept: Any, taken: int, *, draws: bool) -> None:
        """Does to the data what Keras does that takes an element of it before a validation.

        Args:
            kept: the iterator that the validation before has left; None: it has left none.
            taken: how many elements were taken from that.
            draws: beginning an iterator draws random numbers that later ones will not draw.
        """
        goes_on = kept is not None and self._epochs.goes_on
        if goes_on and taken:
            return  # nothing that is new is begun
        iterator = kept if goes_on else self._epochs.create_iterator()
        if self._shuffles > 1 or draws:
            epochs = take_epochs(iterator, self._name)
            advance(iterator, 1)
            set_epochs(iterator, self._name, epochs)
        self._begun += 1


def _place_of(iterator: Any, name: str) -> dict[str, Any]:
    """The position of an iterator; where its state cannot be saved, the numbers of epochs at least."""
    position = take_position(iterator, name)
    return take_epochs(iterator, name) if position is None else position
