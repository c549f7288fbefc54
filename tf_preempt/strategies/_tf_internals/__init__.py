"""The one package that touches private names of TensorFlow.

Tried on TensorFlow 2.18.1 with Keras 3.10.0, and on TensorFlow 2.21.0 with Keras 3.15.1.  A name that is gone
raises `InternalsChangedError` where it is used, with the name and the installed version, instead of an
``AttributeError`` deep inside a training run.

Private names used:

* ``tensorflow.python.eager.context``: key-value calls of the coordination service, state of the collectives.
  Only the key-value calls: barriers and task states hold the GIL while they wait.
* ``tensorflow.python.distribute``: the classes of distributed data sets, iterators and per-replica values,
  which are extended (the public way refuses options that give a saveable iterator), and the launchers of
  collectives, which are given other instance keys.
* ``tf.function``: with which options one was made.  AutoGraph: the mark of errors that it leaves as they are.
* ``tensorflow.python.framework.config``: whether op determinism is on; the public module can only turn it on.
* Random numbers: TensorFlow's global generator and the seeds of its eager ops, Keras's global seed generator.
* ``tf.data``: an iterator's resource; a data set's variant, inputs, functions, arrays, file names and seeds,
  and the class of data sets with one input.
* Keras 3: ``Variable._value``, the ``tf.Variable`` behind a Keras variable; the name of the method in which
  it learns the shapes and dtypes of its input.
"""

from __future__ import annotations

from tf_preempt.strategies._tf_internals.autograph import (
    let_errors_through,
)
from tf_preempt.strategies._tf_internals.branches import (
    synchronize_in_branches,
    synchronizing_in_branches,
)
from tf_preempt.strategies._tf_internals.checkpoints import (
    manager_settings,
)
from tf_preempt.strategies._tf_internals.collectives import (
    compiled_by_xla,
    count_instances_in_graph,
    give_own_groups,
    instance_counters,
)
from tf_preempt.strategies._tf_internals.coordination import (
    collectives_configured,
    coordination_get,
    coordination_set,
    heartbeat_timeout,
)
from tf_preempt.strategies._tf_internals.counted import (
    counted_values,
    may_be_uneven,
    rows_per_replica,
)
from tf_preempt.strategies._tf_internals.datasets import (
    caches_behind_shuffles,
    dataset_file_names,
    dataset_function_ops,
    dataset_inputs,
    epoch_counters,
    first_not_one_for_one,
    has_rounds,
    has_second_passes,
    reshuffles,
    undistributed,
    walk_dataset,
)
from tf_preempt.strategies._tf_internals.determinism import (
    op_determinism_is_on,
)
from tf_preempt.strategies._tf_internals.distributed_input import (
    distributed_dataset,
    distributed_from_function,
)
from tf_preempt.strategies._tf_internals.functions import (
    is_reachable,
    is_tf_function,
    rewrapped_tf_function,
)
from tf_preempt.strategies._tf_internals.generators import (
    create_tensorflow_global_generator,
    eager_seeds,
    keras_global_generator,
    tensorflow_global_generator,
)
from tf_preempt.strategies._tf_internals.iterators import (
    dataset_behind,
    deserialize_iterator,
    elements_per_step,
    is_at_beginning,
    is_divided_by_strategy,
    outside_state_of,
    owned_iterators,
    serialize_iterator,
    shuffles_in_state,
)
from tf_preempt.strategies._tf_internals.keras_build import (
    called_by_keras_build,
)
from tf_preempt.strategies._tf_internals.orders import (
    has_unseeded_shuffle,
    is_unordered,
)
from tf_preempt.strategies._tf_internals.outside_state import (
    changes_variables,
    outside_state,
)
from tf_preempt.strategies._tf_internals.random_ops import (
    OpPlace,
    place_of,
    random_ops_of,
)
from tf_preempt.strategies._tf_internals.restarts import (
    count_elements,
    count_in_state,
    end_iterator,
    restart_iterator,
)
from tf_preempt.strategies._tf_internals.used_variables import (
    UsedVariable,
    is_traced,
    used_variables,
)
from tf_preempt.strategies._tf_internals.variables import (
    is_sync_on_read,
    local_values,
    per_replica_values,
)

__all__ = [
    "synchronize_in_branches",
    "synchronizing_in_branches",
    "let_errors_through",
    "manager_settings",
    "compiled_by_xla",
    "count_instances_in_graph",
    "give_own_groups",
    "instance_counters",
    "collectives_configured",
    "coordination_get",
    "coordination_set",
    "counted_values",
    "may_be_uneven",
    "rows_per_replica",
    "caches_behind_shuffles",
    "dataset_file_names",
    "dataset_function_ops",
    "dataset_inputs",
    "epoch_counters",
    "first_not_one_for_one",
    "has_rounds",
    "has_second_passes",
    "heartbeat_timeout",
    "reshuffles",
    "undistributed",
    "walk_dataset",
    "op_determinism_is_on",
    "distributed_dataset",
    "distributed_from_function",
    "is_reachable",
    "is_tf_function",
    "has_unseeded_shuffle",
    "is_unordered",
    "changes_variables",
    "outside_state",
    "OpPlace",
    "place_of",
    "random_ops_of",
    "rewrapped_tf_function",
    "create_tensorflow_global_generator",
    "eager_seeds",
    "keras_global_generator",
    "tensorflow_global_generator",
    "dataset_behind",
    "deserialize_iterator",
    "elements_per_step",
    "is_at_beginning",
    "is_divided_by_strategy",
    "outside_state_of",
    "owned_iterators",
    "serialize_iterator",
    "shuffles_in_state",
    "called_by_keras_build",
    "count_elements",
    "count_in_state",
    "end_iterator",
    "restart_iterator",
    "UsedVariable",
    "is_traced",
    "used_variables",
    "is_sync_on_read",
    "local_values",
    "per_replica_values",
]
