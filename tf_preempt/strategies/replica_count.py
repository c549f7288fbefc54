"""A number of replicas that weighs by rows whatever is scaled with it; see `partial_batches`.

A loss is divided by it and summed over replicas, so that it has to be N / n where n of N rows are on this
replica.
It cannot be an ``int`` as well: Python divides a float by an ``int`` without asking, and Keras does so.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_preempt.strategies import _tf_internals
from tf_preempt.strategies.said import warn_once

# Stands for N / n where a replica has no rows: whatever is divided by it does not count.  Finite in float32,
# because a loss of 0 is multiplied by it.
_NO_ROWS = 1e30

_NESTED = (
    "strategy.num_replicas_in_sync is read in a tf.function that the replica function calls: the last, "
    "smaller batch of a data set is weighted by replicas there, not by rows.\nHINT: read it in the function "
    "that strategy.run is given, or call a plain Python function there."
)
_AS_FLOAT = (
    "float(strategy.num_replicas_in_sync) in a replica function is the number of replicas: a smaller batch "
    "is not weighted by rows.\nHINT: divide by strategy.num_replicas_in_sync itself."
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
            warn_once(_NESTED)
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
        warn_once(_AS_FLOAT)
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

    # NumPy's numbers leave scaling to this class; in a list (a shape), it is the number of replicas.
    __array_ufunc__ = None

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(self._number, dtype or np.int32)

    def __format__(self, form: str) -> str:
        return format(self._number, form)

    def __neg__(self) -> int:
        return -self._number

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
