"""What a ``tf.train.CheckpointManager`` was made with, and what the variables in a checkpoint are called."""

from __future__ import annotations

from typing import Any

from tf_preempt.strategies._tf_internals.access import attribute, attributes

_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"


def manager_settings(manager: Any) -> tuple[str, int | None]:
    """The `checkpoint_name` and `max_to_keep` with which a ``tf.train.CheckpointManager`` was made.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    prefix = attribute(manager, "_checkpoint_prefix", "CheckpointManager")
    limit = attribute(manager, "_max_to_keep", "CheckpointManager")
    return str(prefix).rpartition("/")[2], None if limit is None else int(limit)


def names_in_checkpoint(reader: Any) -> dict[str, str]:
    """The variables' own names, by their keys in a checkpoint; empty where it has no graph of objects.

    Args:
        reader: what ``tf.train.load_checkpoint`` gives.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    if not reader.has_tensor(_GRAPH):
        return {}
    module = attributes("tensorflow.core.protobuf.trackable_object_graph_pb2", "TrackableObjectGraph")
    graph = module.TrackableObjectGraph.FromString(reader.get_tensor(_GRAPH))
    return {one.checkpoint_key: one.full_name for node in graph.nodes for one in node.attributes}
