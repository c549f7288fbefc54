"""Distributed data sets whose iterators can be saved, and whose batches know the rows of all replicas.

Shards and batches are cut where TensorFlow cuts them; only the iterators are others.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from tf_preempt.strategies._tf_internals.access import attribute, attributes
from tf_preempt.strategies._tf_internals.counted import spec_with_total
from tf_preempt.strategies._tf_internals.distributed_iterators import ON_HOST, counts, make_iterator
from tf_preempt.strategies.refusals import RefuseTransformations


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
    options = ON_HOST if on_host else options
    context = getattr(extended, "_make_input_context", None)
    return _types().Dataset(
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
    options = ON_HOST if on_host else options
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
    return _types().FromFunction(
        workers, strategy, input_contexts=contexts, dataset_fn=dataset_fn, options=options
    )


def _input_workers(extended: Any, options: tf.distribute.InputOptions | None) -> Any:
    return attribute(extended, "_input_workers_with_options", "StrategyExtended")(options)


@functools.cache
def _types() -> SimpleNamespace:
    """The subclasses of TensorFlow's classes; made when first used, as their bases are private."""
    base = attributes(
        "tensorflow.python.distribute.input_lib",
        "DistributedDataset",
        "DistributedDatasetSpec",
        "DistributedDatasetsFromFunction",
        "DistributedDatasetsFromFunctionSpec",
    )

    class Dataset(RefuseTransformations, base.DistributedDataset):  # type: ignore[misc, name-defined]
        def __iter__(self) -> Any:
            return make_iterator(self, self._cloned_datasets)

        @property
        def element_spec(self) -> Any:
            return spec_with_total(super().element_spec) if counts(self) else super().element_spec

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
            return spec_with_total(super().element_spec) if counts(self) else super().element_spec

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
