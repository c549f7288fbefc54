"""The parts of a checkpoint's workers, made the parts of another number of workers.

What replicas share by adding (metrics, accumulated gradients) is added up and given to the first of them; the
others begin at zero, so that the sum is what it was.  What belongs to one process (Python's and NumPy's
random state, what callbacks keep) is taken from one of the old workers.  Positions of data iterators fit one
number of workers only and are left out: see `any_workers`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, Literal

import tensorflow as tf

from tf_preempt.checkpointing.worker_part import WorkerPart

Way = Literal["sum", "mean", "first", "own"]
"""How the values of all replicas become those of other replicas: added up; averaged; the very first one's
for all; each one's own, and again from the beginning where there are more of them now."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Component:
    """A variable of one replica of this worker, as a worker's part holds it.

    Args:
        name: in the part: the variable's, a slash, and the number of the replica on its worker.
        variable: of that replica, a ``tf.Variable``.
        way: what its value is made of.
    """

    name: str
    variable: Any
    way: Way


def merge_parts(
    parts: list[WorkerPart], components: Iterable[Component], *, worker: int, families: tuple[str, ...]
) -> WorkerPart:
    """The part with which one worker of another number goes on.

    Args:
        parts: of all workers that wrote the checkpoint, in their order.
        components: what replicas have on this worker, the checkpoint's variables restored.
        worker: index of this worker.
        families: beginnings of the names of such components.

    Returns:
        A part in which each component has a value, if the checkpoint has its variable; variables that no
        component is of keep their names, so that they are missed.
    """
    own = parts[worker % len(parts)]
    tensors = {
        name: tensor
        for name, tensor in own.tensors.items()
        if tensor.dtype != tf.variant and not name.startswith(families)
    }
    found, of_own = _values_by_variable(parts, families), _values_by_variable([own], families)
    present = set()
    for component in components:
        variable, _, replica = component.name.rpartition("/")
        present.add(variable)
        values = found.get(variable)
        is_first = worker == 0 and replica == "0"
        if values is not None:
            mine = of_own[variable]
            tensors[component.name] = _merged(component, values, mine[int(replica) % len(mine)], is_first)
        elif component.way == "sum" and not is_first:
            # There was one replica: the checkpoint has its value, which the others are not to add again.
            tensors[component.name] = tf.zeros_like(component.variable)
    missed = {f"{variable}/0": values[0] for variable, values in found.items() if variable not in present}
    return WorkerPart(tensors=tensors | missed, values=own.values | {"replica_checksums": {}})


def _merged(component: Component, values: list[Any], own: Any, is_first: bool) -> Any:
    if component.way == "sum":
        total = tf.add_n(values)
        return total if is_first else tf.zeros_like(total)
    if component.way == "mean":
        return tf.cast(tf.reduce_mean(tf.stack(values), axis=0), values[0].dtype)
    return values[0] if component.way == "first" else own


def _values_by_variable(parts: Iterable[WorkerPart], families: tuple[str, ...]) -> dict[str, list[Any]]:
    """The values of each variable, in the order of workers and of their replicas."""
    found: dict[str, list[Any]] = {}
    for part in parts:
        named = [(*name.rpartition("/")[::2], name) for name in part.tensors if name.startswith(families)]
        for variable, _, name in sorted(named, key=lambda one: (one[0], int(one[1]))):
            found.setdefault(variable, []).append(part.tensors[name])
    return found
