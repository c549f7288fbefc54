"""Random numbers that a training step draws from where no checkpoint reaches.

``tf.random.normal`` and its like count in the kernel of their op: a new process begins to count again, so
that a resumed run draws other numbers than an undisturbed one.  They can only be found, and said, with the
layer and the line of the program where they are.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable
from typing import Any

from tf_preempt.strategies import _tf_internals

_log = logging.getLogger("tf_preempt")
_warned: set[bool] = set()


def functions_in(function: Any) -> list[Any]:
    """A function and those that it refers to by name, among them the ``tf.function`` that a lambda calls."""
    try:
        inside = inspect.getclosurevars(function)
    except TypeError:  # a tf.function, a partial, an object with __call__
        return [function]
    return [function, *inside.nonlocals.values(), *inside.globals.values()]


def warn_of_random_ops(functions: Iterable[Any], *, in_validation: bool = False) -> None:
    """Warns once in a process if a step draws random numbers whose state cannot be saved.

    Args:
        functions: what the step was traced in; those that are no ``tf.function`` are passed over, and so are
            steps that run eagerly, which leave no graph to look at.
        in_validation: it is a step of validation.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    if in_validation in _warned:
        return
    traced = [function for function in functions if _tf_internals.is_tf_function(function)]
    found = [place for function in traced for place in _tf_internals.random_ops_of(function)]
    if not found:
        return
    _warned.add(in_validation)
    places = ", ".join(sorted({str(place) for place in found}))
    stateless = ", ".join(sorted({place.stateless or "tf.random.stateless_*" for place in found}))
    if in_validation:
        _log.warning(
            "The validation draws random numbers with ops whose state is in no checkpoint (%s): after a "
            "resume its results can differ, and what callbacks make of them.\n"
            "HINT: use %s with a fixed seed.",
            places,
            stateless,
        )
        return
    _log.warning(
        "The training step draws random numbers with ops whose state is in no checkpoint (%s): a resumed "
        "run draws others than an undisturbed one.\n"
        "HINT: use keras.random with a keras.random.SeedGenerator that a layer holds, or "
        "%s with a seed made of the step.",
        places,
        stateless,
    )
