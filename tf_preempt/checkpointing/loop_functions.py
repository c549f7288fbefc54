"""The functions of a loop whose steps are not given to `PreemptionCheckpointHandler.run`.

The frame in which a loop stands has the names that it uses: its ``tf.function`` among them, or the object
that has it as a method.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from tf_preempt.strategies import _tf_internals

_INSTALLED = ("site-packages", "dist-packages")
# To a snapshot of local variables: the frame's, that of a name of ours, the argument of getrefcount.
_OUR_REFERENCES = 3


def traced_functions_of(frame: types.FrameType | None) -> list[Any]:
    """Each ``tf.function`` that was called and that the nearest frame of the program uses by name.

    Args:
        frame: in which the loop stands, or what called it in a library such as ``tqdm``.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    while frame is not None and not _is_of_program(frame):
        frame = frame.f_back
    if frame is None:
        return []
    code = frame.f_code
    values = _values_of(frame, {*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars})
    methods = [method for value in values for method in _methods(value, code.co_names)]
    return [one for one in [*values, *methods] if _tf_internals.is_traced(one)]


def _is_of_program(frame: types.FrameType) -> bool:
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    is_installed = any(folder in frame.f_code.co_filename for folder in _INSTALLED)
    return package not in (*sys.stdlib_module_names, "tf_preempt") and not is_installed


def _values_of(frame: types.FrameType, names: set[str]) -> list[Any]:
    """What the names stand for in a frame, of which nothing is kept alive by the look at it.

    Up to Python 3.12 a look at local variables makes a snapshot that lives as long as the function: with the
    first batch in it, and the first epoch's iterator.  So it is emptied of them, unless the program has it,
    too, from ``locals()``.  The function itself does not go by it, nor does a debugger, for which Python
    brings it up to date first.
    """
    snapshot = frame.f_locals
    around = {**frame.f_globals, **snapshot}
    code = frame.f_code
    if type(snapshot) is dict and sys.getrefcount(snapshot) <= _OUR_REFERENCES:
        for name in (*code.co_varnames, *code.co_freevars, *code.co_cellvars):
            snapshot.pop(name, None)
    return [around[name] for name in names if name in around]


def _methods(value: Any, names: tuple[str, ...]) -> list[Any]:
    """What an object, a class or a module has under these names, if that is a ``tf.function``."""
    own = getattr(value, "__dict__", {})
    found = []
    for name in names:
        of_class = getattr(type(value), "__dict__", {}).get(name)
        if _tf_internals.is_tf_function(of_class):
            found.append(getattr(value, name))  # bound to the object, with the traces of it
        elif _tf_internals.is_tf_function(own.get(name)):
            found.append(own[name])
    return found
