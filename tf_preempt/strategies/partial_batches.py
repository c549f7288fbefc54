"""Batches that do not divide evenly, weighted as one process would weigh them.

Each replica takes the mean of the loss over its own rows, and divides by the number of replicas.  That is the
mean over the global batch only if all replicas have the same number of rows.  In the last batch of a data set
they often do not: a replica with one row then counts as much as one with four.

The batches of this package's distributed data sets know how many rows all replicas have together.  While
`run` runs a replica function on such a batch, ``strategy.num_replicas_in_sync`` is N / n there, where n is
the number of rows on the replica and N that on all.  So a mean over n rows, divided by it and summed over
replicas, is the mean over N rows.  For equal parts it is the number of replicas, as ever.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_preempt import errors
from tf_preempt.strategies import _tf_internals, keras_models
from tf_preempt.strategies.replica_count import ReplicaCount, Share
from tf_preempt.strategies.said import warn_once

_SEVERAL_BATCHES = (
    "strategy.run is given more than one distributed batch: a smaller one is weighted by replicas, not by "
    "rows, as it is not known which of them a loss belongs to.\nHINT: zip the data sets "
    "(tf.data.Dataset.zip) before they are distributed, or run one batch after the other."
)
_UNCOUNTED = (
    "strategy.num_replicas_in_sync is read in a replica function that was given values without the batch "
    "they came from: a smaller batch is weighted by replicas there, not by rows.\nHINT: give strategy.run "
    "the batch as the iterator gave it, in one piece."
)


class PartialBatchMixin:
    """Makes ``run`` of a ``tf.distribute.Strategy`` weigh replicas by their rows; put it before the class."""

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: tf.distribute.RunOptions | None = None,
    ) -> Any:
        """Runs `fn` on each replica, as TensorFlow does.

        If an argument holds a batch from a distributed data set of this strategy whose size can vary, `fn`
        sees ``num_replicas_in_sync`` as N / n: rows on all replicas by rows on its own.  What is divided by
        it and summed over replicas is weighted by rows: Keras's losses, ``tf.nn.compute_average_loss``,
        ``tf.nn.scale_regularization_loss``, and ``loss / strategy.num_replicas_in_sync``.  To Python it is
        the number of replicas, and so is ``int(...)`` of it, which is what a function of TensorFlow should be
        given that is no scaling.  With two such batches in one call, each replica counts the same; one
        warning says so.

        Args:
            fn: the replica function; may be a ``tf.function``.
            args: positional arguments; distributed values are given to each replica as its own.
            kwargs: keyword arguments, likewise.
            options: ``tf.distribute.RunOptions``.

        Returns:
            What `fn` returned, as per-replica values where replicas can differ.

        Raises:
            ConfigError: `fn` is a ``tf.function`` with an input signature.
            UnsupportedStrategyError: called in a function that XLA compiles, for several replicas on CPUs.
            ValueError: `args` is no list or tuple (TensorFlow's own error).
        """
        plain_run = super().run  # type: ignore[misc]
        replicas = super().num_replicas_in_sync  # type: ignore[misc]
        _refuse_xla_on_cpus(self, replicas)
        batches = _tf_internals.counted_values((args, kwargs))
        is_keras = keras_models.prepare_model(fn, replicas, uneven=bool(batches))
        with _tf_internals.synchronizing_in_branches(self, is_keras):
            if len(batches) != 1 or not isinstance(args, list | tuple):
                if len(batches) > 1:
                    warn_once(_SEVERAL_BATCHES)
                with _without_count(self, not batches and _tf_internals.may_be_uneven((args, kwargs))):
                    return plain_run(fn, args=args, kwargs=kwargs, options=options)
            rows = _tf_internals.rows_per_replica(batches[0])
            arguments = (rows, batches[0].total, *args)
            return plain_run(self._weighted(fn), args=arguments, kwargs=kwargs, options=options)

    def _weighted(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """`fn` with two more arguments in front: rows here, rows everywhere.

        A ``tf.function`` becomes another one: rows must be its arguments, for what it captured from outside
        would keep its first value.
        """
        wrap = functools.partial(_with_share, self)
        if not _tf_internals.is_tf_function(fn):
            return wrap(fn)
        found: weakref.WeakKeyDictionary[Any, Any]
        found = vars(self).setdefault("_weighted_functions", weakref.WeakKeyDictionary())
        if fn not in found:
            found[fn] = _tf_internals.rewrapped_tf_function(fn, wrap)
        weighted: Callable[..., Any] = found[fn]
        return weighted

    @property
    def num_replicas_in_sync(self) -> Any:
        """How many replicas train together; as `run` says in a replica function that is given a batch."""
        number = super().num_replicas_in_sync  # type: ignore[misc]
        share = _current.share
        if vars(self).get(_UNCOUNTED_NOW) and not tf.distribute.in_cross_replica_context():
            warn_once(_UNCOUNTED)
        if share is None or share.strategy is not self or tf.distribute.in_cross_replica_context():
            return number
        return ReplicaCount(number, share)


def _refuse_xla_on_cpus(strategy: Any, replicas: int) -> None:
    """TensorFlow has neither XLA collectives for CPUs nor XLA functions over several CPU devices."""
    if replicas == 1 or not _tf_internals.compiled_by_xla():
        return
    devices = [tf.DeviceSpec.from_string(device) for device in strategy.extended.worker_devices]
    if any(device.device_type == "CPU" for device in devices):
        raise errors.UnsupportedStrategyError(
            f"jit_compile=True on {replicas} replicas on CPUs: expected accelerators, for TensorFlow cannot "
            "reduce between CPUs in a function that XLA compiles.",
            hint="leave out jit_compile=True (in compile() or tf.function); the default on CPUs is without.",
        )


class _Current(threading.local):
    share: Share | None = None


_current = _Current()


@contextlib.contextmanager
def _as_current(share: Share) -> Iterator[None]:
    outer, _current.share = _current.share, share
    try:
        yield
    finally:
        _current.share = outer


_UNCOUNTED_NOW = "_tf_preempt_runs_uncounted"


@contextlib.contextmanager
def _without_count(strategy: Any, uneven: bool) -> Iterator[None]:
    """While this lasts, replica functions may have different numbers of rows, and nobody has counted them."""
    before, vars(strategy)[_UNCOUNTED_NOW] = vars(strategy).get(_UNCOUNTED_NOW, False), uneven
    try:
        yield
    finally:
        vars(strategy)[_UNCOUNTED_NOW] = before


def _with_share(strategy: Any, fn: Callable[..., Any]) -> Callable[..., Any]:
    # Without functools.wraps: AutoGraph would read the source of what is wrapped instead.
    def with_share(rows: Any, total: Any, /, *args: Any, **kwargs: Any) -> Any:
        with _as_current(Share(strategy=strategy, rows=rows, total=total)):
            return fn(*args, **kwargs)

    return with_share
