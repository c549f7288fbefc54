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
from tf_preempt.errors import CheckpointFormatError, CheckpointMismatchError, CheckpointWriteError

_INDEX_KEY = "tf_preempt/index"
# What TensorFlow and we raise for content that is wrong.  A file system that is away, or that refuses, raises
# other errors: they say nothing about the checkpoint, which must not be set aside for them.
_DAMAGE = (
    tf.errors.DataLossError,
    tf.errors.OutOfRangeError,
    tf.errors.InvalidArgumentError,
    ValueError,
    KeyError,
    TypeError,
)


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
        CheckpointWriteError: `part.values` holds what JSON has not, such as NaN.
    """
    prefix = _files.join(directory, *name.split("/"))
    _files.make_dirs(prefix.rpartition("/")[0])
    names = sorted(part.tensors)
    tensors = [tf.convert_to_tensor(part.tensors[key]) for key in names]
    index = _index(name, list(zip(names, tensors, strict=True)), part.values)
    with tf.device("CPU:0"):
        tf.raw_ops.SaveV2(
            prefix=prefix,
            tensor_names=[_INDEX_KEY, *names],
            shape_and_slices=[""] * (len(names) + 1),
            tensors=[tf.constant(index), *tensors],
        )
    return [FileRecord.of(directory, f"{name}{suffix}") for suffix in (".index", ".data-00000-of-00001")]


def _index(name: str, tensors: list[tuple[str, Any]], values: dict[str, Any]) -> str:
    """What a part holds, as text."""
    content = {"tensors": [[key, tensor.dtype.name] for key, tensor in tensors], "values": values}
    try:
        return json.dumps(content, allow_nan=False)
    except (ValueError, TypeError) as error:
        raise CheckpointWriteError(
            f"The values of part {name} are not all JSON ({error}): {values!r:.500}",
            hint="save numbers that are finite, texts, None, and lists and dicts of these",
        ) from error


def read_part(directory: str, name: str) -> WorkerPart:
    """Reads what `write_part` wrote.

    Raises:
        CheckpointMismatchError: its file is not there.
        CheckpointFormatError: the part is damaged, or is none.
        tf.errors.OpError: the file system did not give it, which says nothing about the part.
    """
    prefix = _files.join(directory, *name.split("/"))
    if not _files.exists(f"{prefix}.index"):
        raise CheckpointMismatchError(
            f"The checkpoint has no part {name} in {directory}: expected its file {prefix}.index, "
            "with which the checkpoint was committed. It is gone, or this worker sees another directory.",
            hint="let all workers see one directory; copy a directory as a whole; or go back to an older "
            f"checkpoint by moving {name.partition('.workers/')[0]}.* out of it",
        )
    try:
        index = json.loads(_restore(prefix, [_INDEX_KEY], [tf.string])[0].numpy())
        names = [key for key, _ in index["tensors"]]
        dtypes = [tf.as_dtype(dtype) for _, dtype in index["tensors"]]
        tensors = _restore(prefix, names, dtypes) if names else []
        return WorkerPart(tensors=dict(zip(names, tensors, strict=True)), values=index["values"])
    except (*_DAMAGE, tf.errors.NotFoundError) as error:
        if isinstance(error, tf.errors.NotFoundError) and not _lacks_a_tensor(error):
            raise
        raise CheckpointFormatError(f"{prefix} is not a worker's part that can be read: {error}") from error


def _lacks_a_tensor(error: Any) -> bool:
    """Tells a bundle without a tensor of ours from a file that is gone: TensorFlow has one error for both."""
    return "not found in checkpoint" in error.message


def _restore(prefix: str, names: list[str], dtypes: list[Any]) -> list[Any]:
    with tf.device("CPU:0"):
        tensors = tf.raw_ops.RestoreV2(
            prefix=prefix, tensor_names=names, shape_and_slices=[""] * len(names), dtypes=dtypes
        )
    return list(tensors)
