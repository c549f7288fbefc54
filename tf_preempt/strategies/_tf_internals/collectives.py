"""Keys of collectives that are used once: in loops and branches, and with several strategies in a process.

Each collective of a group needs a number that is the same on all workers and used once.  TensorFlow takes it
when a function is called from Python, as a captured value; inside a branch or a loop that calls another
``tf.function`` nobody feeds it, and the step fails.  ``model.fit`` with ``steps_per_execution`` is such a
loop.  A variable on the host that counts gives the same numbers from inside any graph: TensorFlow keeps ops
on one variable in the order in which they were traced, on all workers alike.

The groups of two strategies have the same numbers in TensorFlow, so that the second fails if its values have
other shapes.  Here each strategy has groups of its own, on all workers alike if they make as many.
"""

from __future__ import annotations

import itertools
from typing import Any

import tensorflow as tf

from tf_preempt.strategies._tf_internals.access import attribute, private_module

# Far from TensorFlow's own numbers, which count from 100 and are still used in functions that XLA compiles:
# there, a variable on the host could not be read from an accelerator.
_FIRST_KEY = 2**30

_GROUPS_PER_STRATEGY = 1000  # a strategy takes two or three
# Two counters: strategies of one process, which a worker may make alone, must not shift those of the cluster.
_of_cluster = itertools.count(_GROUPS_PER_STRATEGY, _GROUPS_PER_STRATEGY)
_of_process = itertools.count(10**9, _GROUPS_PER_STRATEGY)
_counters: list[Any] = []


def give_own_groups(strategy: Any) -> None:
    """Lets the group keys of one strategy begin where no other's are; call it right before the construction.

    Args:
        strategy: a mirrored strategy, not initialized yet.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    attribute(type(strategy), "_collective_key_base", type(strategy).__name__)
    in_cluster = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    strategy._collective_key_base = next(_of_cluster if in_cluster else _of_process)


def count_instances_in_graph(strategy: Any) -> None:
    """Makes the collectives of one strategy number themselves; call it right after the construction.

    Args:
        strategy: a mirrored strategy; without collectives, nothing is done.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    names = ("_cross_device_ops", "_host_cross_device_ops", "_collective_ops")
    users = {id(user): user for name in names if (user := getattr(strategy.extended, name, None)) is not None}
    for user in users.values():
        for launcher in getattr(user, "_launchers", ()):
            _count(launcher)


def instance_counters() -> list[Any]:
    """The variables in which collectives count: steps change them, and each process begins them anew."""
    return list(_counters)


def _count(launcher: Any) -> None:
    if not attribute(launcher, "_use_unique_instance_key", "CollectiveReplicaLauncher")():
        return
    key_of_tensorflow = attribute(launcher, "_next_instance_key", "CollectiveReplicaLauncher")
    with tf.init_scope(), tf.device("CPU:0"):
        # int64, as int32 variables live on the host or on the device depending on the kernel.
        counter = tf.Variable(_FIRST_KEY, dtype=tf.int64, trainable=False, name="collective_instance")
    _counters.append(counter)

    def next_instance_key() -> Any:
        if compiled_by_xla():
            return key_of_tensorflow()
        with tf.device("CPU:0"):
            return tf.cast(counter.assign_add(1), tf.int32)

    launcher._next_instance_key = next_instance_key


def compiled_by_xla() -> bool:
    """Says whether ops are made for a function that XLA compiles.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    if tf.executing_eagerly():
        return False
    module = private_module("tensorflow.python.ops.control_flow_util")
    in_xla = attribute(module, "GraphOrParentsInXlaContext", "control_flow_util")
    return bool(in_xla(tf.compat.v1.get_default_graph()))
