"""Input iterators as TensorFlow 1.15's strategies gave them: ``initialize`` and ``get_next``."""

from __future__ import annotations

from typing import Any, NoReturn

import tensorflow as tf

from tf_preempt import errors
from tf_preempt.strategies import _tf_internals

# How TensorFlow says, when a batch is drawn, that it has no axis along which to divide it.
_CANNOT_DIVIDE = "Cannot rebatch dataset"

# What to do where a batch cannot be divided, in the words of `make_dataset_iterator`.
INPUT_FN_HINT = (
    "use make_input_fn_iterator (today: strategy.distribute_datasets_from_function), whose function gives "
    "batches of the per-replica size, which are not divided."
)


class ClassicIterator(tf.distribute.DistributedIterator):  # type: ignore[misc]
    """An iterator over distributed input that can be started again, as ``make_dataset_iterator`` gives it.

    It is at the beginning of its data when it is made, so that `initialize` may be left out.  For
    everything else it is the iterator that ``iter(distributed_dataset)`` gives: a ``for`` loop inside a
    ``tf.function`` draws from it, and a handler can track its position.

    Example:
        >>> iterator = strategy.make_dataset_iterator(dataset)
        >>> iterator.initialize()
        >>> strategy.run(train_step, args=(iterator.get_next(),))

    Args:
        dataset: a ``tf.distribute.DistributedDataset``.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._iterator = iter(dataset)
        self._captured = False

    def __getattr__(self, name: str) -> Any:
        if name == "_iterator":  # asked for before __init__ has set it, as copying does
            raise AttributeError(name)
        return getattr(self._iterator, name)

    def __iter__(self) -> ClassicIterator:
        return self

    def __next__(self) -> Any:
        try:
            return self.get_next()
        except tf.errors.OutOfRangeError:
            raise StopIteration from None

    @property
    def element_spec(self) -> Any:
        """The types of what `get_next` gives: per-replica specs where there are several replicas."""
        return self._iterator.element_spec

    def get_next(self) -> Any:
        """The next input of every replica of this worker, each its own part.

        Raises:
            tf.errors.OutOfRangeError: there is no more input on any worker.
            ConfigError: a batch has no axis to divide it along, which shows only now (eager mode; inside a
                ``tf.function`` it is TensorFlow's own InvalidArgumentError).
            ValueError: called by a replica, inside ``strategy.run`` (TensorFlow's own error).
        """
        self._note_capture()
        try:
            return self._iterator.get_next()
        except tf.errors.InvalidArgumentError as error:
            if _CANNOT_DIVIDE not in str(error):
                raise
            raise errors.ConfigError(
                "an element of the data set cannot be divided over the replicas: expected batches of the "
                "global size, with a first axis of one length in every component.",
                hint=INPUT_FN_HINT,
            ) from error

    def get_next_as_optional(self) -> Any:
        """The next input as a ``tf.experimental.Optional``; at the end it is empty, on all workers alike."""
        self._note_capture()
        return self._iterator.get_next_as_optional()

    def initialize(self) -> list[Any]:
        """Starts again at the beginning of the data.

        A shuffle that orders each iteration anew draws a new order.  Functions that drew from this iterator
        when they were traced go on with it.

        Returns:
            An empty list: TensorFlow 1.15 returned operations to run in a session, of which there are none.

        Raises:
            ConfigError: a ``tf.function`` draws from this iterator, and it is one of TensorFlow's that copy
                batches to several devices ahead of time: it cannot be started again in place.
        """
        try:
            _tf_internals.restart_iterator(self._iterator)
        except errors.UnsupportedStrategyError:
            # A traced function would go on with the old iterator, from where that was.
            if self._captured or not tf.executing_eagerly():
                _refuse_restart(self._iterator)
            self._iterator = iter(self._dataset)
        return []

    @property
    def initializer(self) -> list[Any]:
        """Starts again, as `initialize` does; in TensorFlow 1.15, too, reading it did so in eager mode."""
        return self.initialize()

    def _note_capture(self) -> None:
        if not tf.executing_eagerly():
            self._captured = True


@_tf_internals.let_errors_through
def _refuse_restart(iterator: Any) -> NoReturn:
    raise errors.ConfigError(
        f"the {type(iterator).__name__} behind this iterator copies batches to devices ahead of time, and a "
        "tf.function has captured it: expected only functions that are given their iterator.",
        hint="give the function a new iterator of a distributed data set each time: function(iter(dataset)).",
    )
