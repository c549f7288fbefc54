"""Callbacks that may change variables when training or an epoch begins.

A resumed `fit` begins once more, and so do its callbacks: weights that one of them loads, or scales, in
``on_train_begin`` or ``on_epoch_begin`` would be loaded again over those that were trained.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras

from tf_preempt.callbacks import on_chief

_HOOKS = ("on_train_begin", "on_epoch_begin")


def may_change_variables(callbacks: Iterable[Any]) -> bool:
    """Says whether one of the callbacks has a hook of its own that is called again at a resume.

    Keras's own change nothing but scalars, which are put back in any case, and what `callback_states` knows.

    Args:
        callbacks: all but ours.
    """
    return any(_is_of_the_program(on_chief.bare(one), hook) for one in callbacks for hook in _HOOKS)


def _is_of_the_program(callback: Any, hook: str) -> bool:
    if isinstance(callback, keras.callbacks.LambdaCallback) and hook in vars(callback):
        return True
    function = getattr(type(callback), hook, None)
    return not getattr(function, "__module__", "keras").startswith(("keras.", "tf_preempt."))
