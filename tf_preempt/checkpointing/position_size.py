"""What the positions of the data weigh in a checkpoint, said once where it is much.

A shuffle's buffer and batches that were read ahead are part of an iterator's state: with a large buffer of
images, gigabytes in every checkpoint and on every worker.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

_log = logging.getLogger("tf_preempt")
_LARGE_BYTES = 10_000_000
_looked = False


def warn_of_large_positions(tensors: Mapping[str, Any], written_bytes: Iterable[int]) -> None:
    """Warns once in a process if most of what a worker has written of a checkpoint are positions of the data.

    Args:
        tensors: of the worker's part, by name.
        written_bytes: sizes of the part's files.  They tell whether it is worth to look: weighing a position
            costs as much as writing it into memory.
    """
    global _looked
    if _looked or sum(written_bytes) <= _LARGE_BYTES:
        return
    _looked = True
    sizes = {name: _state_bytes(tensor) for name, tensor in tensors.items() if tensor.dtype == tf.variant}
    total = sum(sizes.values())
    if total > _LARGE_BYTES:
        _log.warning(
            "The position of the data weighs %.0f MB in each checkpoint, on each worker (%s): what is in "
            "shuffle buffers, or read ahead, is saved with it.\n"
            "HINT: use tf_preempt.data.from_source or from_arrays, whose position is a few numbers, in place "
            "of a shuffle with a large buffer; or shuffle names of files, or indices, before they are read.",
            total / 1e6,
            ", ".join(f"{name}: {size / 1e6:.1f} MB" for name, size in sorted(sizes.items())),
        )


def _state_bytes(variants: tf.Tensor) -> int:
    """Bytes of an iterator's state, a vector of variants."""
    return sum(len(tf.io.serialize_tensor(variant).numpy()) for variant in tf.unstack(variants))
