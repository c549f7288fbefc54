"""Batches from whatever can be read by index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_preempt.data.batches import batches, check_outside_of_functions
from tf_preempt.data.epochs import EpochCounter
from tf_preempt.data.items import ItemFormat
from tf_preempt.data.options import BatchOptions, check_not_empty
from tf_preempt.errors import ConfigError

_NAME = "from_source"
# That a message lists.
_MOST_INDICES = 8


def from_source(
    source: Any,
    *,
    batch_size: int,
    shuffle: bool = True,
    seed: int | None = None,
    drop_remainder: bool = False,
) -> tf.data.Dataset:
    """A data set of batches of items that are read by index, in an order that a resumed run has again.

    Use it for what does not fit into memory and can be read anywhere: ``tfds.data_source``, HDF5, a list of
    files that ``__getitem__`` opens.  A resumed run reads nothing that was trained on before.

    The order of an epoch follows from `seed` and the number of the epoch alone.  Each new iterator begins the
    next epoch, and so does each round of ``repeat``.  The first batch that Keras looks at before training,
    under a strategy of this package, does not count.

    Example:
        >>> source = tfds.data_source("mnist", split="train")
        >>> data = tf_preempt.data.from_source(source, batch_size=32, seed=1)
        >>> data = data.map(lambda item: (item["image"], item["label"])).prefetch(2)

    Args:
        source: has ``__len__`` and ``__getitem__``, which takes an index from 0 and gives one item: arrays,
            tensors, numbers and texts, in dicts and tuples.  If it has ``__getitems__``, that is given the
            list of a batch's indices, and gives as many items.  TensorFlow's threads call them, one call
            after the other for one iterator.  Item 0 is read once at the beginning; all others must have
            its structure, shapes and dtypes.
        batch_size: items of a batch, of all replicas together.
        shuffle: a new order in each epoch; else the order of the indices.
        seed: of the orders, from 0 to 2**63 - 1; the same on all workers.  Needed with `shuffle`.
        drop_remainder: leave out a last batch that is not full.

    Returns:
        A ``tf.data.Dataset`` of known length whose elements are structured like an item, with an axis of
        `batch_size` put first (of unknown length where the last batch is smaller).

    Raises:
        ConfigError: the source cannot be read by index or is empty; its first item cannot be read, or holds
            what is no tensor; called inside a ``tf.function``; see also `BatchOptions`.  While the data set
            is read, an item that differs from the first one, or whose reading raises, ends in TensorFlow's
            ``InvalidArgumentError`` with the text of a `ConfigError` that names its index.
    """
    check_outside_of_functions(_NAME)
    # Before the options: without a source, no seed is of any use.
    examples = _length(source)
    first_item = _first_item(source)
    found = ItemFormat(first_item)
    options = BatchOptions(
        made_by=_NAME,
        examples=examples,
        batch_size=batch_size,
        shuffle=shuffle,
        seed=seed,
        drop_remainder=drop_remainder,
    )
    read = _reader(source)
    counter = EpochCounter(options)

    def fetch(indices: np.ndarray, place: np.ndarray) -> list[np.ndarray]:
        wanted = [int(index) for index in indices]
        if counter.is_passed_over(*map(int, place)):
            return found.stack([first_item] * len(wanted), [0] * len(wanted))
        return found.stack(read(wanted), wanted)

    def batch(indices: tf.Tensor, place: tf.Tensor) -> Any:
        # Stateless, so that positions can be saved: which items are read follows from the indices.
        parts = tf.numpy_function(fetch, [indices, place], found.dtypes, stateful=False)
        for part, shape in zip(parts, found.shapes, strict=True):
            part.set_shape([options.static_rows, *shape])
        return tf.nest.pack_sequence_as(found.structure, parts)

    return batches(counter, batch, fetch)


def _length(source: Any) -> int:
    if isinstance(source, type):
        raise ConfigError(
            f"from_source was given the class {source.__name__}: expected an instance of it.",
            hint=f"{source.__name__}(), with the arguments that it takes",
        )
    if not hasattr(source, "__getitem__") or not hasattr(source, "__len__"):
        raise ConfigError(
            f"from_source was given a value of type {type(source).__name__}: expected __len__ and "
            "__getitem__, as a list or tfds.data_source has them.",
            hint="a generator or a tf.data.Dataset cannot be read by index: write its examples to files that "
            "can, or shuffle it with a seed of its own",
        )
    try:
        length = len(source)
    except Exception as error:
        raise ConfigError(
            f"the length of the source, of type {type(source).__name__}, cannot be asked for: "
            f"{_raised(error)}",
            hint="__len__ has to return the number of items",
        ) from error
    check_not_empty(_NAME, length)
    return length


def _first_item(source: Any) -> Any:
    try:
        return source[0]
    except Exception as error:
        raise ConfigError(
            f"item 0 of the source, of type {type(source).__name__}: {_raised(error)}; expected one item per "
            "index, from 0.",
            hint="for a table or a dict, write a class whose __getitem__ takes the number of a row",
        ) from error


def _reader(source: Any) -> Callable[[list[int]], Sequence[Any]]:
    read_many = getattr(source, "__getitems__", None)
    if read_many is None:
        return lambda indices: [_item(source, index) for index in indices]

    def read(indices: list[int]) -> Sequence[Any]:
        try:
            items = read_many(indices)
        except Exception as error:
            raise ConfigError(
                f"items {_some(indices)} of the source: {_raised(error)}",
                hint=f"try source.__getitems__([{indices[0]}]) by itself",
            ) from error
        if not isinstance(items, Sequence) or len(items) != len(indices):
            raise ConfigError(
                f"__getitems__ of the source was asked for {len(indices)} items ({_some(indices)}) and gave "
                f"{items!r:.80}: expected a list of as many items.",
                hint="return one item per index, or leave __getitems__ out",
            )
        return items

    return read


def _item(source: Any, index: int) -> Any:
    """One item.

    Raises:
        ConfigError: it cannot be read.  Whatever the source raises: TensorFlow would take a StopIteration for
            the end of the data.
    """
    try:
        return source[index]
    except Exception as error:
        raise ConfigError(
            f"item {index} of the source: {_raised(error)}",
            hint=f"try source[{index}] by itself; each index below len(source) has to give an item",
        ) from error


def _raised(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _some(indices: Sequence[int]) -> str:
    return ", ".join(map(str, indices[:_MOST_INDICES])) + (", ..." if len(indices) > _MOST_INDICES else "")
