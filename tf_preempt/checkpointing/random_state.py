"""Random state that lives in this process and not in variables: Python's, NumPy's and TensorFlow's.

TensorFlow's is what gives a seed to each random op that runs eagerly (``tf.random.normal`` in a callback).
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from tf_preempt.strategies import _tf_internals


def take_random_state() -> dict[str, Any]:
    """The state of `random`, of `numpy.random`'s global generator and of TensorFlow's eager seeds, as JSON.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    eager = _tf_internals.eager_seeds()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": _state_of(random.getstate()),
        "numpy": [name, [int(key) for key in keys], int(position), int(has_gauss), float(cached)],
        "tensorflow": None if eager is None else _state_of(eager.getstate()),
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Puts the generators where `take_random_state` found them.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    saved, eager = state.get("tensorflow"), _tf_internals.eager_seeds()
    if saved is not None and eager is not None:  # without tf.random.set_seed each op draws a seed of its own
        eager.setstate((saved[0], tuple(saved[1]), saved[2]))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))


def _state_of(state: tuple[Any, ...]) -> list[Any]:
    version, numbers, gauss = state
    return [version, list(numbers), gauss]
