"""Batches of arrays that are in memory."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_preempt.data.batches import batches, check_outside_of_functions
from tf_preempt.data.epochs import EpochCounter
from tf_preempt.data.options import BatchOptions
from tf_preempt.errors import ConfigError

_NAME = "from_arrays"


def from_arrays(
    x: Any,
    y: Any = None,
    *,
    batch_size: int,
    shuffle: bool = True,
    seed: int | None = None,
    drop_remainder: bool = False,
    sample_weight: Any = None,
) -> tf.data.Dataset:
    """A data set of batches of arrays, in an order that a resumed run has again.

    Use it in place of ``fit(x, y, shuffle=True)`` and of a ``shuffle`` and ``batch`` of
    ``from_tensor_slices``: no shuffle buffer is filled or saved, and every example can come anywhere in its
    epoch.

    The order of an epoch follows from `seed` and the number of the epoch alone.  Each new iterator begins the
    next epoch, and so does each round of ``repeat``.  The first batch that Keras looks at before training,
    under a strategy of this package, does not count.

    Example:
        >>> data = tf_preempt.data.from_arrays(x, y, batch_size=32, seed=1)
        >>> model.fit(data, epochs=5, callbacks=[tf_preempt.callbacks.PreemptionCheckpoint("runs/7")])

    Args:
        x: an array, or dicts and tuples of arrays; the first axis counts the examples.  What
            ``tf.convert_to_tensor`` takes: NumPy arrays, tensors, lists of numbers.  Copied once.
        y: likewise, the targets; None: elements are batches of `x` alone, without a tuple around them.
        batch_size: examples of a batch, of all replicas together.
        shuffle: a new order in each epoch; else the order of the arrays.
        seed: of the orders, from 0 to 2**63 - 1; the same on all workers.  Needed with `shuffle`.
        drop_remainder: leave out a last batch that is not full.
        sample_weight: likewise, the third part of an element; only together with `y`.

    Returns:
        A ``tf.data.Dataset`` of known length whose elements are ``x``, ``(x, y)`` or ``(x, y,
        sample_weight)``, with a first axis of `batch_size` (unknown where the last batch is smaller).

    Raises:
        ConfigError: the arrays have different lengths, none, or are no arrays; called inside a
            ``tf.function``; see also `BatchOptions`.
    """
    check_outside_of_functions(_NAME)
    content = _content(x, y, sample_weight)
    structure = _map_parts(_as_array, content, "")
    flat = tf.nest.flatten(structure)
    options = BatchOptions(
        made_by=_NAME,
        examples=_common_length(content, structure),
        batch_size=batch_size,
        shuffle=shuffle,
        seed=seed,
        drop_remainder=drop_remainder,
    )

    def gather(indices: tf.Tensor, _: tf.Tensor) -> Any:
        return tf.nest.pack_sequence_as(structure, [tf.gather(array, indices) for array in flat])

    return batches(EpochCounter(options), gather)


def _content(x: Any, y: Any, sample_weight: Any) -> Any:
    """The parts as one value: a dict of names for messages would change the structure of elements."""
    if y is None and sample_weight is not None:
        raise ConfigError(
            "from_arrays was given sample_weight and no y: expected both, or neither.",
            hint="from_arrays(x, y, sample_weight=w, ...)",
        )
    if y is None:
        return x
    return (x, y) if sample_weight is None else (x, y, sample_weight)


def _map_parts(function: Any, content: Any, path: str) -> Any:
    """Applies ``function(array, path)`` to what is in dicts and tuples; keeps their structure."""
    if isinstance(content, dict):
        return {key: _map_parts(function, value, f"{path}[{key!r}]") for key, value in content.items()}
    if isinstance(content, tuple):
        parts = [_map_parts(function, value, f"{path}[{index}]") for index, value in enumerate(content)]
        return type(content)(*parts) if hasattr(content, "_fields") else tuple(parts)
    return function(content, path)


def _as_array(value: Any, path: str) -> tf.Tensor:
    hint = "give NumPy arrays or tensors, with one row per example; for anything else see from_source"
    if isinstance(value, type):
        raise ConfigError(
            f"part {path or 'x'} of from_arrays is the class {value.__name__}: expected an array.", hint=hint
        )
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor, tf.data.Dataset)) or value is None:
        raise ConfigError(
            f"part {path or 'x'} of from_arrays is of type {type(value).__name__}: expected an array.",
            hint=hint,
        )
    try:
        with tf.device("CPU:0"):
            array = tf.identity(value)  # on the host, where batches are put together
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"part {path or 'x'} of from_arrays, of type {type(value).__name__}, cannot be made a tensor: "
            f"{error}",
            hint=hint,
        ) from error
    if array.shape.rank == 0:
        raise ConfigError(f"part {path or 'x'} of from_arrays is a scalar: expected arrays.", hint=hint)
    return array


def _common_length(content: Any, structure: Any) -> int:
    """The number of examples.

    Raises:
        ConfigError: there are no arrays, or they have different lengths.
    """
    lengths: dict[str, int] = {}
    _map_parts(lambda array, path: lengths.setdefault(path or "x", int(array.shape[0])), structure, "")
    if not lengths:
        raise ConfigError(
            f"from_arrays was given no arrays ({content!r:.200}): expected one or more.",
            hint="from_arrays(x, y, batch_size=32, seed=1)",
        )
    if len(set(lengths.values())) > 1:
        raise ConfigError(
            "the arrays of from_arrays have different lengths "
            f"({', '.join(f'part {path}: {length}' for path, length in lengths.items())}): expected one row "
            "per example in each.",
            hint="see that features and targets come from the same examples",
        )
    return next(iter(lengths.values()))
