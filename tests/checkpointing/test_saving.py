"""What a worker writes of a checkpoint, in which order."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
import tensorflow as tf

from tf_preempt.checkpointing.committer import Committer
from tf_preempt.checkpointing.saving import Saver, Snapshot
from tf_preempt.checkpointing.startup import Cluster


def committer_of(directory: pathlib.Path, checkpoint: tf.train.Checkpoint) -> Committer:
    manager = tf.train.CheckpointManager(checkpoint, str(directory), max_to_keep=None)
    return Committer(manager, max_to_keep=None, variables=[])


@pytest.mark.parametrize("killed_in", ["save_variables", "files_of"], ids=["before", "after"])
def test_a_save_that_a_kill_cuts_short_is_known_as_ours(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, killed_in: str
) -> None:
    """Before or after TensorFlow has written the variables: nothing of it is adopted as another program's."""
    checkpoint = tf.train.Checkpoint(v=tf.Variable(1.0))
    committer = committer_of(tmp_path, checkpoint)

    def die(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Committer, killed_in, die)
    saver = Saver(checkpoint, committer, Cluster(), fit=0, on_all_workers=False)
    with pytest.raises(KeyboardInterrupt):
        saver.write(1, Snapshot(step=2, resume={}), reason="test")
    monkeypatch.undo()
    assert (tmp_path / "ckpt-1.index").exists() == (killed_in == "files_of")
    assert (tmp_path / "ckpt-1.workers").exists()
    assert committer_of(tmp_path, tf.train.Checkpoint(v=tf.Variable(1.0))).adoptable() is None
