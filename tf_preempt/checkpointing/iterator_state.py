"""Positions of data iterators: taken as tensors, set in place.

A position is the iterator's own state (shuffle buffers, prefetched elements, seeds of shuffles), so restoring
costs what the state weighs and not what came before.  Pipelines that keep state outside the iterator (Python
generators, stateful random ops in ``map``) have no position; their iterators are advanced again instead.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_preempt.strategies import _tf_internals


def take_position(iterator: Any, name: str) -> dict[str, Any] | None:
    """The position of this worker's part of an iterator.

    Args:
        iterator: a ``tf.data.Iterator`` or an iterator over a distributed data set.
        name: of the position in the worker's part; each tensor's name begins with it.

    Returns:
        Variant tensors by name, or None if the pipeline's state cannot be saved.

    Raises:
        UnsupportedStrategyError: the iterator is of a kind that has no position.
    """
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
    """
    owned_iterators = _tf_internals.owned_iterators(iterator)
    names = [f"{name}/{index}" for index in range(len(owned_iterators))]
    if not all(key in tensors for key in names):
        return False
    for owned, key in zip(owned_iterators, names, strict=True):
        _tf_internals.deserialize_iterator(owned, tensors[key])
    return True


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
