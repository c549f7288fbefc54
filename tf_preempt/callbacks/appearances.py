"""What the state of a callback looks like, so that a change of it is seen.

A callback without ``get_state`` may keep nothing, or something that a resume would lose.  Whether it does is
seen by comparing: its attributes, those of its classes and of plain objects that it has, and the variables of
its program that its functions use.
"""

from __future__ import annotations

import collections
import inspect
import itertools
import random
import types
from collections.abc import Collection, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_preempt.callbacks import own_code
from tf_preempt.strategies import _tf_internals

_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState)
_GENERATORS_WITH_VARIABLE = (keras.random.SeedGenerator, tf.random.Generator)
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
    itertools.count,
    types.SimpleNamespace,
    *_GENERATORS,
    *_GENERATORS_WITH_VARIABLE,
    *_CONTAINERS,
)
_KERAS_ATTRIBUTES = ("params", "validation_data")
_DEEPEST = 8  # containers in containers; one that holds itself has no end
_DEEPEST_OBJECT = 3  # objects in objects
_MOST_ITEMS = 10_000  # of larger containers, which hold data, length and last item have to do
_MOST_BYTES = 2**24  # of larger arrays, that it is the same object


def appearances(callback: Any, *, leave_out: Collection[str] = ()) -> dict[str, Any]:
    """The state of a callback by name, as values that can be compared.

    Args:
        callback: of Keras, or of a class of the program.
        leave_out: attributes that are not looked at; Keras's ``params`` never are.
    """
    seen: dict[str, Any] = {}
    for name, value in _members(callback):
        if name in _KERAS_ATTRIBUTES or name in leave_out or _is_of_the_model(value, callback):
            continue
        if _can_hold_state(value):
            seen[name] = _appearance(value)
        elif inspect.ismethod(value):
            seen |= _of_method(name, value)
        elif inspect.isfunction(value):
            seen |= _of_variables(name, value)
    return seen


def _members(callback: Any) -> Iterator[tuple[str, Any]]:
    for kind in own_code.own_classes(callback):
        yield from vars(kind).items()
    yield from vars(callback).items()


def _is_of_the_model(value: Any, callback: Any) -> bool:
    """Says whether this is a seed generator of the model in training, which is saved with it."""
    model = getattr(callback, "model", None)
    if model is None or not isinstance(value, keras.random.SeedGenerator):
        return False
    return any(variable is value.state for variable in getattr(model, "variables", ()))


def _can_hold_state(value: Any) -> bool:
    return isinstance(value, _CAN_HOLD_STATE) or own_code.is_plain_object(value)


def _of_method(name: str, method: Any) -> dict[str, Any]:
    found = _of_variables(name, method.__func__) if inspect.isfunction(method.__func__) else {}
    if own_code.is_plain_object(method.__self__):
        found[f"the {type(method.__self__).__name__} of {name}"] = _appearance(method.__self__)
    return found


def _of_variables(name: str, function: Any) -> dict[str, Any]:
    return {
        f"{variable}, which {name} uses": _appearance(value)
        for variable, value in own_code.variables_of(function).items()
        if _can_hold_state(value)
    }


def _appearance(value: Any, depth: int = 0) -> Any:
    """Of an object, that it is the same one, and its attributes; those in containers are not looked into."""
    if not own_code.is_plain_object(value) or isinstance(value, _CAN_HOLD_STATE):
        return _appearance_of_value(value)
    if depth == _DEEPEST_OBJECT:
        return id(value)
    named = [(name, item) for name, item in vars(value).items() if _can_hold_state(item)]
    return id(value), [(name, _appearance(item, depth + 1)) for name, item in named]


def _appearance_of_value(value: Any, depth: int = 0) -> Any:
    if isinstance(value, np.ndarray):  # `repr` leaves out the middle of arrays
        content = value.tobytes() if value.nbytes <= _MOST_BYTES else id(value)
        return value.shape, value.dtype.str, content
    if isinstance(value, _GENERATORS):
        return _appearance_of_generator(value)
    if isinstance(value, _GENERATORS_WITH_VARIABLE):
        parts = _tf_internals.local_values(value.state)
        return [part.read_value().numpy().tolist() for part in parts]
    if isinstance(value, dict) and depth < _DEEPEST:
        items: list[Any] = list(value.items())
        looked_at = [(repr(key), _appearance_of_value(item, depth + 1)) for key, item in _looked_at(items)]
        return looked_at, len(items)
    if isinstance(value, _CONTAINERS) and depth < _DEEPEST:
        items = list(value)
        return [_appearance_of_value(item, depth + 1) for item in _looked_at(items)], len(items)
    return repr(value)


def _looked_at(items: list[Any]) -> list[Any]:
    return items if len(items) <= _MOST_ITEMS else items[-1:]


def _appearance_of_generator(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.Generator):
        return repr(generator.bit_generator.state)
    return [repr(part) for part in generator.get_state()]
