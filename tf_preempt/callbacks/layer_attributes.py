"""Attributes of the model and its layers that change while `fit` runs: no checkpoint holds them.

``layer.trainable = False`` or ``layer.rate *= 0.5`` in a callback, a counter in ``train_step``: a resumed run
begins with what the program first gives them, and traces its step with that.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

_log = logging.getLogger("tf_preempt")

_PLAIN = (bool, int, float, complex, str, np.generic, type(None))
_HOW_FIT_IS_ENDED = "stop_"  # stop_training, stop_evaluating: the resume point has the one that matters
_MOST_NAMED = 3


class LayerAttributes:
    """Compares the numbers, words and flags of a model and its layers with what they were.

    Args:
        model: of Keras.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._before: dict[tuple[int, str], Any] = {}
        self._traced: set[str] = set()
        self._warned = False

    @contextlib.contextmanager
    def execution(self, name: str) -> Iterator[None]:
        """Around an execution of the step of the training or of the validation, whose name is given.

        What its first execution changes belongs to the tracing of it, which a resumed run does, too.
        """
        if name in self._traced:
            yield
            return
        before = self._now()
        yield
        after = self._now()
        if not self._traced:
            self._before = before
        self._before |= {key: value for key, value in after.items() if repr(before.get(key)) != repr(value)}
        self._traced.add(name)

    def warn_of_changes(self) -> None:
        """Says once, at a save, which are not what they were before the first step."""
        if self._warned or not self._traced:
            return
        changed = []
        for layer, name, value in self._attributes():
            before = self._before.get((id(layer), name))
            if repr(before) != repr(value):  # not `!=`: NaN is what it was
                changed.append(f"{layer.name}.{name} was {before!r} and is {value!r}")
        if changed:
            self._warned = True
            more = f"; {len(changed) - _MOST_NAMED} more" if len(changed) > _MOST_NAMED else ""
            _log.warning(
                "Attributes of the model or of its layers have changed during fit, and no checkpoint holds "
                "them (%s%s): a resumed run begins with what the program first gives them, and can differ. "
                "HINT: change them between two calls of fit, and compile again; a number can be a variable "
                "of the layer, add_weight(trainable=False).",
                "; ".join(changed[:_MOST_NAMED]),
                more,
            )

    def _now(self) -> dict[tuple[int, str], Any]:
        return {(id(layer), name): value for layer, name, value in self._attributes()}

    def _attributes(self) -> Iterator[tuple[Any, str, Any]]:
        for layer in tf.train.TrackableView(self._model).descendants():
            if not isinstance(layer, keras.layers.Layer):
                continue
            yield layer, "trainable", layer.trainable
            for name, value in list(vars(layer).items()):
                if isinstance(value, _PLAIN) and not name.startswith((_HOW_FIT_IS_ENDED, "_trainable")):
                    yield layer, name, value
