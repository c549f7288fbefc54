"""What the step of a Keras model needs on several replicas, and what in it cannot be made exact.

* A loss scale for float16 is lowered, and a step skipped, where gradients overflow.  Keras asks the first
  replica of each worker only: on two workers, one updates and waits for the other; on two devices, an
  overflow of the second is applied to the weights.  Here all replicas are asked.
* A loss that is a mean over something else than rows has another weight on each replica than its rows: it
  differs from one process's, also where all replicas have the same number of rows.
* A metric that was made outside the strategy's scope counts what its own worker sees.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tf_preempt.strategies.said import warn_once

_WEIGHTS_HINT = (
    "give the loss reduction='sum_over_batch_size' (the default), and put the weights of rows, divided by "
    "their mean over the whole data set, into sample_weight."
)
_MASKS_HINT = (
    "compute the loss per row in the model or a custom loss (a sum over the valid positions, divided by a "
    "fixed length), or put 0 for masked rows into sample_weight instead of a mask."
)


_prepared: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def prepare_model(fn: Callable[..., Any], replicas: int, *, uneven: bool = False) -> bool:
    """Prepares a Keras model for several replicas, and warns once of what cannot be made exact.

    Args:
        fn: a replica function; Keras gives ``train_step`` and ``test_step`` of the model.
        replicas: how many train together.
        uneven: whether replicas may have different numbers of rows.

    Returns:
        Whether `fn` is a step of a Keras model.
    """
    keras = sys.modules.get("keras")
    model = getattr(fn, "__self__", None)
    if keras is None or not isinstance(model, keras.Model):
        return False
    if replicas == 1:
        return True
    compiled = (id(getattr(model, "optimizer", None)), id(getattr(model, "loss", None)), uneven)
    if _prepared.get(model) == compiled:
        return True
    _prepared[model] = compiled
    _agree_on_overflow(model, keras.optimizers.LossScaleOptimizer)
    messages = [*limits_of(model), *made_outside(model), *(uneven_limits_of(model) if uneven else ())]
    for message in messages:
        warn_once(message)
    return True


def _agree_on_overflow(model: Any, kind: type) -> None:
    """Lets all replicas skip a step if the gradients of one overflow."""
    optimizer = getattr(model, "optimizer", None)
    name = "check_finite"
    if not isinstance(optimizer, kind) or getattr(type(optimizer), name) is not getattr(kind, name):
        return  # a class of the user's own knows better
    if name not in vars(optimizer):
        alone: Callable[..., Any] = getattr(optimizer, name)

        def check_finite(gradients: Any) -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            overflows = tf.cast(tf.logical_not(alone(gradients)), tf.float32)
            return tf.equal(context.all_reduce(tf.distribute.ReduceOp.SUM, overflows), 0.0)

        vars(optimizer)[name] = check_finite


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


def uneven_limits_of(model: Any) -> Iterator[str]:
    """What is not weighted by rows where replicas have different numbers of them, with the cure.

    Args:
        model: a compiled ``keras.Model``.
    """
    if len(tf.nest.flatten(model.loss)) > 1:
        yield (
            "the logs hold a loss for each output, and Keras counts each replica's part of a smaller last "
            "batch in them like a whole one; the loss of the whole model is exact.\nHINT: give each output a "
            "metric instead (compile's metrics), which counts rows, or drop the remainder."
        )


def made_outside(model: Any) -> Iterator[str]:
    """What was made outside the strategy's scope and so sees a part of the rows only, with the cure.

    Args:
        model: a compiled ``keras.Model``, made in the scope of a strategy with several replicas.
    """
    outside = [variable.path for variable in model.metrics_variables if not _is_distributed(variable)]
    if outside:
        yield (
            f"metric variable {outside[0]!r} was made outside the strategy's scope: it counts only the rows "
            "that its own worker or device sees.\nHINT: make metrics, models and optimizers in `with "
            "strategy.scope():`, also those that are given to compile."
        )


def _is_distributed(variable: Any) -> bool:
    return isinstance(variable.value, tf.distribute.DistributedValues)


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
