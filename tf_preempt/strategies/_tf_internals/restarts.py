"""Starting an iterator over its data set again, in place."""

from __future__ import annotations

from typing import Any

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
        dataset = attribute(owned, "_dataset", "OwnedIterator")
        resource = attribute(owned, "_iterator_resource", "OwnedIterator")
        with tf.device(resource.device):
            tf.raw_ops.MakeIterator(
                dataset=attribute(dataset, "_variant_tensor", "Dataset"), iterator=resource
            )
