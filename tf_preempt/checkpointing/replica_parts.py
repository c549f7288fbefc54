"""Variables that each replica writes by itself, so that the chief's value is not everybody's.

TensorFlow calls them mirrored too, and a checkpoint holds the chief's first part only: the moving statistics
of ``BatchNormalization``, the gradients that an optimizer accumulates, the state of own layers.  Each worker
keeps its parts of them.  Weights that are not trained (a frozen backbone) look the same from outside and are
the same on all replicas: of large ones only a checksum is kept, which tells after a resume whether it is so.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_preempt.checkpointing.merging import Component, Way
from tf_preempt.errors import CheckpointMismatchError
from tf_preempt.strategies import _tf_internals

_log = logging.getLogger("tf_preempt")

_PREFIX = "replica/"
_UNTRACKED = "untracked/"
FAMILIES = (_PREFIX, _UNTRACKED)
"""Beginnings of the parts' names."""
_LARGE_BYTES = 2**20
_ACCUMULATOR = "gradient_accumulator"  # in the path of a Keras optimizer's variable


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplicaPart:
    """One replica's component of a variable.

    Args:
        name: in the worker's part of a checkpoint.
        variable: the component, a ``tf.Variable``.
        always_kept: however large it is.
        is_share: what counts is the sum of all replicas' values.
    """

    name: str
    variable: Any
    always_kept: bool
    is_share: bool = False


def replica_parts(variables: Iterable[Any], *, kept_nowhere_else: bool = False) -> list[ReplicaPart]:
    """This worker's components of variables that are not trained.

    Args:
        variables: of Keras or ``tf.Variable``, in an order that is the same in each incarnation.
        kept_nowhere_else: whether the checkpoint has no value of them at all, not even the chief's.
    """
    prefix = _UNTRACKED if kept_nowhere_else else _PREFIX
    return [
        ReplicaPart(
            name=f"{prefix}{index}/{replica}",
            variable=part,
            always_kept=kept_nowhere_else or is_accumulator(variable),
            is_share=is_accumulator(variable),
        )
        for index, variable in enumerate(variables)
        for replica, part in enumerate(_tf_internals.local_values(variable))
    ]


def components(parts: Iterable[ReplicaPart]) -> list[Component]:
    """The parts as `merge_parts` takes them."""
    return [Component(name=one.name, variable=one.variable, way=_way_of(one)) for one in parts]


def _way_of(part: ReplicaPart) -> Way:
    if part.is_share:
        return "sum"
    return "own" if part.name.startswith(_UNTRACKED) else "first"


def untracked_variables(checkpoint: Any) -> list[Any]:
    """Variables of Keras layers and models in a checkpoint that ``tf.train.Checkpoint`` leaves out.

    Keras 3 does not let TensorFlow track seed generators: after a resume, Dropout would draw its first masks
    again.

    Args:
        checkpoint: a ``tf.train.Checkpoint``.
    """
    keras = sys.modules.get("keras")
    if keras is None:
        return []
    nodes = list(tf.train.TrackableView(checkpoint).descendants())
    known = {id(node) for node in nodes}
    found: dict[int, Any] = {}
    for layer in (node for node in nodes if isinstance(node, keras.Layer)):
        found |= {id(one): one for one in layer.variables if id(one) not in known}
    return list(found.values())


def variables_in(checkpoint: Any) -> list[Any]:
    """The variables that ``tf.train.Checkpoint`` saves: TensorFlow's, and Keras's, which are another class.

    Args:
        checkpoint: a ``tf.train.Checkpoint``.
    """
    keras = sys.modules.get("keras")
    kinds = (tf.Variable,) if keras is None else (tf.Variable, keras.Variable)
    return [node for node in tf.train.TrackableView(checkpoint).descendants() if isinstance(node, kinds)]


def written_by_replicas(checkpoint: Any, *, also_by_one: bool = False) -> list[Any]:
    """The checkpoint's variables that each of several replicas may write by itself.

    TensorFlow's say so by having no aggregation.  Keras's may be used in any way: those that layers do not
    train count, and the gradients that optimizers accumulate.

    Args:
        checkpoint: a ``tf.train.Checkpoint``.
        also_by_one: those, too, that would be such with several replicas: of what a strategy has made, or of
            all where none has made any.

    Raises:
        ConfigError: it holds a Keras variable that is not built yet.
    """
    keras = sys.modules.get("keras")
    nodes = list(tf.train.TrackableView(checkpoint).descendants())
    layers = [node for node in nodes if keras is not None and isinstance(node, keras.Layer)]
    not_trained = {id(one) for layer in layers for one in layer.non_trainable_variables}
    variables = variables_in(checkpoint)
    candidates = [one for one in variables if _replicas_of(one) > 1]
    if also_by_one and not candidates:
        candidates = [one for one in variables if _replicas_of(one) == 1] or variables
    found = []
    for one in candidates:
        if _tf_internals.is_sync_on_read(one):
            continue
        if isinstance(one, tf.Variable):
            is_own = not one.trainable and one.aggregation == tf.VariableAggregation.NONE
        else:
            is_own = id(one) in not_trained or is_accumulator(one)
        if is_own:
            found.append(one)
    return found


def _replicas_of(variable: Any) -> int:
    """How many replicas share a variable; 0 for one that no strategy has made."""
    behind = variable if isinstance(variable, tf.Variable) else variable.value
    if not isinstance(behind, tf.distribute.DistributedValues):
        return 0
    return int(behind.distribute_strategy.num_replicas_in_sync)


def is_accumulator(variable: Any) -> bool:
    """Says whether a Keras optimizer adds up gradients in this variable, each replica its own."""
    return _ACCUMULATOR in getattr(variable, "path", variable.name)


def take(parts: Iterable[ReplicaPart]) -> tuple[dict[str, Any], dict[str, int]]:
    """The parts' values by name, and checksums (CRC-32) of the parts that are too large to be kept."""
    tensors, checksums = {}, {}
    for part in parts:
        variable = part.variable
        value = variable.read_value()
        if part.always_kept or int(tf.size(value)) * value.dtype.size <= _LARGE_BYTES:
            tensors[part.name] = value
        else:
            checksums[part.name] = _checksum(variable)
    return tensors, checksums


def check(parts: Iterable[ReplicaPart], tensors: dict[str, Any]) -> None:
    """Checks that what `take` has read belongs to these variables.

    Raises:
        CheckpointMismatchError: a part has no variable here, or one of another shape.
    """
    present = {part.name: part.variable.shape for part in parts}
    for name, tensor in tensors.items():
        if not name.startswith(FAMILIES):
            continue
        if name not in present or not present[name].is_compatible_with(tensor.shape):
            raise CheckpointMismatchError(
                f"The checkpoint holds {name!r} with shape {tensor.shape}, a replica's own part of a "
                f"variable that is not trained; the program has {present.get(name, 'none')}.",
                hint="use the model, optimizer and number of replicas per worker that it was written with",
            )


def check_as_many(parts: Iterable[ReplicaPart], names: Iterable[str]) -> None:
    """Checks that another number of workers has the variables of `take`, which go by their order.

    Args:
        parts: as with several replicas.
        names: of the tensors and checksums that a worker had which wrote the checkpoint.

    Raises:
        CheckpointMismatchError: there are more or fewer of them here.
    """
    saved_names = list(names)
    present = {part.name.rpartition("/")[0] for part in parts}
    for family in FAMILIES:
        saved = {name.rpartition("/")[0] for name in saved_names if name.startswith(family)}
        here = {name for name in present if name.startswith(family)}
        if saved and saved != here:
            raise CheckpointMismatchError(
                f"The checkpoint's workers had {len(saved)} variable(s) that each replica writes by itself; "
                f"with this number of workers there are {len(here)}, which cannot be told apart.",
                hint="make the variables in the strategy's scope, whatever the number of workers; or start "
                "as many workers as wrote the checkpoint",
            )


def restore(parts: Iterable[ReplicaPart], tensors: dict[str, Any], checksums: dict[str, int]) -> None:
    """Gives each replica its parts back, after `check`; warns of those that were not kept and differ."""
    for part in parts:
        if part.name in tensors:
            part.variable.assign(tensors[part.name])
        elif part.name in checksums and checksums[part.name] != _checksum(part.variable):
            _log.warning(
                "Variable %r differed between replicas when the checkpoint was written; it is larger than "
                "1 MiB, and only the chief's value was kept: the resumed run is not exact.\n"
                "HINT: give the variable an aggregation, so that replicas write it together.",
                part.variable.name,
            )


def _checksum(variable: Any) -> int:
    return zlib.crc32(np.ascontiguousarray(variable.numpy()).tobytes())
