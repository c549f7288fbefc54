"""Variables of a model that each replica writes by itself, so that the chief's value is not everybody's.

TensorFlow calls them mirrored too, and a checkpoint holds the chief's first part only: the moving statistics
of ``BatchNormalization``, the gradients that an optimizer accumulates, the state of own layers.  Each worker
keeps its parts of them.  Weights that are not trained (a frozen backbone) look the same from outside and are
the same on all replicas: of large ones only a checksum is kept, which tells after a resume whether it is so.
"""

from __future__ import annotations

import logging
import zlib
from typing import Any

from tf_preempt.errors import CheckpointMismatchError
from tf_preempt.strategies import _tf_internals

_log = logging.getLogger("tf_preempt")

_PREFIX = "replica/"
_LARGE_BYTES = 2**20
_ACCUMULATOR = "gradient_accumulator"  # in the path of a Keras optimizer's variable


def take(model: Any) -> tuple[dict[str, Any], dict[str, int]]:
    """This worker's parts by name, and checksums (CRC-32) of the parts that are too large to be kept.

    Without other replicas there is nothing to keep: the checkpoint holds it all.
    """
    tensors, checksums = {}, {}
    for name, part, accumulated in _parts(model):
        if accumulated or part.shape.num_elements() * part.dtype.size <= _LARGE_BYTES:
            tensors[name] = part.read_value()
        else:
            checksums[name] = _checksum(part)
    return tensors, checksums


def check(model: Any, tensors: dict[str, Any]) -> None:
    """Checks that the parts belong to this model.

    Raises:
        CheckpointMismatchError: a part has no variable here, or one of another shape.
    """
    present = {name: list(part.shape) for name, part, _ in _parts(model)}
    for name, tensor in tensors.items():
        if name.startswith(_PREFIX) and present.get(name) != list(tensor.shape):
            raise CheckpointMismatchError(
                f"The checkpoint holds {name!r} with shape {list(tensor.shape)}, a replica's own part of a "
                f"variable that is not trained; the model has {present.get(name, 'none')}.",
                hint="use the model, optimizer and number of replicas per worker that it was written with",
            )


def restore(model: Any, tensors: dict[str, Any], checksums: dict[str, int]) -> None:
    """Gives each replica its parts back, after `check`; warns of those that were not kept and differ."""
    for name, part, _ in _parts(model):
        if name in tensors:
            part.assign(tensors[name])
        elif name in checksums and checksums[name] != _checksum(part):
            _log.warning(
                "Variable %r differed between replicas when the checkpoint was written; it is larger than "
                "1 MiB, and only the chief's value was kept: the resumed run is not exact.\n"
                "HINT: give the variable an aggregation, so that replicas write it together.",
                part.name,
            )


def _parts(model: Any) -> list[tuple[str, Any, bool]]:
    """Name and part of each candidate on this worker, and whether it holds accumulated gradients."""
    if model.distribute_strategy.num_replicas_in_sync == 1:
        return []
    optimizer = getattr(model, "optimizer", None)
    metrics = {id(variable) for variable in model.metrics_variables}
    written = [(variable, False) for variable in model.non_trainable_variables if id(variable) not in metrics]
    if optimizer is not None:
        written += [(one, True) for one in optimizer.variables if _ACCUMULATOR in one.path]
    return [
        (f"{_PREFIX}{index}/{replica}", part, accumulated)
        for index, (variable, accumulated) in enumerate(written)
        for replica, part in enumerate(_tf_internals.local_values(variable))
    ]


def _checksum(part: Any) -> int:
    return zlib.crc32(memoryview(part.numpy()).cast("B"))
