"""Whether Keras 3 asks for the shapes and dtypes of a batch."""

from __future__ import annotations

import sys

# Where Keras 3 builds a model of which it does not know the input, before training.
_BUILDS = "_maybe_symbolic_build"
_PACKAGE = "keras."

# Between Keras's call and this function: classes that extend ``reduce``, and the filters of its tracebacks.
_NEAR_FRAMES = 8


def called_by_keras_build() -> bool:
    """Says whether a function of Keras 3 that learns shapes and dtypes from a batch is among the callers.

    If the name changes in another Keras, the answer is False.
    """
    frame = sys._getframe(1)
    for _ in range(_NEAR_FRAMES):
        found = frame.f_back
        if found is None:
            return False
        frame = found
        if frame.f_code.co_name == _BUILDS and str(frame.f_globals.get("__name__")).startswith(_PACKAGE):
            return True
    return False
