"""What an iterator goes through, changed in place: the data set again, nothing more, or with a count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_preempt.strategies._tf_internals.access import attribute
from tf_preempt.strategies._tf_internals.iterators import owned_iterators


def restart_iterator(iterator: Any) -> None:
    """Puts an iterator at the beginning of its data set; functions that captured it go on with it.

    As with a new iterator, a shuffle that orders each iteration anew draws a new order.

    Args:
        iterator: a ``tf.data.Iterator``, or what ``iter`` gives for a distributed data set.

    Raises:
        UnsupportedStrategyError: TensorFlow's prefetching iterator over several devices, which cannot be
            started again in place.
        InternalsChangedError: TensorFlow's private names have changed.
    """
    for owned in owned_iterators(iterator):
        _make(owned, attribute(owned, "_dataset", "OwnedIterator"))


def end_iterator(iterator: Any) -> None:
    """Lets an iterator have no more elements; its threads, which read ahead, have ended afterwards.

    Args:
        iterator: as for `restart_iterator`.

    Raises:
        UnsupportedStrategyError, InternalsChangedError: as for `restart_iterator`.
    """
    for owned in owned_iterators(iterator):
        _make(owned, attribute(owned, "_dataset", "OwnedIterator").take(0))


def count_elements(owned: Any, count: Callable[[], None]) -> None:
    """Puts an iterator at the beginning of its data set, and lets a function know of each element it gives.

    Also of those that are taken in a ``tf.function``; not of what the pipeline reads ahead.

    Args:
        owned: one of `owned_iterators`.
        count: called in one of TensorFlow's threads.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    dataset = attribute(owned, "_dataset", "OwnedIterator")
    structure = dataset.element_spec

    def call() -> np.bool_:
        count()
        return np.bool_(True)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def counted(*element: Any) -> Any:
        with tf.control_dependencies([tf.numpy_function(call, [], tf.bool)]):
            leaves = [
                None if leaf is None else tf.nest.map_structure(tf.identity, leaf, expand_composites=True)
                for leaf in tf.nest.flatten(element)
            ]
        return tf.nest.pack_sequence_as(structure, leaves)

    nothing_ahead = tf.data.Options()
    nothing_ahead.experimental_optimization.inject_prefetch = False  # it would come after the count
    with_count = dataset.map(counted).with_options(nothing_ahead)
    owned._dataset, owned._counts_with = with_count, call  # which have to live as long
    _make(owned, with_count)


def count_in_state(owned: Any, count: Callable[[int], None]) -> None:
    """Puts an iterator at the beginning of its data set, and counts in its state the elements that it gives.

    Also those that are taken in a ``tf.function``; not what the pipeline reads ahead.

    Args:
        owned: one of `owned_iterators`, over data whose state can be saved.
        count: called with the number of elements so far, in one of TensorFlow's threads.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    dataset = attribute(owned, "_dataset", "OwnedIterator")
    structure = dataset.element_spec

    def call(taken: np.ndarray) -> np.int64:
        count(int(taken))
        return np.int64(taken)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def counted(before: tf.Tensor, *element: Any) -> tuple[tf.Tensor, Any]:
        # Stateless for TensorFlow, which would not save positions otherwise.
        taken = tf.ensure_shape(tf.numpy_function(call, [before + 1], tf.int64, stateful=False), [])
        return taken, tf.nest.pack_sequence_as(structure, tf.nest.flatten(element))

    nothing_ahead = tf.data.Options()
    nothing_ahead.experimental_optimization.inject_prefetch = False  # it would come after the count
    with_count = dataset.scan(tf.constant(0, tf.int64), counted).with_options(nothing_ahead)
    owned._dataset, owned._counts_with = with_count, call  # which have to live as long
    _make(owned, with_count)


def _make(owned: Any, dataset: tf.data.Dataset) -> None:
    resource = attribute(owned, "_iterator_resource", "OwnedIterator")
    with tf.device(resource.device):
        tf.raw_ops.MakeIterator(dataset=attribute(dataset, "_variant_tensor", "Dataset"), iterator=resource)
