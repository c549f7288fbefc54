"""Positions of data iterators: taken as tensors, set in place.

A position is the iterator's own state (shuffle buffers, prefetched elements, seeds of shuffles), so restoring
costs what the state weighs and not what came before.  Pipelines that keep state outside the iterator (Python
generators, stateful random ops in ``map``) have no position; their iterators are advanced again instead.

Data sets of `tf_preempt.data` have one thing beside the iterator: the number of the epoch that the next one
begins.  It is a part of each position.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_preempt.data.epochs import EpochCounter
from tf_preempt.data.options import describe
from tf_preempt.errors import CheckpointMismatchError, ConfigError
from tf_preempt.strategies import _tf_internals

_EPOCHS = "epochs"


def take_position(iterator: Any, name: str) -> dict[str, Any] | None:
    """The position of this worker's part of an iterator.

    Args:
        iterator: a ``tf.data.Iterator`` or an iterator over a distributed data set.
        name: of the position in the worker's part; each tensor's name begins with it.

    Returns:
        Variant tensors by name, and with them what `take_epochs` gives; None if the pipeline's state cannot
        be saved.

    Raises:
        UnsupportedStrategyError: the iterator is of a kind that has no position.
        ConfigError: see `take_epochs`.
    """
    while True:
        epochs = take_epochs(iterator, name)
        tensors = _take_state(iterator, name)
        if tensors is None:
            return None
        # What reads ahead may have begun an epoch in between: the state has it, the number has not.
        if _same(epochs, take_epochs(iterator, name)):
            return tensors | epochs


def _take_state(iterator: Any, name: str) -> dict[str, Any] | None:
    tensors = {}
    for index, owned in enumerate(_tf_internals.owned_iterators(iterator)):
        try:
            tensors[f"{name}/{index}"] = _tf_internals.serialize_iterator(owned)
        except (tf.errors.FailedPreconditionError, tf.errors.UnimplementedError):
            return None
    return tensors


def set_position(iterator: Any, name: str, tensors: dict[str, Any]) -> bool:
    """Puts an iterator over an equal data set where another one was.

    Args:
        iterator: as for `take_position`.
        name: as for `take_position`.
        tensors: what it returned, possibly among others.

    Returns:
        False if there is no position under that name.

    Raises:
        UnsupportedStrategyError, ConfigError: as for `take_position`.
        CheckpointMismatchError: see `set_epochs`.
    """
    owned_iterators = _tf_internals.owned_iterators(iterator)
    names = [f"{name}/{index}" for index in range(len(owned_iterators))]
    if not all(key in tensors for key in names):
        return False
    for owned, key in zip(owned_iterators, names, strict=True):
        _tf_internals.deserialize_iterator(owned, tensors[key])
    set_epochs(iterator, name, tensors)
    return True


def take_epochs(iterator: Any, name: str) -> dict[str, Any]:
    """Which epochs the next iterators over the data sets of `tf_preempt.data` begin.

    Args:
        iterator: as for `take_position`.
        name: as for `take_position`.

    Returns:
        One int64 matrix, with a row for each such data set: the epoch, and what its order depends on.
        Nothing where there is none.  The same numbers for any number of workers.

    Raises:
        UnsupportedStrategyError: the iterator is of a kind that has no position.
        ConfigError: options of the data set let TensorFlow keep less in its state than that takes.
    """
    rows = [[counter.next_epoch, *counter.options.as_numbers()] for counter in epoch_counters_of(iterator)]
    return {f"{name}/{_EPOCHS}": tf.constant(rows, tf.int64)} if rows else {}


def set_epochs(iterator: Any, name: str, tensors: dict[str, Any]) -> None:
    """Lets the next iterators begin the epochs that `take_epochs` found.

    Args:
        iterator: over an equal data set.
        name: as for `take_position`.
        tensors: what it returned, possibly among others.

    Raises:
        UnsupportedStrategyError, ConfigError: as for `take_epochs`.
        CheckpointMismatchError: a data set has another length, batch size or seed now.
    """
    saved = tensors.get(f"{name}/{_EPOCHS}")
    if saved is None:
        return
    rows, counters = saved.numpy().tolist(), epoch_counters_of(iterator)
    there = [counter.options.as_numbers() for counter in counters]
    if there != [numbers for _, *numbers in rows]:
        before = ", ".join(describe("", numbers) for _, *numbers in rows)
        now = ", ".join(describe("", numbers) for numbers in there) or "none"
        raise CheckpointMismatchError(
            f"The data of {name!r} was made by tf_preempt.data with {before} when the checkpoint was "
            f"written, and is now made with {now}: its examples would come in another order.",
            hint="make the data set as before, or use another directory",
        )
    for counter, (epoch, *_) in zip(counters, rows, strict=True):
        counter.next_epoch = epoch


def saved_epochs(name: str, tensors: dict[str, Any]) -> list[int]:
    """The numbers of the epochs that `take_epochs` found; none where it found no data set.

    Args:
        name: as for `take_position`.
        tensors: what it returned, possibly among others.
    """
    saved = tensors.get(f"{name}/{_EPOCHS}")
    return [] if saved is None else [int(row[0]) for row in saved.numpy()]


def epoch_counters_of(iterator: Any) -> list[EpochCounter]:
    """What counts the epochs of the data sets of `tf_preempt.data` that an iterator reads.

    Raises:
        UnsupportedStrategyError, ConfigError: as for `take_epochs`.
    """
    behind = [_tf_internals.dataset_behind(owned) for owned in _tf_internals.owned_iterators(iterator)]
    datasets = [dataset for dataset in behind if dataset is not None]
    counters = _tf_internals.epoch_counters(*datasets)
    if counters and any(dataset.options().experimental_symbolic_checkpoint for dataset in datasets):
        raise ConfigError(
            "options.experimental_symbolic_checkpoint=True of a data set of tf_preempt.data: TensorFlow "
            "would go on from the beginning of what was read ahead, with the number of a later epoch.",
            hint="leave the option out: the position of such a data set is a few numbers anyway",
        )
    return counters


def _same(some: dict[str, Any], others: dict[str, Any]) -> bool:
    return all(bool(tf.reduce_all(tensor == others[key])) for key, tensor in some.items())


def shuffles_in(tensors: dict[str, Any], name: str) -> int:
    """How many shuffles' seeds a position brings back.

    Not always all that the pipeline has: a shuffle that has given its last element is gone from the state
    (a prefetch behind it looks ahead), and one behind another shuffle is not there before the first element.
    """
    variants = tensors.get(f"{name}/0")
    if variants is None:
        return 0
    return _tf_internals.shuffles_in_state(variants)


def advance(iterator: Any, elements: int) -> None:
    """Takes elements and drops them: the slow way to a position."""
    for _ in range(elements):
        next(iterator)
