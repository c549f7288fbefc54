"""Errors of this package that are raised while AutoGraph traces a user's function."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

from tf_preempt import errors

# AutoGraph replaces errors of classes that it does not know, unless they have this attribute.
_LEAVE_AS_IT_IS = "ag_pass_through"

_Function = TypeVar("_Function", bound=Callable[..., Any])


def let_errors_through(function: _Function) -> _Function:
    """Decorates a function that users call in a ``tf.function``: its typed errors reach them as they are.

    AutoGraph does not convert the function either.  If the private name changes, users get AutoGraph's error
    again, with the same message.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except errors.TfPreemptError as error:
            setattr(error, _LEAVE_AS_IT_IS, True)
            raise

    unconverted: _Function = tf.autograph.experimental.do_not_convert(call)
    return unconverted
