"""The pipeline behind every data set of this package: epoch, batch, indices, and what is read at them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_preempt.data.epochs import EpochCounter, keep
from tf_preempt.data.options import BatchOptions
from tf_preempt.data.order import shuffled
from tf_preempt.errors import ConfigError

_NOT_BEGUN = -1


def batches(
    counter: EpochCounter, read: Callable[[tf.Tensor, tf.Tensor], Any], *functions: Callable[..., Any]
) -> tf.data.Dataset:
    """One epoch of batches per iterator, each time the next one.

    An iterator's state is the number of its epoch and of its next batch.  All is done in one ``scan``, and
    TensorFlow is told to add no ``prefetch`` of its own; a ``map`` it would run in parallel.  Each would read
    ahead of the step that needs it, and what it had read would be in the iterator's state.

    Args:
        counter: of the data set's epochs, a new one.
        read: given a batch's indices, an int64 vector, and its place, the numbers of its epoch and in it,
            gives an element; traced as a TensorFlow function.
        *functions: of Python that `read` calls, which have to live as long as the data set.
    """
    options, begin = counter.options, counter.begin

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def step(epoch: tf.Tensor, batch: tf.Tensor) -> tuple[tf.Tensor, Any]:
        # Stateless for TensorFlow, which would not save positions otherwise; the input, which is known only
        # at run time, keeps it from being computed once and for all.
        begun = tf.cond(
            tf.equal(batch, 0),
            lambda: tf.numpy_function(begin, [batch], tf.int64, stateful=False),
            lambda: epoch,
        )
        epoch = tf.ensure_shape(begun, [])
        return epoch, read(_indices(options, epoch, batch), tf.stack([epoch, batch]))

    first = tf.constant(_NOT_BEGUN, tf.int64)
    dataset = tf.data.Dataset.range(options.batches).scan(first, step, name=options.made_by)
    keep(dataset, counter, begin, *functions)
    nothing_ahead = tf.data.Options()
    nothing_ahead.experimental_optimization.inject_prefetch = False
    return dataset.with_options(nothing_ahead)


def check_outside_of_functions(made_by: str) -> None:
    """Refuses to make a data set in a graph.

    Args:
        made_by: name of the public function that was called.

    Raises:
        ConfigError: called inside a ``tf.function``.
    """
    if not tf.executing_eagerly():
        raise ConfigError(
            f"{made_by} was called inside a tf.function or a function of a data set: expected a call "
            "outside, for the epochs are counted in Python.",
            hint="make the data set first, and let the function use it",
        )


def _indices(options: BatchOptions, epoch: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
    first = batch * options.batch_size
    positions = tf.range(first, tf.minimum(first + options.batch_size, options.examples))
    if options.shuffle:
        seed = tf.constant(options.seed, tf.int64)
        positions = shuffled(positions, seed=seed, epoch=epoch, examples=options.examples)
    return tf.ensure_shape(positions, [options.static_rows])
