"""What the state of an unknown callback looks like, so that a change of it is seen.

A callback without ``get_state`` may keep nothing, or something that a resume would lose.  Whether it does is
seen by comparing: its attributes, and the variables of its program that the functions of a ``LambdaCallback``
use.
"""

from __future__ import annotations

import collections
import inspect
import random
from typing import Any

import numpy as np

_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState)
_CONTAINERS = (list, tuple, set, collections.deque)
_CAN_HOLD_STATE = (
    bool,
    int,
    float,
    str,
    type(None),
    dict,
    np.ndarray,
    np.generic,
    *_GENERATORS,
    *_CONTAINERS,
)
_KERAS_ATTRIBUTES = ("params", "validation_data")
_DEEPEST = 8  # containers in containers; one that holds itself has no end
_MOST_ITEMS = 10_000  # of larger containers, which hold data, length and last item have to do
_MOST_BYTES = 2**24  # of larger arrays, that it is the same object


def appearances(callback: Any) -> dict[str, Any]:
    """The state of a callback by name, as values that can be compared; Keras's own attributes left out."""
    seen = {}
    for name, value in vars(callback).items():
        if name in _KERAS_ATTRIBUTES:
            continue
        if isinstance(value, _CAN_HOLD_STATE):
            seen[name] = _appearance(value)
        elif inspect.isfunction(value):
            seen |= _of_variables(name, value)
    return seen


def _of_variables(name: str, function: Any) -> dict[str, Any]:
    used = inspect.getclosurevars(function)
    return {
        f"{variable}, which {name} uses": _appearance(value)
        for variable, value in [*used.nonlocals.items(), *used.globals.items()]
        if isinstance(value, _CAN_HOLD_STATE)
    }


def _appearance(value: Any, depth: int = 0) -> Any:
    if isinstance(value, np.ndarray):  # `repr` leaves out the middle of arrays
        content = value.tobytes() if value.nbytes <= _MOST_BYTES else id(value)
        return value.shape, value.dtype.str, content
    if isinstance(value, _GENERATORS):
        return _appearance_of_generator(value)
    if isinstance(value, dict) and depth < _DEEPEST:
        items: list[Any] = list(value.items())
        return [(repr(key), _appearance(item, depth + 1)) for key, item in _looked_at(items)], len(items)
    if isinstance(value, _CONTAINERS) and depth < _DEEPEST:
        items = list(value)
        return [_appearance(item, depth + 1) for item in _looked_at(items)], len(items)
    return repr(value)


def _looked_at(items: list[Any]) -> list[Any]:
    return items if len(items) <= _MOST_ITEMS else items[-1:]


def _appearance_of_generator(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.Generator):
        return repr(generator.bit_generator.state)
    return [repr(part) for part in generator.get_state()]
