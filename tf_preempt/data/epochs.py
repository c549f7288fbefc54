"""Which epoch of a data set begins next: the one thing that an iterator over it does not know by itself.

The number is kept in Python, beside the data set.  A pipeline asks for it when the first element of an
iterator is asked for, and from then on it is part of the iterator's own state.  Were it a ``tf.Variable``
that the pipeline advances, TensorFlow would refuse to save any position; and a copy of the pipeline's graph,
as it is made to divide data over workers, would count for itself.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tf_preempt.data.options import BatchOptions


class EpochCounter:
    """Counts the epochs of one data set, however many iterators there are over it; for all threads.

    Args:
        options: of the data set.
    """

    def __init__(self, options: BatchOptions) -> None:
        self.options = options
        self._next = 0
        self._passed_over: tuple[int, int] | None = None
        self._lock = threading.Lock()

    @property
    def next_epoch(self) -> int:
        """The number of the epoch that the next iterator begins; from 0."""
        with self._lock:
            return self._next

    @next_epoch.setter
    def next_epoch(self, epoch: int) -> None:
        with self._lock:
            self._next = epoch

    def begin(self, *_: Any) -> np.int64:
        """The number of an epoch that begins now."""
        with self._lock:
            epoch = self._next
            self._next += 1
        return np.int64(epoch)

    @contextlib.contextmanager
    def passing_over(self, batches: int) -> Iterator[None]:
        """Lets a new iterator be brought to a place in the block without reading what lies before.

        Args:
            batches: from the beginning of the next epoch on, over the ends of epochs; all of them have to be
                taken in the block, and whatever they hold dropped.
        """
        with self._lock:
            self._passed_over = (self._next, batches)
        try:
            yield
        finally:
            with self._lock:
                self._passed_over = None

    def is_passed_over(self, epoch: int, batch: int) -> bool:
        """Says whether a batch is one that nobody looks at."""
        with self._lock:
            if self._passed_over is None:
                return False
            first, batches = self._passed_over
        return 0 <= (epoch - first) * self.options.batches + batch < batches


_counters: weakref.WeakKeyDictionary[tf.data.Dataset, EpochCounter] = weakref.WeakKeyDictionary()

# Python functions that a data set calls.  TensorFlow ties them to its default graph, which
# keras.backend.clear_session() replaces.
_functions: weakref.WeakKeyDictionary[tf.data.Dataset, Any] = weakref.WeakKeyDictionary()


def counter_of(dataset: tf.data.Dataset) -> EpochCounter | None:
    """The counter of this very data set, not of what it reads from; None if it has none."""
    return _counters.get(dataset)


def keep(dataset: tf.data.Dataset, counter: EpochCounter, *functions: Callable[..., Any]) -> None:
    """Lets what a data set needs of Python live as long as the data set.

    Args:
        dataset: made by this package.
        counter: of its epochs.
        *functions: that it calls.
    """
    _counters[dataset] = counter
    _functions[dataset] = functions
