"""The coordination service's key-value calls, and the state of the collectives.

Only the key-value calls: barriers and task states hold the GIL while they wait.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tf_preempt.strategies._tf_internals.access import attribute, private_module

_SHORTEST_WAIT_MS = 1  # 0 would mean "wait for ever" to TensorFlow


def _context() -> Any:
    """This process's eager context; creating the Python object initialises no device."""
    module = private_module("tensorflow.python.eager.context")
    return attribute(module, "context", "tensorflow.python.eager.context")()


@contextlib.contextmanager
def heartbeat_timeout(timeout_s: float) -> Iterator[None]:
    """Within it, a multi-worker strategy that is made starts a coordination service with this time-out.

    TensorFlow's strategy leaves the time-out at its default, and configures nothing where the program has
    done so itself; then its time-out stays.

    Args:
        timeout_s: seconds without a heartbeat after which a task is taken for lost; tasks send one in half
            that time, and wait for its answer as long as this.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    context, name = _context(), "configure_coordination_service"
    configure = attribute(context, name, "Context")
    timeout_ms = math.ceil(timeout_s * 1000)
    setattr(context, name, functools.partial(configure, heartbeat_timeout_in_ms=timeout_ms))
    try:
        yield
    finally:
        delattr(context, name)


def coordination_set(key: str, value: str) -> None:
    """Writes a key that does not exist yet; has no time-out, so call it from a thread nobody waits for.

    Args:
        key: path-like name, ``/`` between its parts.
        value: any text.

    Raises:
        tf.errors.AlreadyExistsError: somebody wrote this key before.
        tf.errors.UnavailableError: the chief, which holds the keys, is gone.
        InternalsChangedError: TensorFlow's private names have changed.
    """
    attribute(_context(), "set_config_key_value", "Context")(key, value)


def coordination_get(key: str, timeout_s: float) -> str:
    """Waits for a key and returns its value; releases the GIL while it waits.

    Args:
        key: the name given to `coordination_set`.
        timeout_s: how long to wait, in seconds; at least a millisecond is waited, whatever is given.

    Raises:
        TimeoutError: the key was not written in time.
        ValueError: `timeout_s` is not a finite number.
        tf.errors.UnavailableError: the chief, which holds the keys, is gone.
        InternalsChangedError: TensorFlow's private names have changed.
    """
    if not math.isfinite(timeout_s):
        raise ValueError(f"timeout_s={timeout_s!r}: expected a finite number of seconds.")
    timeout_ms = max(_SHORTEST_WAIT_MS, math.ceil(timeout_s * 1000))
    get = attribute(_context(), "get_config_key_value", "Context")
    try:
        return str(get(key, timeout_ms))
    except tf.errors.DeadlineExceededError:
        raise TimeoutError(f"key {key!r} was not written within {timeout_ms / 1000:g} s") from None


def collectives_configured() -> bool:
    """Says whether a multi-worker strategy, of any class, has set up collectives between processes.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    return attribute(_context(), "_collective_ops_server_def", "Context") is not None
