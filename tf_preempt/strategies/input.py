"""How a data set is divided over workers, in a way whose position can be saved.

TensorFlow's own distributed iterator copies batches to devices ahead of time, through an iterator that has no
state to save.  With one replica per worker there is another: an ordinary ``tf.data`` iterator on the host.
Shards and batches are cut in the same place for both.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_preempt import errors
from tf_preempt.strategies import _tf_internals, sharding


class ResumableInputMixin:
    """Gives a ``tf.distribute.Strategy`` distributed data sets whose iterators can be saved."""

    def experimental_distribute_dataset(
        self, dataset: tf.data.Dataset, options: tf.distribute.InputOptions | None = None
    ) -> Any:
        """Divides a data set over all replicas, as TensorFlow does; Keras calls this for ``fit``'s data.

        Beyond TensorFlow's method:

        * With one replica per worker and no `options`, the position of the iterators can be saved.
        * With policy AUTO and fewer files than workers, elements are sharded instead of files (TensorFlow
          fails on one worker and trains the others on zeros); one warning says so.
        * An unseeded shuffle under sharding by elements is warned of once: workers' data would overlap.

        Args:
            dataset: batched by the global batch size.
            options: ``tf.distribute.InputOptions``, respected as they are; with any, the iterator is
                TensorFlow's own.

        Returns:
            A ``tf.distribute.DistributedDataset``.

        Raises:
            ConfigError: the data set is not batched; or policy FILE was asked for, and there are fewer files
                than workers.
            ValueError: a batch cannot be divided (TensorFlow's own error).
            InternalsChangedError: TensorFlow's private names have changed.
        """
        replicas_here = len(self.extended.worker_devices)  # type: ignore[attr-defined]
        workers = self.num_replicas_in_sync // replicas_here  # type: ignore[attr-defined]
        if isinstance(dataset, tf.data.Dataset) and tf.executing_eagerly():
            if workers * replicas_here > 1:
                _check_batched(dataset)
            if workers > 1:
                dataset = sharding.with_working_shards(dataset, workers)
            if options is None and replicas_here == 1:
                return _tf_internals.distributed_dataset(self, dataset, _saveable_options())
        return super().experimental_distribute_dataset(dataset, options)  # type: ignore[misc]


def _check_batched(dataset: tf.data.Dataset) -> None:
    specs = tf.nest.flatten(dataset.element_spec)
    scalars = [spec for spec in specs if isinstance(spec, tf.TensorSpec) and spec.shape.rank == 0]
    if scalars:
        raise errors.ConfigError(
            f"the data set's elements hold scalars ({scalars[0]}): expected batches, which are divided over "
            "the replicas along their first axis.",
            hint="call dataset.batch with the global batch size before the data set is distributed.",
        )


def _saveable_options() -> tf.distribute.InputOptions:
    """The options under which a distributed iterator holds an ordinary ``tf.data`` iterator."""
    return tf.distribute.InputOptions(
        experimental_fetch_to_device=False,
        experimental_replication_mode=tf.distribute.InputReplicationMode.PER_REPLICA,
    )
