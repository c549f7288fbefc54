"""Random generators that keep their state in variables which no ``tf.train.Checkpoint`` reaches.

Two belong to the process: Keras's, which ``keras.random`` functions without a seed use, and TensorFlow's
(``tf.random.get_global_generator``).  Others hang on a layer, a model or a module where TensorFlow does not
look: in lists and dicts of Keras objects, in plain objects.  Each worker keeps its own.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from tf_preempt.checkpointing.merging import Component
from tf_preempt.strategies import _tf_internals

_log = logging.getLogger("tf_preempt")

FAMILY = "generator/"
"""Beginning of the names of generators in a worker's part."""

_KERAS, _TENSORFLOW = "keras", "tensorflow"
_BOOKKEEPING = "_self_"  # attributes in which TensorFlow lists what it tracks
_DEEPEST = 3  # containers and objects in each other
_LARGEST = 1000  # items of a container: what is larger holds data


class Generators:
    """The generators of a process and of what hangs on a checkpoint.

    Args:
        checkpoint: a ``tf.train.Checkpoint``; what it reaches by itself does not count.
        known: Keras variables that are saved elsewhere.
    """

    def __init__(self, checkpoint: Any, *, known: Iterable[Any] = ()) -> None:
        self._checkpoint = checkpoint
        self._known = list(known)

    def take(self) -> dict[str, Any]:
        """This worker's states of all generators, by name; reads no collective."""
        return {name: part.read_value() for name, part in self._parts().items()}

    def components(self) -> list[Component]:
        """The states as `merge_parts` takes them."""
        return [Component(name=name, variable=part, way="own") for name, part in self._parts().items()]

    def restore(self, tensors: dict[str, Any]) -> None:
        """Puts back what `take` has read; says which generators the program does not have any more."""
        saved = {name: tensors[name] for name in tensors if name.startswith(FAMILY)}
        self._create_global(saved)
        parts = self._parts()
        lost = []
        for name, state in saved.items():
            part = parts.get(name)
            if part is None or part.shape != state.shape:
                lost.append(name.removeprefix(FAMILY).rpartition("/")[0])
            else:
                part.assign(state)
        if lost:
            _log.warning(
                "The checkpoint has the state of random generators that the program lacks (%s): where "
                "they are made later, they begin afresh, and the resumed run is not exact.\n"
                "HINT: make generators before the training begins, at the place where they were.",
                ", ".join(sorted(set(lost))),
            )

    def _parts(self) -> dict[str, Any]:
        return {
            f"{FAMILY}{place}/{replica}": part
            for place, variable in self._variables().items()
            for replica, part in enumerate(_tf_internals.local_values(variable))
        }

    def _variables(self) -> dict[str, Any]:
        found = held_generators(self._checkpoint, known=self._known)
        for name, generator in (
            (_KERAS, _tf_internals.keras_global_generator()),
            (_TENSORFLOW, _tf_internals.tensorflow_global_generator()),
        ):
            if generator is not None:
                found[name] = generator.state
        return found

    def _create_global(self, saved: dict[str, Any]) -> None:
        """Makes those that the program had made by the time of the save, and has not yet now."""
        if f"{FAMILY}{_KERAS}/0" in saved and _tf_internals.keras_global_generator() is None:
            _tf_internals.keras_global_generator(create=True)
        state = saved.get(f"{FAMILY}{_TENSORFLOW}/0")
        if state is not None and _tf_internals.tensorflow_global_generator() is None:
            _tf_internals.create_tensorflow_global_generator(state)


def held_generators(checkpoint: Any, *, known: Iterable[Any] = ()) -> dict[str, Any]:
    """State variables of generators that hang on tracked objects and are not tracked, by their place.

    Args:
        checkpoint: a ``tf.train.Checkpoint``.
        known: Keras variables that are saved elsewhere.
    """
    nodes = _nodes(checkpoint)
    seen = {id(node) for node in nodes.values()} | {id(variable) for variable in known}
    found = {}
    for path, node in nodes.items():
        for name, value in _attributes(node):
            for place, generator in _generators_in(value, f"{path}.{name}"):
                state = generator.state
                if not {id(generator), id(state)} & seen:
                    seen.add(id(state))
                    found[place] = state
    return found


def _nodes(checkpoint: Any) -> dict[str, Any]:
    """What a checkpoint reaches, each once, by the shortest path."""
    waiting, paths, seen = [("", checkpoint)], {}, {id(checkpoint)}
    while waiting:
        path, node = waiting.pop(0)
        paths[path] = node
        for name, child in sorted(tf.train.TrackableView.children(node).items()):
            if id(child) not in seen:
                seen.add(id(child))
                waiting.append((f"{path}/{name}", child))
    return paths


def _attributes(node: Any) -> list[tuple[str, Any]]:
    if isinstance(node, tf.train.Checkpoint):
        return []  # what it was given is tracked
    named = getattr(node, "__dict__", {})
    return [(name, named[name]) for name in named if not name.startswith(_BOOKKEEPING)]


def _generators_in(value: Any, place: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    keras = sys.modules.get("keras")
    if isinstance(value, tf.random.Generator) or (keras and isinstance(value, keras.random.SeedGenerator)):
        yield place, value
    elif depth < _DEEPEST:
        for name, item in _items_of(value):
            yield from _generators_in(item, f"{place}{name}", depth + 1)


def _items_of(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and len(value) <= _LARGEST:
        yield from ((f"[{key!r}]", item) for key, item in value.items())
    elif isinstance(value, (list, tuple)) and len(value) <= _LARGEST:
        yield from ((f"[{index}]", item) for index, item in enumerate(value))
    elif _is_plain_object(value):
        yield from ((f".{name}", item) for name, item in vars(value).items())


def _is_plain_object(value: Any) -> bool:
    """Says whether this is an object of the user's program, with attributes of its own."""
    package = type(value).__module__.partition(".")[0]
    return (
        isinstance(getattr(value, "__dict__", None), dict)
        and not isinstance(value, type)
        and package not in sys.stdlib_module_names
        and package not in ("keras", "tensorflow", "numpy", "tf_preempt")
    )
