"""Random state that lives in this process and not in variables: Python's and NumPy's generators."""

from __future__ import annotations

import random
from typing import Any

import numpy as np


def take_random_state() -> dict[str, Any]:
    """The state of `random` and of `numpy.random`'s global generator, as JSON values."""
    version, numbers, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": [version, list(numbers), gauss],
        "numpy": [name, [int(key) for key in keys], int(position), int(has_gauss), float(cached)],
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Puts both generators where `take_random_state` found them."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
