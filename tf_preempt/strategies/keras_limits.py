"""What weighting replicas by rows does not make exact in a Keras model.

A loss that is a mean over something else than rows has another weight on each replica than its rows: it
differs from one process's, also where all replicas have the same number of rows.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

_log = logging.getLogger("tf_preempt")
_said: set[str] = set()

_WEIGHTS_HINT = (
    "give the loss reduction='sum_over_batch_size' (the default), and put the weights of rows, divided by "
    "their mean over the whole data set, into sample_weight."
)
_MASKS_HINT = (
    "compute the loss per row in the model or a custom loss (a sum over the valid positions, divided by a "
    "fixed length), or put 0 for masked rows into sample_weight instead of a mask."
)


def warn_of_limits(fn: Callable[..., Any]) -> None:
    """Warns once where a Keras model's step cannot be made exact on several replicas.

    Args:
        fn: a replica function; Keras gives ``train_step`` and ``test_step`` of the model.
    """
    keras = sys.modules.get("keras")
    model = getattr(fn, "__self__", None)
    if keras is None or not isinstance(model, keras.Model):
        return
    for message in limits_of(model):
        if message not in _said:
            _said.add(message)
            _log.warning(message)


def limits_of(model: Any) -> Iterator[str]:
    """What is not weighted as in one process, with the cure.

    Args:
        model: a compiled ``keras.Model``.
    """
    masking = next((layer.name for layer in _layers(model) if _makes_masks(layer)), None)
    if masking is not None:
        yield (
            f"layer {masking!r} masks positions: Keras takes the mean of the loss over what is left on each "
            "replica, so that a replica with fewer valid positions gives each of them more weight than one "
            f"process would.\nHINT: {_MASKS_HINT}"
        )
    weighted = [loss for loss in tf.nest.flatten(model.loss) if _reduction(loss) == "mean_with_sample_weight"]
    if weighted:
        yield (
            "a loss has reduction='mean_with_sample_weight': each replica divides by the sum of its own "
            "weights, so that rows on a replica with smaller weights count more than in one process.\n"
            f"HINT: {_WEIGHTS_HINT}"
        )


def _layers(model: Any) -> Iterator[Any]:
    """Layers of a model and of the models in it."""
    for layer in getattr(model, "layers", ()):
        yield layer
        yield from _layers(layer)


def _makes_masks(layer: Any) -> bool:
    """``Masking`` has a value that it masks, ``Embedding`` says whether zeros are masked."""
    return hasattr(layer, "mask_value") or bool(getattr(layer, "mask_zero", False))


def _reduction(loss: Any) -> Any:
    return getattr(loss, "reduction", None)
