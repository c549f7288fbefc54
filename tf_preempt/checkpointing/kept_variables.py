"""The variables that a checkpoint holds, in one way or another: all others are new in each process."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from tf_preempt.checkpointing.generators import held_generators
from tf_preempt.checkpointing.replica_parts import variables_in
from tf_preempt.errors import ConfigError
from tf_preempt.strategies import _tf_internals


def variables_kept_by(checkpoint: Any, *, known: Iterable[Any] = ()) -> list[Any]:
    """What is saved with a checkpoint, or need not be: its variables, random generators, our own counters.

    Args:
        checkpoint: a ``tf.train.Checkpoint``.
        known: variables that are saved beside it.
    """
    generators = (_tf_internals.keras_global_generator(), _tf_internals.tensorflow_global_generator())
    return [
        *known,
        *variables_in(checkpoint),
        *_slots(checkpoint),
        *held_generators(checkpoint).values(),
        *(one.state for one in generators if one is not None),
        *_tf_internals.instance_counters(),
    ]


def _slots(checkpoint: Any) -> Iterator[Any]:
    """Variables of optimizers of TensorFlow 1, and of Keras's from before 2.11, which have their own way."""
    for node in tf.train.TrackableView(checkpoint).descendants():
        if hasattr(node, "get_slot_names") and callable(node.variables):
            yield from node.variables()


def local_components(values: Iterable[Any]) -> Iterator[Any]:
    """The components on this worker of the variables among values; of Keras's, what is behind them."""
    keras = sys.modules.get("keras")
    kinds = (tf.Variable,) if keras is None else (tf.Variable, keras.Variable)
    for value in values:
        if not isinstance(value, kinds):
            continue
        with contextlib.suppress(ConfigError):  # a Keras variable that has no value yet
            yield from _tf_internals.local_values(value)
