"""How private names are reached: a name that is gone is an error that says so."""

from __future__ import annotations

import functools
import importlib
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from tf_preempt import errors


def gone(name: str) -> errors.InternalsChangedError:
    """The error for a private name that this TensorFlow does not have."""
    return errors.InternalsChangedError(
        f"TensorFlow {tf.version.VERSION} has no {name}, a private name that this package needs.",
        hint="install a TensorFlow that this release was tried on (2.18 to 2.21), or a newer tf_preempt.",
    )


def attribute(owner: Any, name: str, owner_name: str) -> Any:
    """``getattr`` for a private name.

    Raises:
        InternalsChangedError: `owner` has no such attribute.
    """
    try:
        return getattr(owner, name)
    except AttributeError:
        raise gone(f"{owner_name}.{name}") from None


@functools.cache  # AutoGraph does not look into cached functions, and would stumble over imports
def private_module(name: str) -> Any:
    """A module of TensorFlow that is not public.

    Raises:
        InternalsChangedError: there is no such module.
    """
    try:
        return importlib.import_module(name)
    except ImportError:
        raise gone(name) from None


def attributes(module_name: str, *names: str) -> SimpleNamespace:
    """Several names of a module of TensorFlow that is not public.

    Raises:
        InternalsChangedError: there is no such module, or it has not all of the names.
    """
    module = private_module(module_name)
    return SimpleNamespace(**{name: attribute(module, name, module_name) for name in names})
