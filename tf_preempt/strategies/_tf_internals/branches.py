"""Replica functions that synchronize inside a branch or a loop.

TensorFlow brings replicas together in `merge_call`, which it refuses inside ``tf.cond`` and
``tf.while_loop``.  It has another way, in which each replica calls the collective by itself, and uses it for
XLA on GPUs.  That way works in a branch, given that all replicas take the same one: Keras's optimizers take
one in every ``gradient_accumulation_steps``, and one in every ``ema_overwrite_frequency`` steps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tf_preempt.strategies._tf_internals.access import attribute

_ALLOWED = "_tf_preempt_branches_allowed"


def synchronize_in_branches(strategy: Any) -> None:
    """Prepares a strategy for `synchronizing_in_branches`; call it right after the construction.

    Args:
        strategy: a mirrored strategy.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    extended = strategy.extended
    merges = attribute(extended, "_use_merge_call", "StrategyExtended")
    extended._use_merge_call = lambda: (
        bool(merges()) and not (vars(extended).get(_ALLOWED) and _in_a_branch())
    )


@contextlib.contextmanager
def synchronizing_in_branches(strategy: Any, allowed: bool) -> Iterator[None]:
    """While this lasts, replica functions of `strategy` may synchronize in branches, if `allowed`.

    Replicas that take different branches would wait for each other for ever; TensorFlow's error is better.
    Keras's steps take them alike.
    """
    attributes = vars(strategy.extended)
    before, attributes[_ALLOWED] = attributes.get(_ALLOWED), allowed
    try:
        yield
    finally:
        attributes[_ALLOWED] = before


def _in_a_branch() -> bool:
    """Says whether ops are made for a branch or a loop of a replica function."""
    if tf.executing_eagerly() or tf.distribute.in_cross_replica_context():
        return False
    return bool(getattr(tf.compat.v1.get_default_graph(), "is_control_flow_graph", False))
