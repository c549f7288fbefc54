"""What a ``tf.train.CheckpointManager`` was made with."""

from __future__ import annotations

from typing import Any

from tf_preempt.strategies._tf_internals.access import attribute


def manager_settings(manager: Any) -> tuple[str, int | None]:
    """The `checkpoint_name` and `max_to_keep` with which a ``tf.train.CheckpointManager`` was made.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    prefix = attribute(manager, "_checkpoint_prefix", "CheckpointManager")
    limit = attribute(manager, "_max_to_keep", "CheckpointManager")
    return str(prefix).rpartition("/")[2], None if limit is None else int(limit)
