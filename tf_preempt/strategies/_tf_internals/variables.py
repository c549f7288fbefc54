"""Components of distributed variables and values on this worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import tensorflow as tf

from tf_preempt import errors
from tf_preempt.strategies._tf_internals.access import attribute


def _tf_variable(variable: Any) -> Any:
    """The ``tf.Variable`` behind a Keras 3 variable; any other variable itself."""
    if isinstance(variable, tf.Variable):
        return variable
    behind = attribute(variable, "_value", type(variable).__name__)
    if behind is None:
        raise errors.ConfigError(
            f"variable {variable.path!r} has no value yet.", hint="build the model before its state is used."
        )
    return behind


def local_values(variable: Any) -> list[Any]:
    """The component variables that live on this worker, in the order of its replicas.

    Reading and assigning them runs no collective, also where reading `variable` itself would (sync-on-read
    variables: Keras metrics).

    Args:
        variable: a ``tf.Variable``, distributed or not, or a Keras variable.

    Returns:
        ``tf.Variable`` objects; for a variable that is not distributed, itself.

    Raises:
        ConfigError: a Keras variable that is not built yet.
        InternalsChangedError: private names of TensorFlow or Keras have changed.
    """
    behind = _tf_variable(variable)
    if isinstance(behind, tf.distribute.DistributedValues):
        return list(attribute(behind, "values", type(behind).__name__))
    return [behind]


def is_sync_on_read(variable: Any) -> bool:
    """Says whether reading `variable` outside a replica runs a reduction over all replicas.

    Args:
        variable: a ``tf.Variable``, distributed or not, or a Keras variable.

    Raises:
        ConfigError: a Keras variable that is not built yet.
        InternalsChangedError: private names of TensorFlow or Keras have changed.
    """
    behind = _tf_variable(variable)
    return (
        isinstance(behind, tf.distribute.DistributedValues)
        and behind.synchronization == tf.VariableSynchronization.ON_READ
    )


def per_replica_values(value: Any) -> Sequence[Any]:
    """This worker's components of a distributed value, in the order of its replicas.

    Args:
        value: a ``tf.distribute.DistributedValues``; anything else is its own only component.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    if isinstance(value, tf.distribute.DistributedValues):
        return cast("Sequence[Any]", attribute(value, "values", type(value).__name__))
    return (value,)
