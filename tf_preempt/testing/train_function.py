"""Hands a function over to another process, in which its module may not be importable by name.

A test runner loads test files under names that no other process knows; so the file goes along with the name.
"""

from __future__ import annotations

import base64
import functools
import importlib.util
import json
import os
import pickle
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from tf_preempt.errors import ConfigError, LaunchError

__all__ = ["read_function", "write_function"]

_MAIN = "__main__"
# As multiprocessing has it: a script that starts something only `if __name__ == "__main__"` does not.
_MAIN_OF_ANOTHER = "__mp_main__"


def write_function(function: Callable[..., object], path: str) -> None:
    """Writes a function to a file of JSON.

    Args:
        function: at the top level of a module, or a ``functools.partial`` of one.
        path: the file.

    Raises:
        ConfigError: it cannot be pickled.
        OSError: the file cannot be written.
    """
    try:
        pickled = pickle.dumps(function)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"train_fn={function!r} cannot be called in another process: {error}",
            hint="expected a function at the top level of a module, or functools.partial of one; no lambda "
            "and no function within a function.",
        ) from error
    plain: Any = function
    while isinstance(plain, functools.partial):
        plain = plain.func
    name = getattr(plain, "__module__", None) or type(plain).__module__
    content = {
        "function": base64.b64encode(pickled).decode(),
        "module": name,
        "file": getattr(sys.modules.get(name), "__file__", None),
        "sys_path": [entry or os.getcwd() for entry in sys.path],
    }
    with open(path, "w", encoding="utf-8") as file:
        json.dump(content, file)


def read_function(path: str) -> Callable[..., object]:
    """Reads what `write_function` wrote, in another process: extends ``sys.path``, loads the module.

    Raises:
        LaunchError: the module cannot be found.
        Exception: whatever the module raises when it is loaded.
    """
    with open(path, encoding="utf-8") as file:
        content = json.load(file)
    sys.path += [entry for entry in content["sys_path"] if entry not in sys.path]
    _load(content["module"], content["file"])
    function: Callable[..., object] = pickle.loads(base64.b64decode(content["function"]))
    return function


def _load(name: str, file: str | None) -> None:
    if file is None:
        return  # built in, or from a place that has no files: found by its name
    if name == _MAIN:
        sys.modules[_MAIN] = _load_file(_MAIN_OF_ANOTHER, file)
    elif not _is_found(name, file):
        _load_file(name, file)


def _is_found(name: str, file: str) -> bool:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return False
    return (
        spec is not None
        and spec.origin is not None
        and os.path.realpath(spec.origin) == os.path.realpath(file)
    )


def _load_file(name: str, file: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise LaunchError(f"the module {name!r} of train_fn cannot be loaded from {file!r}.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
