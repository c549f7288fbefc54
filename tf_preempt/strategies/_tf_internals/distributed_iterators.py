"""Distributed iterators whose position can be saved, and whose batches know the rows of all replicas.

TensorFlow's own distributed iterator copies batches to devices ahead of time through a multi-device iterator,
which has no state to save.  Here one ordinary ``tf.data`` iterator on each worker's host gives one element to
each of its replicas in turn.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from tf_preempt import errors
from tf_preempt.strategies._tf_internals.access import attribute, attributes, private_module
from tf_preempt.strategies._tf_internals.counted import (
    first_rows_spec,
    has_rows,
    rows_of,
    spec_with_total,
    with_total,
)
from tf_preempt.strategies._tf_internals.datasets import epoch_counters, undistributed
from tf_preempt.strategies._tf_internals.iterators import dataset_behind, owned_iterators
from tf_preempt.strategies._tf_internals.keras_build import called_by_keras_build
from tf_preempt.strategies._tf_internals.restarts import end_iterator

# Also the mark of data sets and iterators that are read on the host.
ON_HOST = tf.distribute.InputOptions(
    experimental_fetch_to_device=False,
    experimental_replication_mode=tf.distribute.InputReplicationMode.PER_REPLICA,
)


@functools.cache
def _types() -> SimpleNamespace:
    """The subclasses of TensorFlow's classes; made when first used, as their bases are private."""
    base = attributes(
        "tensorflow.python.distribute.input_lib",
        "DistributedIterator",
        "DistributedIteratorSpec",
        "_SingleWorkerDatasetIteratorSpec",
        "_SingleWorkerOwnedDatasetIterator",
        "_create_per_replica",
        "_dummy_tensor_fn",
    )

    class HostIterator(base._SingleWorkerOwnedDatasetIterator):  # type: ignore[misc, name-defined]
        """One ``tf.data`` iterator that gives each of a worker's replicas an element in turn."""

        def get_next_as_list(self, name: str | None = None) -> list[Any]:  # noqa: ARG002 (in TensorFlow's too)
            with tf.device(self._worker):
                return [self._iterator.get_next() for _ in self._devices]

        def get_next_as_optional_list(self) -> list[Any]:
            with tf.device(self._worker):
                return [self._iterator.get_next_as_optional() for _ in self._devices]

        @property
        def _type_spec(self) -> Any:
            return HostIteratorSpec(
                self._worker, self._devices, self._element_spec, self._options, self._canonicalize_devices
            )

    class HostIteratorSpec(base._SingleWorkerDatasetIteratorSpec):  # type: ignore[misc, name-defined]
        @property
        def value_type(self) -> type:
            return HostIterator

        def _from_components(self, components: Any) -> Any:
            return HostIterator(
                worker=self._worker,
                devices=self._devices,
                components=components,
                element_spec=self._element_spec,
                options=self._options,
                canonicalize_devices=self._canonicalize_devices,
            )

    class CountedIterator(base.DistributedIterator):  # type: ignore[misc, name-defined]
        """TensorFlow's distributed iterator; where batches can differ in size, they are counted."""

        looks_only = False
        """Keras learns from the first element what elements are like; nothing is trained on it."""
        is_divided = False
        """The program gave one data set for all workers, not a function for each."""

        @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
        def get_next(self, name: str | None = None) -> Any:
            if not self.looks_only:
                return self._next(name)
            with _epochs_kept(self):
                return self._next(name)

        @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
        def _next(self, name: str | None) -> Any:
            if not counts(self):
                return super().get_next(name)
            _check_cross_replica(self._strategy)
            if not self._enable_get_next_as_optional:
                batch = self._get_next_no_partial_batch_handling(name)
                return with_total(batch, _sum_over_workers(self._strategy, _rows_here(batch))[0])
            batch, having, total = self._next_or_dummy()
            end = self._get_next_no_partial_batch_handling
            return tf.cond(having > 0, lambda: with_total(batch, total), lambda: with_total(end(), total))

        @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
        def get_next_as_optional(self) -> Any:
            if not counts(self):
                return super().get_next_as_optional()
            if not self._enable_get_next_as_optional:
                return tf.experimental.Optional.from_value(self.get_next())
            batch, having, total = self._next_or_dummy()
            counted = with_total(batch, total)
            some = tf.experimental.Optional.from_value(counted)
            return tf.cond(
                having > 0, lambda: some, lambda: tf.experimental.Optional.empty(some.element_spec)
            )

        def _next_or_dummy(self) -> tuple[Any, tf.Tensor, tf.Tensor]:
            """The next batch, without rows on replicas that have no more; how many have some; all rows."""
            optionals = []
            for worker, iterator in zip(self._input_workers.worker_devices, self._iterators, strict=True):
                with tf.device(worker):
                    optionals.append(iterator.get_next_as_optional_list())
            here = [tf.cast(one.has_value(), tf.int64) for of_worker in optionals for one in of_worker]
            values = self._values_or_dummies(optionals)
            if self._replica_order is not None:
                values = self._reorder_replicas(values)
            batch = base._create_per_replica(values, self._strategy)
            totals = _sum_over_workers(self._strategy, _rows_here(batch), tf.add_n(here))
            return batch, totals[1], totals[0]

        def _values_or_dummies(self, optionals: list[list[Any]]) -> list[Any]:
            """For each replica its value, or one without rows; parts that are None stay None."""
            values = []
            for index, worker in enumerate(self._input_workers.worker_devices):
                devices = self._input_workers.compute_devices_for_worker(index)
                for device, optional in zip(devices, optionals[index], strict=True):
                    with tf.device(worker), tf.device(device):
                        values.append(_value_or_dummy(optional, base._dummy_tensor_fn))
            return values

        @property
        def element_spec(self) -> Any:
            return spec_with_total(super().element_spec) if counts(self) else super().element_spec

        @property
        def _type_spec(self) -> Any:
            return CountedIteratorSpec(
                self._input_workers,
                self._element_spec,
                self._strategy,
                self._options,
                self._cardinality,
                self._enable_get_next_as_optional,
                self._replica_order,
            )

    class CountedIteratorSpec(base.DistributedIteratorSpec):  # type: ignore[misc, name-defined]
        @property
        def value_type(self) -> type:
            return CountedIterator

        @property
        def _component_specs(self) -> Any:
            specs = super()._component_specs
            if self._options is not ON_HOST:
                return specs
            return [
                HostIteratorSpec(
                    one._worker, one._devices, one._element_spec, one._options, one._canonicalize_devices
                )
                for one in specs
            ]

        def _from_components(self, components: Any) -> Any:
            return CountedIterator(
                input_workers=self._input_workers,
                components=components,
                element_spec=self._element_spec,
                strategy=self._strategy,
                cardinality=self._cardinality,
                enable_get_next_as_optional=self._enable_get_next_as_optional,
                options=self._options,
                replica_order=self._replica_order,
            )

    return SimpleNamespace(HostIterator=HostIterator, CountedIterator=CountedIterator)


def make_iterator(owner: Any, datasets: Any) -> Any:
    """The iterator of a distributed data set.

    Args:
        owner: the distributed data set, with options of its own or `ON_HOST`.
        datasets: what it reads from, one for each worker that this process feeds.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    workers, strategy, options = owner._input_workers, owner._strategy, owner._options
    canonicalize = getattr(strategy, "_canonicalize_devices", True)
    if options is ON_HOST:
        iterators = []
        for index, worker in enumerate(workers.worker_devices):
            with tf.device(worker):
                iterators.append(
                    _types().HostIterator(
                        dataset=datasets[index],
                        worker=worker,
                        devices=workers.compute_devices_for_worker(index),
                        options=options,
                        canonicalize_devices=canonicalize,
                    )
                )
    else:
        lib = private_module("tensorflow.python.distribute.input_lib")
        create_iterators = attribute(lib, "_create_iterators_per_worker", "input_lib")
        iterators = create_iterators(datasets, workers, options=options, canonicalize_devices=canonicalize)
    iterator = _types().CountedIterator(
        workers,
        iterators,
        strategy,
        cardinality=owner._cardinality,
        enable_get_next_as_optional=owner._enable_get_next_as_optional,
        options=options,
        replica_order=owner._replica_order,
    )
    iterator._element_spec = owner._element_spec
    iterator.looks_only = called_by_keras_build()
    iterator.is_divided = undistributed(owner) is not None
    return iterator


@contextlib.contextmanager
def _epochs_kept(iterator: Any) -> Iterator[None]:
    """Ends an iterator after the block, and lets the epoch that it began be begun again by the next one."""
    try:
        owned = owned_iterators(iterator)
    except errors.UnsupportedStrategyError:  # TensorFlow's own, which reads ahead and cannot be ended
        owned = []
    behind = [dataset_behind(one) for one in owned]
    counters = epoch_counters(*(dataset for dataset in behind if dataset is not None))
    epochs = [counter.next_epoch for counter in counters]
    yield
    if counters:
        end_iterator(iterator)
    for counter, epoch in zip(counters, epochs, strict=True):
        counter.next_epoch = epoch


def _value_or_dummy(optional: Any, make_dummy: Callable[[Any], Any]) -> Any:
    structure = optional.element_spec
    specs = tf.nest.flatten(structure)
    given = [index for index, spec in enumerate(specs) if hasattr(spec, "shape")]  # that of None has none

    def value() -> list[Any]:
        leaves = tf.nest.flatten(optional.get_value())
        return [leaves[index] for index in given]

    def dummy() -> list[Any]:
        return [make_dummy(specs[index]) for index in given]

    leaves: list[Any] = [None] * len(specs)
    for index, leaf in zip(given, tf.cond(optional.has_value(), value, dummy), strict=True):
        leaves[index] = leaf
    return tf.nest.pack_sequence_as(structure, leaves)


def counts(owner: Any) -> bool:
    """Whether the rows of a distributed data set's batches are counted: the same answer on all workers.

    Not where a batch has the same number of rows each time, and nobody can run out of data before others.
    """
    if owner._strategy.extended._num_replicas_in_sync == 1:
        return False
    rows = first_rows_spec(owner._element_spec)
    if rows is None:  # scalars, which only a data set from a function can hold, are no rows
        return False
    shape = rows.shape
    return owner._enable_get_next_as_optional or shape.rank is None or shape[0] is None


def _check_cross_replica(strategy: Any) -> None:
    """Raises what TensorFlow's own ``get_next`` raises where it cannot be called.

    Raises:
        RuntimeError: another strategy's scope is current.
        ValueError: called inside a replica function.
    """
    lib = private_module("tensorflow.python.distribute.distribute_lib")
    with attribute(lib, "enter_or_assert_strategy", "distribute_lib")(strategy):
        if tf.distribute.get_replica_context() is not None:
            raise ValueError(
                "next(iterator) was called inside a replica function: expected it outside, as in "
                "strategy.run(replica_fn, args=(next(iterator),))."
            )


def _rows_here(batch: Any) -> tf.Tensor:
    """Rows of the replicas that this process feeds."""
    first = next(leaf for leaf in tf.nest.flatten(batch) if has_rows(leaf))
    return tf.add_n([rows_of(value) for value in first.values])


def _sum_over_workers(strategy: Any, *here: tf.Tensor) -> list[tf.Tensor]:
    """Each number summed over the workers, in one reduction; as it is in a single process."""
    if not attribute(strategy.extended, "_in_multi_worker_mode", "StrategyExtended")():
        return list(here)
    sums = tf.distribute.Strategy.reduce(strategy, tf.distribute.ReduceOp.SUM, tf.stack(here), axis=None)
    return list(tf.unstack(sums, num=len(here)))
