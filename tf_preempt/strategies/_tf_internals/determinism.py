"""Whether TensorFlow computes the same bits each time."""

from __future__ import annotations

from tf_preempt.strategies._tf_internals.access import attribute, private_module


def op_determinism_is_on() -> bool:
    """Says whether ops give the same bits each time: TensorFlow has a public way to turn it on only.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    name = "tensorflow.python.framework.config"
    return bool(attribute(private_module(name), "is_op_determinism_enabled", name)())
