"""Distributed data sets whose position can be saved with a checkpoint.

TensorFlow's own distributed iterator copies batches to devices ahead of time, through an iterator that has
no state to save.  Ours is an ordinary ``tf.data`` iterator on the host, for one or several replicas.  On
accelerators it copies a batch when it is used; so there, TensorFlow's own is kept until somebody has said
that there will be checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_preempt import errors
from tf_preempt.strategies import _tf_internals, copies, sharding

_PER_REPLICA = tf.distribute.InputReplicationMode.PER_REPLICA


class _Expected:
    checkpoints = False


def expect_checkpoints() -> None:
    """Says that positions in data sets distributed from now on will be saved, in this process."""
    _Expected.checkpoints = True


class ResumableInputMixin:
    """Gives a ``tf.distribute.Strategy`` distributed data sets whose iterators can be saved."""

    def experimental_distribute_dataset(
        self, dataset: tf.data.Dataset, options: tf.distribute.InputOptions | None = None
    ) -> Any:
        """Divides a data set over all replicas, as TensorFlow does; Keras calls this for ``fit``'s data.

        Beyond TensorFlow's method:

        * Without `options`, the position of the iterators can be saved: on CPUs always, on accelerators if a
          `PreemptionCheckpoint` or `PreemptionCheckpointHandler` was made before.
        * Batches whose size can vary hold the number of rows of all replicas, which `run` needs.
        * Workers agree on a policy that works, and on seeds where shuffles had none and that matters; the log
          says which.  `explain_sharding` tells the same as data.

        Args:
            dataset: batched by the global batch size.
            options: ``tf.distribute.InputOptions``, respected as they are; with any, the iterator is
                TensorFlow's own.

        Returns:
            A ``tf.distribute.DistributedDataset``.

        Raises:
            ConfigError: what is given is no data set; its elements are no batches or cannot be divided;
                policy FILE was asked for, and there are fewer files than workers; or the workers' data sets
                differ.  On all workers alike, but for what is no data set.
            InternalsChangedError: TensorFlow's private names have changed.
        """
        by_tensorflow = options is not None and options.experimental_replication_mode == _PER_REPLICA
        if not isinstance(dataset, tf.data.Dataset):
            raise errors.ConfigError(
                f"experimental_distribute_dataset was given {dataset!r:.200} ({type(dataset).__name__}): "
                "expected a tf.data.Dataset.",
                hint="make one with tf.data.Dataset.from_tensor_slices(arrays).batch(global_batch_size); "
                "what is distributed already can be iterated as it is.",
            )
        if by_tensorflow or not tf.executing_eagerly():
            return super().experimental_distribute_dataset(dataset, options)  # type: ignore[misc]
        dataset = copies.unshared(sharding.prepare(self, dataset))
        return _tf_internals.distributed_dataset(self, dataset, options, on_host=self._on_host(options))

    def distribute_datasets_from_function(
        self,
        dataset_fn: Callable[[tf.distribute.InputContext], tf.data.Dataset],
        options: tf.distribute.InputOptions | None = None,
    ) -> Any:
        """A distributed data set of what a function gives, without sharding or splitting by the strategy.

        Beyond TensorFlow's method, positions can be saved and batches are counted, as for
        `experimental_distribute_dataset`.

        Args:
            dataset_fn: called once on each worker, with a ``tf.distribute.InputContext``; gives a data set
                batched by the **per-replica** batch size.  Each replica of the worker draws a batch of its
                own in each step.
            options: as for `experimental_distribute_dataset`.

        Returns:
            A ``tf.distribute.DistributedDataset``.

        Raises:
            ConfigError: `dataset_fn` does not give a ``tf.data.Dataset``.
            InternalsChangedError: TensorFlow's private names have changed.
        """
        if (options is not None and options.experimental_replication_mode == _PER_REPLICA) or (
            not tf.executing_eagerly()
        ):
            return super().distribute_datasets_from_function(_checked(dataset_fn), options)  # type: ignore[misc]
        return _tf_internals.distributed_from_function(
            self, _checked(dataset_fn), options, on_host=self._on_host(options)
        )

    def _on_host(self, options: tf.distribute.InputOptions | None) -> bool:
        if options is not None:
            return False
        devices = self.extended.worker_devices  # type: ignore[attr-defined]
        only_cpus = all(tf.DeviceSpec.from_string(device).device_type == "CPU" for device in devices)
        return only_cpus or _Expected.checkpoints


def _checked(
    dataset_fn: Callable[[tf.distribute.InputContext], tf.data.Dataset],
) -> Callable[[tf.distribute.InputContext], tf.data.Dataset]:
    def checked(context: tf.distribute.InputContext) -> tf.data.Dataset:
        found = dataset_fn(context)
        if not isinstance(found, tf.data.Dataset):
            raise errors.ConfigError(
                f"dataset_fn returned {found!r} ({type(found).__name__}): expected a tf.data.Dataset.",
                hint="return a data set that is batched by context.get_per_replica_batch_size(global size).",
            )
        return copies.unshared(found)

    return checked
