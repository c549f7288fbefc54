"""The one package that touches private names of TensorFlow.

Tried on TensorFlow 2.18.1 with Keras 3.10.0, and on TensorFlow 2.21.0 with Keras 3.15.1.  A name that is gone
raises `InternalsChangedError` where it is used, with the name and the installed version, instead of an
``AttributeError`` deep inside a training run.

Private names used:

* ``tensorflow.python.eager.context``: key-value calls of the coordination service, state of the collectives.
  Only the key-value calls: barriers and task states hold the GIL while they wait.
* ``tensorflow.python.distribute``: ``input_lib.DistributedDataset`` (the public way refuses the options that
  give a saveable iterator), the iterators inside a ``DistributedIterator``, ``DistributedValues.values``.
* ``tensorflow.python.framework.config``: whether op determinism is on; the public module can only turn it on.
* ``tf.data``: an iterator's resource, a data set's inputs, functions, file names and seeds.
* Keras 3: ``Variable._value``, the ``tf.Variable`` behind a Keras variable.
"""

from __future__ import annotations

from tf_preempt.strategies._tf_internals.checkpoints import (
    manager_settings,
)
from tf_preempt.strategies._tf_internals.coordination import (
    collectives_configured,
    coordination_get,
    coordination_set,
)
from tf_preempt.strategies._tf_internals.datasets import (
    dataset_file_names,
    dataset_function_ops,
    dataset_inputs,
    distributed_dataset,
    is_unseeded,
    reshuffles,
    undistributed,
    walk_dataset,
)
from tf_preempt.strategies._tf_internals.determinism import (
    op_determinism_is_on,
)
from tf_preempt.strategies._tf_internals.iterators import (
    deserialize_iterator,
    owned_iterators,
    serialize_iterator,
    shuffles_in_state,
)
from tf_preempt.strategies._tf_internals.restarts import (
    restart_iterator,
)
from tf_preempt.strategies._tf_internals.variables import (
    is_sync_on_read,
    local_values,
    per_replica_values,
)

__all__ = [
    "manager_settings",
    "collectives_configured",
    "coordination_get",
    "coordination_set",
    "dataset_file_names",
    "dataset_function_ops",
    "dataset_inputs",
    "distributed_dataset",
    "is_unseeded",
    "reshuffles",
    "undistributed",
    "walk_dataset",
    "deserialize_iterator",
    "op_determinism_is_on",
    "owned_iterators",
    "serialize_iterator",
    "shuffles_in_state",
    "restart_iterator",
    "is_sync_on_read",
    "local_values",
    "per_replica_values",
]
