"""Distributed data sets whose iterators can be saved, and whose batches know the rows of all replicas.

TensorFlow's own distributed iterator copies batches to devices ahead of time through a multi-device iterator,
which has no state to save.  Here one ordinary ``tf.data`` iterator on each worker's host gives one element to
each of its replicas in turn.  Shards and batches are cut in the same place for both.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from tf_preempt.strategies._tf_internals.access import attribute, private_module
from tf_preempt.strategies._tf_internals.counted import (
    first_rows_spec,
    has_rows,
    rows_of,
    spec_with_total,
    with_total,
)
from tf_preempt.strategies.refusals import RefuseTransformations

# One object, always the same: type specifications compare options by identity, and another object would mean
# another trace of every function that is given an iterator.
_ON_HOST = tf.distribute.InputOptions(
    experimental_fetch_to_device=False,
    experimental_replication_mode=tf.distribute.InputReplicationMode.PER_REPLICA,
)


def distributed_dataset(
    strategy: Any, dataset: tf.data.Dataset, options: tf.distribute.InputOptions | None, *, on_host: bool
) -> Any:
    """What ``strategy.experimental_distribute_dataset(dataset, options)`` gives, with counted batches.

    Args:
        strategy: a mirrored strategy, of one or several workers.
        dataset: batched by the global batch size.
        options: passed on to TensorFlow's iterators; of no account where `on_host`.
        on_host: whether the position of the iterators can be saved; batches are then copied to their devices
            when they are used, not before.

    Raises:
        ValueError: `dataset` is not batched (TensorFlow's own error).
        InternalsChangedError: TensorFlow's private names have changed.
    """
    extended = strategy.extended
    options = _ON_HOST if on_host else options
    context = getattr(extended, "_make_input_context", None)
    return _classes().Dataset(
        _input_workers(extended, None if on_host else options),
        strategy,
        dataset,
        num_replicas_in_sync=strategy.extended._num_replicas_in_sync,
        input_context=None if context is None else context(),
        options=options,
    )


def distributed_from_function(
    strategy: Any,
    dataset_fn: Callable[[tf.distribute.InputContext], tf.data.Dataset],
    options: tf.distribute.InputOptions | None,
    *,
    on_host: bool,
) -> Any:
    """What ``strategy.distribute_datasets_from_function(dataset_fn, options)`` gives, with counted batches.

    Args:
        strategy: a mirrored strategy, of one or several workers.
        dataset_fn: called once for each worker that this process feeds.
        options: as for `distributed_dataset`.
        on_host: as for `distributed_dataset`.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    extended = strategy.extended
    options = _ON_HOST if on_host else options
    workers = _input_workers(extended, None if on_host else options)
    context = getattr(extended, "_make_input_context", None)
    if context is None:
        contexts = [
            tf.distribute.InputContext(
                num_input_pipelines=workers.num_workers,
                input_pipeline_id=index,
                num_replicas_in_sync=extended._num_replicas_in_sync,
            )
            for index in range(workers.num_workers)
        ]
    else:
        contexts = [context()]
    return _classes().FromFunction(
        workers, strategy, input_contexts=contexts, dataset_fn=dataset_fn, options=options
    )


def _input_workers(extended: Any, options: tf.distribute.InputOptions | None) -> Any:
    return attribute(extended, "_input_workers_with_options", "StrategyExtended")(options)


@functools.cache
def _classes() -> SimpleNamespace:
    """The subclasses of TensorFlow's classes; made when first used, as their bases are private."""
    lib = private_module("tensorflow.python.distribute.input_lib")
    found = {
        name.lstrip("_"): attribute(lib, name, "input_lib")
        for name in (
            "DistributedDataset",
            "DistributedDatasetSpec",
            "DistributedDatasetsFromFunction",
            "DistributedDatasetsFromFunctionSpec",
            "DistributedIterator",
            "DistributedIteratorSpec",
            "_SingleWorkerDatasetIteratorSpec",
            "_SingleWorkerOwnedDatasetIterator",
            "_create_iterators_per_worker",
            "_create_per_replica",
            "_dummy_tensor_fn",
            "_is_statically_shaped",
        )
    }
    base = SimpleNamespace(**found)

    class HostIterator(base.SingleWorkerOwnedDatasetIterator):  # type: ignore[misc, name-defined]
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

    class HostIteratorSpec(base.SingleWorkerDatasetIteratorSpec):  # type: ignore[misc, name-defined]
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

        @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
        def get_next(self, name: str | None = None) -> Any:
            if not _counts(self):
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
            if not _counts(self):
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
            batch = base.create_per_replica(values, self._strategy)
            totals = _sum_over_workers(self._strategy, _rows_here(batch), tf.add_n(here))
            return batch, totals[1], totals[0]

        def _values_or_dummies(self, optionals: list[list[Any]]) -> list[Any]:
            """For each replica its value, or one without rows; parts that are None stay None."""
            values = []
            for index, worker in enumerate(self._input_workers.worker_devices):
                devices = self._input_workers.compute_devices_for_worker(index)
                for device, optional in zip(devices, optionals[index], strict=True):
                    with tf.device(worker), tf.device(device):
                        values.append(_value_or_dummy(optional, base.dummy_tensor_fn))
            return values

        @property
        def element_spec(self) -> Any:
            return spec_with_total(super().element_spec) if _counts(self) else super().element_spec

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
            if self._options is not _ON_HOST:
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

    def make_iterator(owner: Any, datasets: Any) -> Any:
        workers, strategy, options = owner._input_workers, owner._strategy, owner._options
        canonicalize = getattr(strategy, "_canonicalize_devices", True)
        if options is _ON_HOST:
            iterators = []
            for index, worker in enumerate(workers.worker_devices):
                with tf.device(worker):
                    iterators.append(
                        HostIterator(
                            dataset=datasets[index],
                            worker=worker,
                            devices=workers.compute_devices_for_worker(index),
                            options=options,
                            canonicalize_devices=canonicalize,
                        )
                    )
        else:
            iterators = base.create_iterators_per_worker(
                datasets, workers, options=options, canonicalize_devices=canonicalize
            )
        iterator = CountedIterator(
            workers,
            iterators,
            strategy,
            cardinality=owner._cardinality,
            enable_get_next_as_optional=owner._enable_get_next_as_optional,
            options=options,
            replica_order=owner._replica_order,
        )
        iterator._element_spec = owner._element_spec
        return iterator

    class Dataset(RefuseTransformations, base.DistributedDataset):  # type: ignore[misc, name-defined]
        def __iter__(self) -> Any:
            return make_iterator(self, self._cloned_datasets)

        @property
        def element_spec(self) -> Any:
            return spec_with_total(super().element_spec) if _counts(self) else super().element_spec

        @property
        def _type_spec(self) -> Any:
            return DatasetSpec(
                self._input_workers,
                self._element_spec,
                self._strategy,
                self._options,
                enable_get_next_as_optional=self._enable_get_next_as_optional,
            )

    class DatasetSpec(base.DistributedDatasetSpec):  # type: ignore[misc, name-defined]
        @property
        def value_type(self) -> type:
            return Dataset

        def _from_components(self, components: Any) -> Any:
            return Dataset(
                input_workers=self._input_workers,
                strategy=self._strategy,
                components=components,
                element_spec=self._element_spec,
                enable_get_next_as_optional=self._enable_get_next_as_optional,
                options=self._options,
                replica_order=self._replica_order,
            )

    class FromFunction(RefuseTransformations, base.DistributedDatasetsFromFunction):  # type: ignore[misc, name-defined]
        def __iter__(self) -> Any:
            return make_iterator(self, self._datasets)

        @property
        def element_spec(self) -> Any:
            return spec_with_total(super().element_spec) if _counts(self) else super().element_spec

        @property
        def _type_spec(self) -> Any:
            return FromFunctionSpec(self._input_workers, self._element_spec, self._strategy, self._options)

    class FromFunctionSpec(base.DistributedDatasetsFromFunctionSpec):  # type: ignore[misc, name-defined]
        @property
        def value_type(self) -> type:
            return FromFunction

        def _from_components(self, components: Any) -> Any:
            return FromFunction(
                input_workers=self._input_workers,
                strategy=self._strategy,
                components=components,
                element_spec=self._element_spec,
                options=self._options,
            )

    return SimpleNamespace(Dataset=Dataset, FromFunction=FromFunction)


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


def _counts(owner: Any) -> bool:
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
