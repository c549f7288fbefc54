"""Iterators whose position can be saved and set."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_preempt import errors
from tf_preempt.strategies._tf_internals.access import attribute
from tf_preempt.strategies._tf_internals.outside_state import OutsideState, outside_state

# tf.data.experimental.ExternalStatePolicy as the numbers that the op takes.
_IGNORE_EXTERNAL_STATE, _FAIL_ON_EXTERNAL_STATE = 1, 2


def owned_iterators(iterator: Any) -> list[Any]:
    """The iterators of this worker whose state can be saved and set.

    Args:
        iterator: a ``tf.data.Iterator``, or what ``iter`` gives for a distributed data set.

    Raises:
        UnsupportedStrategyError: the iterator has no state that can be saved: it is TensorFlow's prefetching
            iterator over several devices, or no iterator of ``tf.data`` at all.
        InternalsChangedError: TensorFlow's private names have changed.
    """
    if isinstance(iterator, tf.distribute.DistributedIterator):
        workers = attribute(iterator, "_iterators", "DistributedIterator")
        found = [attribute(worker, "_iterator", "DistributedIterator._iterators[i]") for worker in workers]
    else:
        found = [iterator]
    for one in found:
        if not isinstance(one, tf.data.Iterator):
            raise errors.UnsupportedStrategyError(
                f"the position of a {type(one).__name__} (in a {type(iterator).__name__}) cannot be saved: "
                "expected a tf.data.Iterator, one per worker.",
                hint="distribute the tf.data.Dataset with strategy.experimental_distribute_dataset of a "
                "tf_preempt.strategies strategy, without `options`, after the PreemptionCheckpoint or the "
                "PreemptionCheckpointHandler has been made.",
            )
    return found


def elements_per_step(iterator: Any) -> int:
    """How many elements one step takes from each of `owned_iterators`: one for each replica on its worker.

    Args:
        iterator: as for `owned_iterators`.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    if not isinstance(iterator, tf.distribute.DistributedIterator):
        return 1
    first = attribute(iterator, "_iterators", "DistributedIterator")[0]
    return len(attribute(first, "_devices", "DistributedIterator._iterators[i]"))


def is_divided_by_strategy(iterator: Any) -> bool:
    """Says whether a strategy of this package has divided one data set over the workers for this iterator."""
    return bool(getattr(iterator, "is_divided", False))


def dataset_behind(owned: Any) -> tf.data.Dataset | None:
    """The data set that one iterator goes through, after distribution; None if it was made in a graph.

    Args:
        owned: one of `owned_iterators`.
    """
    found = getattr(owned, "_dataset", None)
    return found if isinstance(found, tf.data.Dataset) else None


def outside_state_of(owned: Any) -> OutsideState | None:
    """What the data set of one iterator keeps outside of it; None if the data set is not known.

    Args:
        owned: one of `owned_iterators`.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    dataset = dataset_behind(owned)
    return None if dataset is None else outside_state(dataset)


def serialize_iterator(owned: Any) -> tf.Tensor:
    """The state of one iterator; without that of variables that the pipeline's functions use.

    Args:
        owned: one of `owned_iterators`.

    Returns:
        A vector of variants; ``tf.io.serialize_tensor`` turns each element into bytes.

    Raises:
        tf.errors.FailedPreconditionError: the pipeline holds state that is neither in the iterator nor in
            variables (a Python generator, a stateful random op): its position would not bring it back.
        InternalsChangedError: TensorFlow's private names have changed.
    """
    outside = outside_state_of(owned)
    in_variables = outside is not None and outside.variables and outside.is_in_variables
    policy = _IGNORE_EXTERNAL_STATE if in_variables else _FAIL_ON_EXTERNAL_STATE
    resource = attribute(owned, "_iterator_resource", "OwnedIterator")
    with tf.device(resource.device):
        return tf.raw_ops.SerializeIterator(resource_handle=resource, external_state_policy=policy)


def is_at_beginning(owned: Any) -> bool:
    """Says whether nothing was taken from an iterator whose position can be saved.

    Args:
        owned: one of `owned_iterators`.

    Raises:
        tf.errors.FailedPreconditionError: see `serialize_iterator`.
        InternalsChangedError: TensorFlow's private names have changed.
    """
    dataset = dataset_behind(owned)
    return dataset is not None and _state_bytes(owned) == _state_bytes(iter(dataset))


def _state_bytes(owned: Any) -> list[bytes]:
    return [tf.io.serialize_tensor(one).numpy() for one in tf.unstack(serialize_iterator(owned))]


def deserialize_iterator(owned: Any, variant: tf.Tensor) -> None:
    """Sets the state of an iterator over an equal data set, in place.

    Args:
        owned: one of `owned_iterators`.
        variant: what `serialize_iterator` gave.

    Raises:
        tf.errors.OpError: the state is of another pipeline.
        InternalsChangedError: TensorFlow's private names have changed.
    """
    resource = attribute(owned, "_iterator_resource", "OwnedIterator")
    with tf.device(resource.device):
        tf.raw_ops.DeserializeIterator(resource_handle=resource, serialized=variant)


def shuffles_in_state(variants: tf.Tensor) -> int:
    """How many shuffles that order each iteration anew have their seeds in an iterator's state.

    Each writes two keys into it, both of which end in the same words.
    """
    content = b"".join(tf.io.serialize_tensor(variant).numpy() for variant in tf.unstack(variants))
    return content.count(b"num_random_samples") // 2
