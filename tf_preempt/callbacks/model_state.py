"""What of a Keras model is saved where: variables in the checkpoint, metric parts with each worker."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_preempt.checkpointing import replica_parts
from tf_preempt.checkpointing.generators import Generators
from tf_preempt.checkpointing.merging import Component, Way
from tf_preempt.checkpointing.replica_parts import is_accumulator
from tf_preempt.errors import CheckpointMismatchError
from tf_preempt.strategies import _tf_internals

_METRIC = "metric/"
_WAYS: dict[str, Way] = {"sum": "sum", "mean": "mean", "only_first_replica": "first", "none": "first"}

FAMILIES = (_METRIC, *replica_parts.FAMILIES)
"""Beginnings of the names of what each replica has of the model's state."""


def saved_variables(model: Any) -> list[Any]:
    """All variables that are alike on all workers: weights, seed generators, the optimizer's."""
    optimizer = getattr(model, "optimizer", None)
    candidates = [*model.variables, *(optimizer.variables if optimizer is not None else [])]
    metrics = {id(variable) for variable in model.metrics_variables}
    seen: set[int] = set()
    variables = []
    for variable in candidates:
        if id(variable) not in seen and id(variable) not in metrics:
            seen.add(id(variable))
            variables.append(variable)
    return variables


def make_checkpoint(model: Any) -> Any:
    """A ``tf.train.Checkpoint`` of all saved variables.

    ``tf.train.Checkpoint(model=model)`` alone leaves out the seed generators (Keras 3 does not track them for
    TensorFlow); they, and whatever else is not reachable, are added under ``more``.
    """
    plain = tf.train.Checkpoint(model=model)
    reachable = {id(node) for node in tf.train.TrackableView(plain).descendants()}
    more = [variable for variable in saved_variables(model) if id(variable) not in reachable]
    return tf.train.Checkpoint(model=model, more=more)


def generators(model: Any) -> Generators:
    """The random generators that `make_checkpoint` does not reach, the process's among them."""
    return Generators(tf.train.Checkpoint(model=model), known=saved_variables(model))


def metric_parts(model: Any) -> dict[str, Any]:
    """This worker's part of each metric variable, read without a collective.

    A metric variable of several replicas is the sum of its parts; assigning the sum to it would not give the
    parts back, and the epoch's result would differ in the last bits.
    """
    return {one.name: one.variable.read_value() for one in _components_of_metrics(model)}


def written_by_replicas(model: Any, *, also_by_one: bool = False) -> list[Any]:
    """Variables that each replica may write by itself; none where there is one replica.

    Weights that are not trained, and the gradients that the optimizer accumulates.

    Args:
        model: of Keras.
        also_by_one: those, too, of a model that has one replica now.
    """
    if model.distribute_strategy.num_replicas_in_sync == 1 and not also_by_one:
        return []
    metrics = {id(variable) for variable in model.metrics_variables}
    optimizer = getattr(model, "optimizer", None)
    accumulators = (
        [one for one in optimizer.variables if is_accumulator(one)] if optimizer is not None else []
    )
    return [one for one in model.non_trainable_variables if id(one) not in metrics] + accumulators


def components(model: Any) -> list[Component]:
    """What the replicas of this worker have of metrics and of `written_by_replicas`, for `merge_parts`."""
    written = replica_parts.replica_parts(written_by_replicas(model, also_by_one=True))
    return _components_of_metrics(model) + replica_parts.components(written)


def _components_of_metrics(model: Any) -> list[Component]:
    return [
        Component(name=f"{_METRIC}{index}/{replica}", variable=part, way=_WAYS[variable.aggregation])
        for index, variable in enumerate(model.metrics_variables)
        for replica, part in enumerate(_tf_internals.local_values(variable))
    ]


def check_metric_parts(model: Any, tensors: dict[str, Any]) -> None:
    """Checks that what `metric_parts` has read belongs to this model's metrics.

    Raises:
        CheckpointMismatchError: the model has other metrics than the one that was saved.
    """
    saved = {name: list(tensor.shape) for name, tensor in tensors.items() if name.startswith(_METRIC)}
    present = {name: list(part.shape) for name, part in metric_parts(model).items()}
    if present != saved:
        raise CheckpointMismatchError(
            f"The checkpoint holds {len(saved)} metric variables, the model has {len(present)}, "
            "or their shapes differ.",
            hint="compile the model with the metrics that it had when the checkpoint was written",
        )


def set_metric_parts(model: Any, tensors: dict[str, Any]) -> None:
    """Assigns what `metric_parts` has read, after `check_metric_parts`."""
    for index, variable in enumerate(model.metrics_variables):
        for replica, part in enumerate(_tf_internals.local_values(variable)):
            part.assign(tensors[f"{_METRIC}{index}/{replica}"])


def scalar_values(model: Any) -> list[tuple[Any, Any]]:
    """The scalar variables and their values: learning rate, iterations, loss scale.

    Callbacks may change them in ``on_epoch_begin``; the resumed epoch has begun once already.
    """
    return [(variable, variable.numpy()) for variable in saved_variables(model) if len(variable.shape) == 0]
