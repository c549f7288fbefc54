"""Data that any number of workers can go on with: where its place is a number of steps, and nothing else.

A data set of `tf_preempt.data` that a strategy divides gives all workers together one batch in each step,
however many they are.  So a place is the epoch with which the iterator began, and the steps taken since.
Another number of workers goes there in new iterators, without reading what lies before.
"""

from __future__ import annotations

import contextlib
from typing import Any, NoReturn

import tensorflow as tf

from tf_preempt.checkpointing.iterator_state import epoch_counters_of
from tf_preempt.errors import CheckpointMismatchError
from tf_preempt.strategies import _tf_internals

_Policy = tf.data.experimental.AutoShardPolicy
_DIVIDED_BY_US = (_Policy.AUTO, _Policy.DATA)


def bound_to_workers(iterator: Any, *, workers: int) -> str | None:
    """Why the place of an iterator means nothing to another number of workers; None if it does.

    Args:
        iterator: a ``tf.data.Iterator`` or an iterator over a distributed data set.
        workers: how many there are now.

    Raises:
        UnsupportedStrategyError: the iterator is of a kind that has no position.
        InternalsChangedError: TensorFlow's private names have changed.
    """
    is_distributed = isinstance(iterator, tf.distribute.DistributedIterator)
    if is_distributed and not _tf_internals.is_divided_by_strategy(iterator):
        return "a function of the program makes each worker's data set"
    if workers > 1 and not is_distributed:
        return "each of several workers has a data set of its own, which no strategy divides"
    reasons = (_why_not(owned) for owned in _tf_internals.owned_iterators(iterator))
    return next(filter(None, reasons), None)


def _why_not(owned: Any) -> str | None:
    dataset = _tf_internals.dataset_behind(owned)
    if dataset is None:
        return "its data set is not known"
    counters = _tf_internals.epoch_counters(dataset)
    if not counters:
        return "it is not read by tf_preempt.data.from_source or from_arrays"
    kind = _tf_internals.first_not_one_for_one(dataset)
    if kind is not None:
        return f"its pipeline holds a {kind}, which may give more or fewer elements than it takes"
    if dataset.options().experimental_distribute.auto_shard_policy not in _DIVIDED_BY_US:
        return "its options set a policy for dividing it"
    if any(map(_tf_internals.is_unordered, _tf_internals.walk_dataset(dataset))):
        return "its pipeline gives first what is ready first (deterministic=False)"
    outside = _tf_internals.outside_state(dataset)
    if outside.others or _tf_internals.changes_variables(dataset):
        return "its functions draw random numbers or keep something else outside of the iterator"
    if _tf_internals.has_rounds(dataset) and any(one.options.static_rows is None for one in counters):
        return "the last batch of each round is smaller, and is filled up with examples of the next round"
    return None


def refuse_data(name: str, reason: str) -> NoReturn:
    """Refuses to go on in data whose place in a checkpoint of another number of workers means nothing here.

    Args:
        name: of the data in `fit`.
        reason: as `bound_to_workers` gives it.

    Raises:
        CheckpointMismatchError: always.
    """
    raise CheckpointMismatchError(
        "The checkpoint was written by another number of workers, and this one cannot go on with the "
        f"data {name!r}: {reason}.",
        hint="make the data set as before, or start as many workers as wrote the checkpoint",
    )


def check_replicas(saved: int | None, present: int, *, iterator: str | None = None) -> None:
    """Refuses a checkpoint that as many workers have written, with other numbers of replicas.

    Only for these: between other numbers of workers numbers of replicas may differ, too.

    Args:
        saved: replicas that this worker had; None if an earlier version kept no number.
        present: replicas that it has now.
        iterator: name of the tracked iterator of which this is said; None: of all of `fit`.

    Raises:
        CheckpointMismatchError: it has more or fewer than it had.
    """
    if saved in (None, present):
        return
    if iterator is None:
        message = (
            f"The checkpoint was written with {saved} replica(s) per worker; now there are {present}, "
            "to which the parts of metrics and the place in the data do not fit."
        )
    else:
        message = (
            f"Data iterator {iterator!r} gave each batch to {saved} replica(s) of this worker when the "
            f"checkpoint was written, and gives it to {present} now: its elements are other examples."
        )
    raise CheckpointMismatchError(message, hint=f"use {saved} device(s) per worker, or another directory")


def steps_taken(iterator: Any, elements: int) -> int:
    """How many steps an iterator has given, of whose elements each replica of this worker gets one.

    Args:
        iterator: as for `bound_to_workers`.
        elements: that were taken from one of this worker's iterators.

    Raises:
        UnsupportedStrategyError, InternalsChangedError: as for `bound_to_workers`.
    """
    return -(-elements // _tf_internals.elements_per_step(iterator))


def go_ahead(iterator: Any, steps: int) -> None:
    """Goes to a place in a new iterator over data of `tf_preempt.data`, from the epoch that begins next on.

    No item of a source is read of what lies before (but for those that ``take`` and ``skip`` leave out), and
    functions of ``map`` are called with items that they know.

    Args:
        iterator: to which `bound_to_workers` gives no reason; nothing was taken from it.
        steps: as `steps_taken` counts them.

    Raises:
        CheckpointMismatchError: the data ends before.
        UnsupportedStrategyError, InternalsChangedError: as for `bound_to_workers`.
    """
    elements = steps * _tf_internals.elements_per_step(iterator)
    with contextlib.ExitStack() as stack:
        for counter in epoch_counters_of(iterator):
            stack.enter_context(counter.passing_over(steps))
        for owned in _tf_internals.owned_iterators(iterator):
            for taken in range(elements):
                if next(owned, None) is None:
                    raise CheckpointMismatchError(
                        f"The data ends after {taken} elements on this worker; the checkpoint was written "
                        f"after {steps} steps, which take {elements}.",
                        hint="use the same data and batch size as before, or another directory",
                    )
