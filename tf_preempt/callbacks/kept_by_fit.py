"""The variables of a `fit` that a checkpoint holds, in one way or another."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tf_preempt.callbacks import model_state, own_code
from tf_preempt.callbacks.callback_states import has_protocol
from tf_preempt.checkpointing.kept_variables import variables_kept_by

HINT = (
    "make each an attribute of the model or of one of its layers before fit; so, too, the metric, the "
    "optimizer or the second model that it belongs to"
)
"""How a program has such a variable saved."""


def kept_variables(model: Any, callbacks: Iterable[Any]) -> list[Any]:
    """What is saved of a model, and what callbacks keep by ``get_state`` and ``set_state``.

    Args:
        model: of Keras.
        callbacks: of the `fit`, without `OnChief` around them.

    Returns:
        Variables, and other values among them that callbacks have.
    """
    known = [*model_state.saved_variables(model), *model.metrics_variables]
    of_model = variables_kept_by(tf.train.Checkpoint(model=model), known=known)
    return [*of_model, *(value for one in callbacks for value in _kept_by(one))]


def _kept_by(callback: Any) -> list[Any]:
    """What may be variables of a callback that saves its state itself."""
    if not has_protocol(callback):
        return []
    methods = (getattr(callback.get_state, "__func__", None), getattr(callback.set_state, "__func__", None))
    around = [own_code.variables_of(method) for method in methods if hasattr(method, "__code__")]
    held = [*vars(callback).values(), *(value for found in around for value in found.values())]
    return [*held, *(item for value in held for item in _items(value))]


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, (list, tuple)) else ()
