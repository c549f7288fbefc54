"""Random generators that belong to the whole process: TensorFlow's two and Keras's one."""

from __future__ import annotations

import random
import sys
from typing import Any

import tensorflow as tf

from tf_preempt.strategies._tf_internals.access import attribute, private_module

_STATEFUL = "tensorflow.python.ops.stateful_random_ops"
_SEED_GENERATOR = "keras.src.random.seed_generator"
_GLOBAL = "global_seed_generator"  # where Keras's global state has it
_PHILOX_WORDS = 3  # in the state of a generator; ThreeFry, the other algorithm, has 2


def eager_seeds() -> random.Random | None:
    """What gives a seed to each random op that runs eagerly, once ``tf.random.set_seed`` was called.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    name = "tensorflow.python.eager.context"
    context = attribute(private_module(name), "context", name)()
    seeds = getattr(context, "_rng", None)
    return seeds if isinstance(seeds, random.Random) else None


def tensorflow_global_generator() -> Any:
    """What ``tf.random.get_global_generator`` gives, or None: asking that function would create it.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    return attribute(private_module(_STATEFUL), "global_generator", _STATEFUL)


def create_tensorflow_global_generator(state: tf.Tensor) -> None:
    """Makes TensorFlow's global generator, in the given state (int64, shape (3,) or (2,))."""
    algorithm = "philox" if int(tf.size(state)) == _PHILOX_WORDS else "threefry"
    tf.random.set_global_generator(tf.random.Generator.from_state(state, alg=algorithm))


def keras_global_generator(*, create: bool = False) -> Any:
    """The ``keras.random.SeedGenerator`` of ``keras.random`` functions that are given no seed, or None.

    Args:
        create: make it if nothing has needed it yet; that draws from `random`.

    Raises:
        InternalsChangedError: Keras's private names have changed.
    """
    if "keras" not in sys.modules:
        return None
    module = private_module(_SEED_GENERATOR)
    if create:
        return attribute(module, "global_seed_generator", _SEED_GENERATOR)()
    state = attribute(module, "global_state", _SEED_GENERATOR)
    return attribute(state, "get_global_attribute", "global_state")(_GLOBAL)
