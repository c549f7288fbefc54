"""What distributed data sets cannot do, said in the words of whoever tries."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_preempt import errors


class _NoSuchTransformationError(errors.ConfigError, AttributeError):
    """Also an ``AttributeError``, so that ``hasattr`` says no."""


class RefuseTransformations:
    """Says, where somebody transforms a distributed data set, what to do instead.

    Put it before the class of the distributed data set.
    """

    def __getattr__(self, name: str) -> Any:
        """Called for names that the class does not have.

        Raises:
            ConfigError: `name` is a method of ``tf.data.Dataset``; it is an AttributeError too.
            AttributeError: `name` is something else.
        """
        if not name.startswith("_") and callable(getattr(tf.data.Dataset, name, None)):
            raise _NoSuchTransformationError(
                f"{name}() was called on a distributed data set (a {type(self).__name__}): expected a "
                "tf.data.Dataset, for the elements are already divided over the replicas.",
                hint=f"call dataset.{name}(...) first, and distribute the result.",
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
