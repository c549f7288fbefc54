"""Keras's logs as JSON: floats keep every bit, and what is not finite survives."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tf_preempt.errors import CheckpointWriteError


def encode(value: Any) -> Any:
    """A log value, or a structure of them, as JSON holds it.

    Tensors and arrays become numbers or lists; what strict JSON lacks (NaN, the infinities) becomes a string.

    Raises:
        CheckpointWriteError: there is something in it that is neither a number, a string nor a structure; or
            a dict has keys that are no strings, and would come back as other keys.
    """
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise CheckpointWriteError(
                    f"The key {key!r} of type {type(key).__name__} would become a string in JSON.",
                    hint="use strings as keys of dicts in what get_state() returns and in logs",
                )
        return {key: encode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    if isinstance(value, (str, bool, int)) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"__float__": repr(value)}
    return encode(_plain(value))


def _plain(value: Any) -> Any:
    """Python's own numbers, or lists of them, for a tensor, an array or a number of NumPy."""
    array = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
    if array.dtype.kind == "V":  # bfloat16 and its like: NumPy knows no Python number for them
        array = array.astype(np.float64)
    plain = array.tolist()
    if not isinstance(plain, (list, str, bool, int, float)):
        raise CheckpointWriteError(
            f"{value!r} of type {type(value).__name__} cannot be kept in a checkpoint's JSON.",
            hint="return numbers, strings, lists and dicts of them from get_state() and as logs",
        )
    return plain


def decode(value: Any) -> Any:
    """What `encode` was given, with Python's own numbers."""
    if isinstance(value, dict):
        if set(value) == {"__float__"}:
            return float(value["__float__"])
        return {key: decode(item) for key, item in value.items()}
    if isinstance(value, list):
        return [decode(item) for item in value]
    return value
