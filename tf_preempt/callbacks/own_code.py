"""What of a callback belongs to the program, and what to Keras or another library.

State is looked for only in classes and objects of the program.  Those of libraries change for their own
reasons (loggers, progress bars, connections), and what Keras's callbacks keep is known by name.
"""

from __future__ import annotations

import dis
import functools
import inspect
import sys
import types
from collections.abc import Iterator
from typing import Any

_INSTALLED = ("site-packages", "dist-packages")
_TOP_MODULES = ("keras", "tensorflow", "tf_preempt")
_BASES_OF_PLAIN = ("builtins", "abc", "typing")  # object, ABC, Generic and Protocol


def own_classes(callback: Any) -> list[type]:
    """The classes of a callback that its program has written, those that are overridden first."""
    return [kind for kind in reversed(type(callback).__mro__) if _is_own(kind)]


def names_in_keras(callback: Any) -> frozenset[str]:
    """Every name that the methods of Keras's classes of a callback use; attributes of these are Keras's."""
    found: set[str] = set()
    for kind in type(callback).__mro__:
        if kind.__module__.partition(".")[0] == "keras":
            found |= _names_in_class(kind)
    return frozenset(found)


@functools.cache
def _names_in_class(kind: type) -> frozenset[str]:
    members = [
        getattr(member, "fget", None) or inspect.unwrap(getattr(member, "__func__", member))
        for member in vars(kind).values()
    ]
    codes = [member.__code__ for member in members if inspect.isfunction(member)]
    return frozenset(name for code in codes for name in _names_in(code))


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names_in(inner)


def is_plain_object(value: Any) -> bool:
    """Says whether this is an object of a class of the program, made of nothing else than such classes."""
    return (
        isinstance(getattr(value, "__dict__", None), dict)
        and not isinstance(value, type)
        and _is_own(type(value))
        and all(_is_own(kind) or kind.__module__ in _BASES_OF_PLAIN for kind in type(value).__mro__)
    )


def variables_of(function: Any) -> dict[str, Any]:
    """The variables around a function that it uses: of the functions it lies in, and global ones."""
    code = function.__code__
    found = {}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # nothing was assigned to it yet
            continue
    for step in dis.get_instructions(code):
        if step.opname == "LOAD_GLOBAL" and step.argval in function.__globals__:
            found[step.argval] = function.__globals__[step.argval]
    return found


def _is_own(kind: type) -> bool:
    """Says whether a class was written for the program: it is of no installed package, nor of Python."""
    package = kind.__module__.partition(".")[0]
    if package in sys.stdlib_module_names or package in _TOP_MODULES:
        return False
    file = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
    return not any(folder in file for folder in _INSTALLED)
