"""What a program gives the handler: a checkpoint, or a manager of one with its directory."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tf_preempt.checkpointing.committer import Committer
from tf_preempt.checkpointing.directory import directory_news, resolve_directory
from tf_preempt.checkpointing.key_value import KeyValueStore
from tf_preempt.checkpointing.startup import Cluster
from tf_preempt.errors import ConfigError, CoordinationError
from tf_preempt.strategies import _tf_internals

_log = logging.getLogger("tf_preempt")
_ordinals = itertools.count()


def checkpoint_and_committer(
    given: Any,
    directory: str | os.PathLike[str] | None,
    max_to_keep: int | None,
    environ: Mapping[str, str],
    cluster: Cluster,
    store: KeyValueStore,
) -> tuple[Any, Committer]:
    """The checkpoint, and a committer for it with a manager of our own.

    Args:
        given: a ``tf.train.Checkpoint`` or a ``tf.train.CheckpointManager``.
        directory: for a checkpoint; None: from the environment.
        max_to_keep: how many checkpoints stay; None: all, or the manager's limit.
        environ: the environment.
        cluster: who takes part.
        store: shared by all workers.

    Raises:
        ConfigError: neither a Checkpoint nor a CheckpointManager, or a manager and a directory.
        CoordinationError: the chief could not tell the others its manager's directory.
        DirectoryNotGivenError: there is no directory anywhere.
        InternalsChangedError: TensorFlow's private names have changed.

    Environment:
        TF_PREEMPT_DIR, AIP_CHECKPOINT_DIR, TF_PREEMPT_DIR_OVERRIDE: see `resolve_directory`.
    """
    name = "ckpt"
    if isinstance(given, tf.train.CheckpointManager):
        if directory is not None:
            raise ConfigError(
                f"checkpoint_dir={directory!r} was given beside a CheckpointManager, which has a directory "
                f"({given.directory}).",
                hint="leave checkpoint_dir out",
            )
        checkpoint, directory = given.checkpoint, given.directory
        name, limit = _tf_internals.manager_settings(given)
        max_to_keep = limit if max_to_keep is None else max_to_keep
        _log.info(
            "The manager's limit (max_to_keep=%s) is taken over; %s checkpoints stay in %s after a commit.",
            limit,
            "all" if max_to_keep is None else max_to_keep,
            directory,
        )
    elif isinstance(given, tf.train.Checkpoint):
        checkpoint = given
    else:
        raise ConfigError(
            f"checkpoint_or_checkpoint_manager={given!r}: expected a tf.train.Checkpoint or a "
            "tf.train.CheckpointManager."
        )
    path = resolve_directory(directory, environ)
    if given is not checkpoint:
        path = directory_of_chief(path, cluster, store, key=f"tf_preempt/directory/{next(_ordinals)}")
    manager = tf.train.CheckpointManager(checkpoint, path, max_to_keep=None, checkpoint_name=name)
    return checkpoint, Committer(manager, max_to_keep=max_to_keep, variables=[], name=name)


def directory_of_chief(
    path: str, cluster: Cluster, store: KeyValueStore, *, key: str, timeout_s: float = 300.0
) -> str:
    """The directory of the chief's manager.

    For TensorFlow's handler each other worker makes a manager with a directory of its own, because there all
    workers write the whole checkpoint, and only the chief's is read.

    Args:
        path: directory of this worker's manager.
        cluster: who takes part.
        store: shared by all workers.
        key: in which the chief tells it.
        timeout_s: how long to wait for a chief that starts late, in seconds; then it is `path`, and whoever
            waits for the chief next says that it is not there.

    Raises:
        CoordinationError: the chief could not tell the others.
    """
    if cluster.is_chief:
        if cluster.workers > 1:
            store.set(key, path)
        return path
    try:
        chiefs = store.get(key, timeout_s)
    except (TimeoutError, CoordinationError):
        return path
    if chiefs != path:
        _log.info(
            "The chief's directory %s is used in place of worker %d's %s.", chiefs, cluster.worker, path
        )
    return chiefs


def opening(given: Any, directory: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> str | None:
    """What to tell the user of a directory that the environment has chosen; None if it has not.

    Args:
        given, directory, environ: as for `checkpoint_and_committer`.
    """
    managers = given.directory if isinstance(given, tf.train.CheckpointManager) else None
    return directory_news(managers or directory, environ)


def holds_iterators(checkpoint: Any) -> bool:
    """Says whether the program's checkpoint saves the position of an iterator, as TensorFlow's can."""
    return any(
        isinstance(node, tf.data.Iterator) for node in tf.train.TrackableView(checkpoint).descendants()
    )
