"""The methods that strategies had in TensorFlow 1.15, for programs that were written for it.

Much code for Cloud TPUs still calls them.  Each does, in eager mode and inside a ``tf.function``, what the
documents of 1.15 say, and names once per process what to call today.  ``reduce``, ``scope`` and
``experimental_local_results`` of 1.15 are current methods of TensorFlow 2 and not here.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_preempt.strategies.classic_api import checks
from tf_preempt.strategies.classic_api.iterator import ClassicIterator
from tf_preempt.strategies.classic_api.numpy_dataset import numpy_dataset

_log = logging.getLogger("tf_preempt")

_REPLACEMENTS: Mapping[str, str] = {
    "experimental_run_v2": "strategy.run(fn, args, kwargs)",
    "experimental_run": "strategy.run(fn, args=(next(iterator),))",
    "make_dataset_iterator": "iter(strategy.experimental_distribute_dataset(dataset))",
    "make_input_fn_iterator": "iter(strategy.distribute_datasets_from_function(input_fn))",
    "experimental_make_numpy_dataset": "tf.data.Dataset.from_tensor_slices(arrays)",
    "experimental_distribute_datasets_from_function": "strategy.distribute_datasets_from_function(function)",
    "update_config_proto": "nothing in its place, because the strategy itself has configured TensorFlow 2",
}

_named: set[str] = set()
_naming = threading.Lock()


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def name_replacement(name: str) -> None:
    """Logs, the first time in this process, what to call in place of an old method.

    A log line and no ``DeprecationWarning``: Python hides those outside of ``__main__``, and where warnings
    are made errors (``-W error``, pytest) an old call that works would fail.

    Args:
        name: of a method of `ClassicApiMixin`.
    """
    with _naming:
        if name in _named:
            return
        _named.add(name)
    # The record's place is the caller of the old method: four frames up, one of which is the decorator's.
    _log.warning(
        "strategy.%s is a name of TensorFlow 1.15, kept for old programs. HINT: write %s.",
        name,
        _REPLACEMENTS[name],
        stacklevel=4,
    )


class ClassicApiMixin:
    """Gives a ``tf.distribute.Strategy`` the methods of TensorFlow 1.15; put it before the strategy class."""

    # AutoGraph converts these methods inside a tf.function, and must: from a method that it leaves alone,
    # `run` would leave the user's function alone too, and `if tensor:` in it would fail.

    def experimental_run_v2(
        self: Any, fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Runs a function on each replica: the former name of ``run``.

        Args:
            fn: what to run; of per-replica arguments, each replica gets its own part.
            args: positional arguments of `fn`, in a list or tuple.
            kwargs: keyword arguments of `fn`.

        Returns:
            What `fn` returned, with a per-replica value for each tensor where there are several replicas.

        Raises:
            ValueError: `args` is no list or tuple (TensorFlow's own error).
        """
        name_replacement("experimental_run_v2")
        return self.run(fn, args=args, kwargs=kwargs)

    def experimental_run(self: Any, fn: Callable[..., Any], input_iterator: Any = None) -> Any:
        """Runs a function on each replica, each with its own part of the iterator's next element.

        Args:
            fn: takes one argument, what the iterator gives; none without an iterator.
            input_iterator: of `make_dataset_iterator` or `make_input_fn_iterator`, or what ``iter`` gives
                for a distributed data set.

        Returns:
            As `experimental_run_v2`.

        Raises:
            ConfigError: `input_iterator` is no iterator over distributed input.
            tf.errors.OutOfRangeError: there is no more input on any worker.
        """
        name_replacement("experimental_run")
        if input_iterator is None:
            return self.run(fn)
        checks.check_distributed(self, input_iterator)
        with self.scope():
            element = input_iterator.get_next()
        return self.run(fn, args=(element,))

    def make_dataset_iterator(self: Any, dataset: tf.data.Dataset) -> ClassicIterator:
        """An iterator over a data set whose batches, of the global size, are divided over all replicas.

        Args:
            dataset: batched by the global batch size.

        Returns:
            An iterator with ``initialize`` and ``get_next``.

        Raises:
            ConfigError: `dataset` is no data set or cannot be divided (`make_input_fn_iterator` is for
                those); or this is the graph of a TensorFlow 1 session.
            InternalsChangedError: TensorFlow's private names have changed.
        """
        name_replacement("make_dataset_iterator")
        checks.check_not_in_session_graph("make_dataset_iterator")
        checks.check_data_set(dataset)
        try:
            return ClassicIterator(self.experimental_distribute_dataset(dataset))
        except ValueError as error:  # ConfigError, too
            raise checks.cannot_divide(error) from error

    def make_input_fn_iterator(
        self: Any,
        input_fn: Callable[[tf.distribute.InputContext], tf.data.Dataset],
        replication_mode: tf.distribute.InputReplicationMode = tf.distribute.InputReplicationMode.PER_WORKER,
    ) -> ClassicIterator:
        """An iterator over the data sets that a function makes, one per worker.

        Args:
            input_fn: called once per worker, now; gives batches of the per-replica size (see
                ``InputContext.get_per_replica_batch_size``), of which every replica draws one per step.
                Nothing is divided or sharded.
            replication_mode: ``PER_WORKER``, the only one that TensorFlow 1.15 had.

        Returns:
            An iterator with ``initialize`` and ``get_next``.

        Raises:
            ConfigError: `input_fn` cannot be called or gives no data set; another `replication_mode`; or this
                is the graph of a TensorFlow 1 session.
            InternalsChangedError: TensorFlow's private names have changed.
        """
        name_replacement("make_input_fn_iterator")
        checks.check_not_in_session_graph("make_input_fn_iterator")
        checks.check_input_fn(input_fn, replication_mode)
        return ClassicIterator(self.distribute_datasets_from_function(input_fn))

    def experimental_make_numpy_dataset(self: Any, numpy_input: Any, session: Any = None) -> tf.data.Dataset:
        """A data set of the rows of NumPy arrays, not batched and not distributed yet.

        The arrays are copied to this machine's memory, and no graph holds them as a constant.

        Args:
            numpy_input: arrays of one length, alone or in nested tuples, dicts and named tuples; a list of
                arrays of one shape is stacked into one.
            session: None; sessions are of TensorFlow 1.

        Raises:
            ConfigError: a session was given; `numpy_input` holds something else than arrays of one length; or
                this is the graph of a TensorFlow 1 session.
        """
        name_replacement("experimental_make_numpy_dataset")
        checks.check_not_in_session_graph("experimental_make_numpy_dataset")
        checks.check_no_session(session)
        return numpy_dataset(numpy_input)

    def experimental_distribute_datasets_from_function(
        self: Any,
        dataset_fn: Callable[[tf.distribute.InputContext], tf.data.Dataset],
        options: tf.distribute.InputOptions | None = None,
    ) -> Any:
        """The data sets that a function makes, one per worker: the former name of the method without prefix.

        Args:
            dataset_fn: called once per worker; every replica draws one of its elements per step.
            options: ``tf.distribute.InputOptions``.

        Returns:
            A ``tf.distribute.DistributedDataset``.

        Raises:
            ConfigError: as ``distribute_datasets_from_function``.
        """
        name_replacement("experimental_distribute_datasets_from_function")
        return self.distribute_datasets_from_function(dataset_fn, options)

    def update_config_proto(self, config_proto: Any) -> Any:
        """A copy of a session's configuration with what this strategy needs.

        Args:
            config_proto: a ``tf.compat.v1.ConfigProto``; not changed.

        Returns:
            The copy.  On several workers: with this worker's device filter, the leader of the collectives and
            their optimization; on one machine with a mirrored strategy: with isolated session state.

        Raises:
            ConfigError: `config_proto` is of another type.
        """
        name_replacement("update_config_proto")
        checks.check_config(config_proto)
        return super().update_config_proto(config_proto)  # type: ignore[misc]
