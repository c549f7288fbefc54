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
import dataclasses
import functools
import logging
import operator
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_preempt import errors
from tf_preempt.strategies import _tf_internals, keras_models

_log = logging.getLogger("tf_preempt")

# Stands for N / n where a replica has no rows: whatever is divided by it does not count.  Finite in float32,
# because a loss of 0 is multiplied by it.
_NO_ROWS = 1e30


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
                    _warn_once(_SEVERAL_BATCHES)
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
            _warn_once(_UNCOUNTED)
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Share:
    """One replica's part in a batch.

    Args:
        strategy: the strategy that runs the replica function.
        rows: rows on this replica, a scalar of dtype int64.
        total: rows on all replicas, a scalar of dtype int64.
    """

    strategy: Any
    rows: tf.Tensor
    total: tf.Tensor


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


class Weight:
    """A number that differs between replicas, and that takes the dtype of whatever it meets, as Python's do.

    Args:
        share: the replica's part in the batch.
        plain: what it is where all replicas have the same number of rows.
        factor: a number by which N / n is multiplied, or n / N if `inverse`.
        inverse: whether it is a multiple of n / N.
    """

    def __init__(self, share: Share, plain: float, factor: float, *, inverse: bool) -> None:
        self._share = share
        self._plain = plain
        self._factor = factor
        self._inverse = inverse

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        wanted = tf.float32 if dtype is None else tf.as_dtype(dtype)
        if not wanted.is_floating:
            # Tensor's operators then ask this class, which knows how to multiply integers.
            raise TypeError(
                f"a replica's weight in a batch ({self!r} without a batch) cannot be a {wanted.name}.\n"
                "HINT: int(strategy.num_replicas_in_sync) is the number of replicas."
            )
        if not self._is_reachable():
            return tf.constant(self._plain, wanted, name=name)
        rows, total = (tf.cast(count, tf.float64) for count in (self._share.rows, self._share.total))
        if self._inverse:
            value = tf.math.divide_no_nan(rows, total)
        else:
            no_rows = tf.constant(min(_NO_ROWS, float(wanted.max)), tf.float64)
            value = tf.where(rows > 0, total / tf.maximum(rows, 1), no_rows)
        return tf.cast(value * self._factor, wanted, name=name)

    def _is_reachable(self) -> bool:
        reachable = _tf_internals.is_reachable(self._share.rows)
        if not reachable:
            _warn_once(_NESTED)
        return reachable

    def _times(self, number: float) -> Weight:
        return Weight(self._share, self._plain * number, self._factor * number, inverse=self._inverse)

    def _reciprocal(self) -> Weight:
        return Weight(self._share, 1 / self._plain, 1 / self._factor, inverse=not self._inverse)

    def _in_dtype_of(self, tensor: Any) -> tf.Tensor:
        return self.__tf_tensor__(tensor.dtype if tensor.dtype.is_floating else None)

    def __mul__(self, other: Any) -> Any:
        if not tf.is_tensor(other):
            return self._times(other)
        factor = self._in_dtype_of(other)
        return tf.cast(other, factor.dtype) * factor

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        if not tf.is_tensor(other):
            return self._times(1 / other)
        dividend = self._in_dtype_of(other)
        return dividend / tf.cast(other, dividend.dtype)

    def __rtruediv__(self, other: Any) -> Any:
        return self._reciprocal() * other

    def __float__(self) -> float:
        _warn_once(_AS_FLOAT)
        return float(self._plain)

    def __repr__(self) -> str:
        return repr(self._plain)


class ReplicaCount(Weight):
    """``num_replicas_in_sync`` in a replica function: what a replica's mean is divided by, to be summed.

    As a tensor, or as a divisor, it is N / n.  Multiplied with an integer tensor (a replica's number of
    rows), the result is exact.  To Python it is the number of replicas.

    Args:
        number: the number of replicas.
        share: the replica's part in the batch.
    """

    def __init__(self, number: int, share: Share) -> None:
        super().__init__(share, number, 1.0, inverse=False)
        self._number = number

    def __mul__(self, other: Any) -> Any:
        if not tf.is_tensor(other):
            return other * self._number
        if other.dtype.is_floating:
            return super().__mul__(other)
        if not self._is_reachable():
            return other * self._number
        rows, total = (tf.cast(count, other.dtype) for count in (self._share.rows, self._share.total))
        return tf.math.floordiv(other * total, tf.maximum(rows, 1))

    __rmul__ = __mul__

    def __index__(self) -> int:
        return self._number

    def __int__(self) -> int:
        return self._number

    def __hash__(self) -> int:
        return hash(self._number)


def _as_number(apply: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: ReplicaCount, *others: Any) -> Any:
        return apply(int(self), *others)

    return method


# To Python it is an integer like any other.
for _name in ("eq", "ne", "lt", "le", "gt", "ge", "add", "sub", "floordiv", "mod", "pow"):
    setattr(ReplicaCount, f"__{_name}__", _as_number(getattr(operator, f"__{_name}__")))
for _name in ("add", "sub", "floordiv", "mod", "pow"):
    _plain = getattr(operator, f"__{_name}__")
    setattr(ReplicaCount, f"__r{_name}__", _as_number(lambda number, other, f=_plain: f(other, number)))


_NESTED = (
    "strategy.num_replicas_in_sync is read in a tf.function that the replica function calls: the last, "
    "smaller batch of a data set is weighted by replicas there, not by rows.\nHINT: read it in the function "
    "that strategy.run is given, or call a plain Python function there."
)
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
_AS_FLOAT = (
    "float(strategy.num_replicas_in_sync) in a replica function is the number of replicas: a smaller batch "
    "is not weighted by rows.\nHINT: divide by strategy.num_replicas_in_sync itself."
)
_said: set[str] = set()


def _warn_once(message: str) -> None:
    if message not in _said:
        _said.add(message)
        _log.warning(message)
