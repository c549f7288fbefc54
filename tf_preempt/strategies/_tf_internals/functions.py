"""What a ``tf.function`` was made with, and where a tensor can be used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tf_preempt import errors
from tf_preempt.strategies._tf_internals.access import attribute


def is_tf_function(fn: Any) -> bool:
    """Says whether `fn` was made by ``tf.function``."""
    return isinstance(fn, tf.types.experimental.PolymorphicFunction)


def rewrapped_tf_function(fn: Any, wrap: Callable[[Any], Callable[..., Any]]) -> Any:
    """A ``tf.function`` of ``wrap(python_function)`` that is compiled like `fn`.

    Args:
        fn: made by ``tf.function``.
        wrap: given the Python function, gives one with other arguments.

    Raises:
        ConfigError: `fn` has an input signature, which other arguments would not meet.
        InternalsChangedError: TensorFlow's private names have changed.
    """
    if attribute(fn, "input_signature", "Function") is not None:
        raise errors.ConfigError(
            f"strategy.run was given {fn.python_function.__qualname__!r}, a tf.function with an "
            "input_signature: expected none, for TensorFlow gives it the values of all replicas together.",
            hint="leave the input_signature out, or put it on a tf.function that calls strategy.run.",
        )
    return tf.function(
        wrap(fn.python_function),
        autograph=attribute(fn, "_autograph", "Function"),
        jit_compile=attribute(fn, "_jit_compile", "Function"),
        reduce_retracing=attribute(fn, "_reduce_retracing", "Function"),
    )


def is_reachable(tensor: tf.Tensor) -> bool:
    """Says whether an op made now would get this very tensor in each call of the function that it is made in.

    Another function's tensor is not: a function that captures it is traced once, and called again later.
    """
    if tf.executing_eagerly():
        return not tf.is_symbolic_tensor(tensor)
    graph = tf.compat.v1.get_default_graph()
    home = tensor.graph if tf.is_symbolic_tensor(tensor) else None
    while graph is not home and getattr(graph, "is_control_flow_graph", False):
        graph = graph.outer_graph
    return graph is home


def ops_in(graph: Any) -> Iterator[tf.Operation]:
    """The ops of a function's graph, and of the functions that it calls.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    yield from graph.get_operations()
    for function in attribute(graph, "_functions", "FuncGraph").values():
        yield from ops_in(attribute(function, "graph", "AtomicFunction"))
