"""Keras's logs as JSON: floats keep every bit, and what is not finite survives."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def encode(value: Any) -> Any:
    """A log value, or a structure of them, as JSON holds it.

    Tensors and arrays become numbers or lists; what strict JSON lacks (NaN, the infinities) becomes a string.
    """
    if isinstance(value, dict):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    if isinstance(value, (str, bool, int)) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"__float__": repr(value)}
    return encode(np.asarray(value).tolist())


def decode(value: Any) -> Any:
    """What `encode` was given, with Python's own numbers."""
    if isinstance(value, dict):
        if set(value) == {"__float__"}:
            return float(value["__float__"])
        return {key: decode(item) for key, item in value.items()}
    if isinstance(value, list):
        return [decode(item) for item in value]
    return value
