"""What only one worker has, in a file of its own: data positions, metric parts, random state.

The chief's TensorFlow checkpoint holds the variables that are alike on all workers.  Everything else is
written here, as a TensorFlow tensor bundle (so iterator states, which are variant tensors, fit in, and
TensorFlow's checksums guard every tensor) next to it::

    ckpt-7.workers/00001-of-00004.index
    ckpt-7.workers/00001-of-00004.data-00000-of-00001
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import tensorflow as tf

from tf_preempt import _files
from tf_preempt.checkpointing.manifest import FileRecord
from tf_preempt.errors import CheckpointFormatError, CheckpointMismatchError

_INDEX_KEY = "tf_preempt/index"


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkerPart:
    """One worker's part of a checkpoint.

    Args:
        tensors: by name; any dtype that TensorFlow can save, variants included.
        values: whatever JSON can hold.
    """

    tensors: dict[str, Any] = dataclasses.field(default_factory=dict)
    values: dict[str, Any] = dataclasses.field(default_factory=dict)


def part_name(prefix: str, worker: int, workers: int) -> str:
    """Name of a worker's bundle, relative to the checkpoint directory."""
    return f"{prefix}.workers/{worker:05d}-of-{workers:05d}"


def write_part(directory: str, name: str, part: WorkerPart) -> list[FileRecord]:
    """Writes a part and returns its files.

    Raises:
        tf.errors.OpError, OSError: it could not be written (disk full, permission).
        ValueError: `part.values` holds what JSON has not, such as NaN.
    """
    prefix = _files.join(directory, *name.split("/"))
    _files.make_dirs(prefix.rpartition("/")[0])
    names = sorted(part.tensors)
    tensors = [tf.convert_to_tensor(part.tensors[key]) for key in names]
    index = {
        "tensors": [[key, t.dtype.name] for key, t in zip(names, tensors, strict=True)],
        "values": part.values,
    }
    with tf.device("CPU:0"):
        tf.raw_ops.SaveV2(
            prefix=prefix,
            tensor_names=[_INDEX_KEY, *names],
            shape_and_slices=[""] * (len(names) + 1),
            tensors=[tf.constant(json.dumps(index, allow_nan=False)), *tensors],
        )
    return [FileRecord.of(directory, f"{name}{suffix}") for suffix in (".index", ".data-00000-of-00001")]


def read_part(directory: str, name: str) -> WorkerPart:
    """Reads what `write_part` wrote.

    Raises:
        CheckpointMismatchError: this worker has no part in the checkpoint.
        CheckpointFormatError: the part cannot be read.
    """
    prefix = _files.join(directory, *name.split("/"))
    if not _files.exists(f"{prefix}.index"):
        raise CheckpointMismatchError(
            f"The checkpoint has no part {name} in {directory}: it was written by another number of workers.",
            hint="resume with as many workers as the checkpoint was written by",
        )
    try:
        index = json.loads(_restore(prefix, [_INDEX_KEY], [tf.string])[0].numpy())
        names = [key for key, _ in index["tensors"]]
        dtypes = [tf.as_dtype(dtype) for _, dtype in index["tensors"]]
        tensors = _restore(prefix, names, dtypes) if names else []
    except (tf.errors.OpError, ValueError, KeyError, TypeError) as error:
        raise CheckpointFormatError(f"{prefix} is not a worker's part that can be read: {error}") from error
    return WorkerPart(tensors=dict(zip(names, tensors, strict=True)), values=index["values"])


def _restore(prefix: str, names: list[str], dtypes: list[Any]) -> list[Any]:
    with tf.device("CPU:0"):
        tensors = tf.raw_ops.RestoreV2(
            prefix=prefix, tensor_names=names, shape_and_slices=[""] * len(names), dtypes=dtypes
        )
    return list(tensors)
