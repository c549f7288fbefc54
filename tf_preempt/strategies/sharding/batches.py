"""Data sets whose elements cannot be divided over replicas, and what to do instead."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_preempt import errors

_BATCH_HINT = "call dataset.batch with the global batch size before the data set is distributed."


def check_divisible(element_spec: Any) -> None:
    """Refuses elements that are no batches.

    Args:
        element_spec: of the data set.

    Raises:
        ConfigError: the elements are empty, hold scalars or data sets, or hold parts of which the numbers of
            rows are known to differ.
    """
    specs = tf.nest.flatten(element_spec)
    if not specs:
        raise errors.ConfigError(
            f"the data set's elements are empty ({element_spec!r}): expected batches of tensors.",
            hint="let the data set give what the replicas are to work on.",
        )
    for spec in specs:
        _check_part(spec)
    _check_one_size(specs)


def _check_part(spec: Any) -> None:
    if isinstance(spec, tf.data.DatasetSpec):
        raise errors.ConfigError(
            f"the data set's elements hold data sets ({spec}), as window() makes them: expected batches.",
            hint="turn each window into tensors: dataset.flat_map(lambda window: window.batch(size)).",
        )
    if isinstance(spec, tf.OptionalSpec):
        raise errors.ConfigError(
            f"the data set's elements hold optional values ({spec}): expected batches of tensors.",
            hint="unpack them with get_value() in dataset.map.",
        )
    shape = getattr(spec, "shape", None)
    if isinstance(shape, tf.TensorShape) and shape.rank == 0:
        raise errors.ConfigError(
            f"the data set's elements hold scalars ({spec}): expected batches, which are divided over the "
            "replicas along their first axis.",
            hint=_BATCH_HINT,
        )


def _check_one_size(specs: list[Any]) -> None:
    sized = [spec for spec in specs if isinstance(spec, tf.TensorSpec) and spec.shape.rank]
    sized = [spec for spec in sized if spec.shape[0] is not None]
    other = next((spec for spec in sized if spec.shape[0] != sized[0].shape[0]), None)
    if other is not None:
        raise errors.ConfigError(
            f"a batch cannot be divided: its parts have different numbers of rows ({sized[0]} and {other}), "
            "and each replica would get rows that do not belong together.",
            hint="let all parts of an element have the batch as their first axis, or take what is no batch "
            "out of the data set and into the step.",
        )
