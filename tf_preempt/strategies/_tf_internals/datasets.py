"""How a data set was built, and its distribution with any options."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tf_preempt.data.epochs import EpochCounter, counter_of
from tf_preempt.strategies._tf_internals.access import attribute
from tf_preempt.strategies._tf_internals.functions import ops_in

_REPEAT = "_RepeatDataset"
_SECOND_PASSES = (_REPEAT, "_ConcatenateDataset")
_SHUFFLES = ("_ShuffleDataset", "_ShuffleAndRepeatDataset")
# Give one element for each that they take, in the same order, but for some that they leave out; or divide
# batches over replicas.
_ONE_FOR_ONE = (
    "_AutoShardDataset",
    "_LegacyRebatchDataset",
    "_MapDataset",
    "_OptionsDataset",
    "_ParallelMapDataset",
    "_PrefetchDataset",
    "_RangeDataset",
    "_RebatchDataset",
    "_RestructuredDataset",
    _REPEAT,
    "_SkipDataset",
    "_TakeDataset",
    "_ZipDataset",
)


def dataset_inputs(dataset: tf.data.Dataset) -> list[tf.data.Dataset]:
    """The data sets that one data set reads from directly.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    return list(attribute(dataset, "_inputs", "Dataset")())


def walk_dataset(dataset: tf.data.Dataset) -> Iterator[tf.data.Dataset]:
    """`dataset` and everything that it reads from, each once; not what its functions build inside.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    waiting, seen = [dataset], set()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        names = dataset_file_names(one)
        waiting += dataset_inputs(one) + ([] if names is None else [names])


def dataset_function_ops(dataset: tf.data.Dataset) -> Iterator[tf.Operation]:
    """The ops inside the functions of one data set (of ``map``, ``interleave``, …), nested ones too.

    Looks at the graphs in place: as GraphDefs, arrays that they captured would be copied each time.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    for wrapper in attribute(dataset, "_functions", "Dataset")():
        function = attribute(wrapper, "function", "StructuredFunctionWrapper")
        yield from ops_in(attribute(function, "graph", "ConcreteFunction"))


def dataset_file_names(dataset: tf.data.Dataset) -> tf.data.Dataset | None:
    """The data set of file names that a reader (``TFRecordDataset``, …) was given; else None."""
    names = getattr(dataset, "_filenames", None)
    return names if isinstance(names, tf.data.Dataset) else None


def is_shard_hint(dataset: tf.data.Dataset) -> bool:
    """Says whether this very data set is ``shard(SHARD_HINT, SHARD_HINT)``."""
    shards = getattr(dataset, "_num_shards", None)
    return isinstance(shards, tf.Tensor) and int(shards) == tf.data.experimental.SHARD_HINT


def reshuffles(dataset: tf.data.Dataset) -> list[tf.data.Dataset]:
    """The shuffles of a pipeline that order each iteration anew; not those that its functions build.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    return [one for one in walk_dataset(dataset) if getattr(one, "_reshuffle_each_iteration", False)]


def has_second_passes(dataset: tf.data.Dataset) -> bool:
    """Says whether a shuffle that orders each iteration anew may begin again within an iteration.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    return any(type(one).__name__ in _SECOND_PASSES and reshuffles(one) for one in walk_dataset(dataset))


def has_rounds(dataset: tf.data.Dataset) -> bool:
    """Says whether a pipeline repeats what it reads.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    return any(type(one).__name__ == _REPEAT for one in walk_dataset(dataset))


def first_not_one_for_one(dataset: tf.data.Dataset) -> str | None:
    """The kind of a data set in a pipeline that need not give an element for each that it takes, in order.

    Those of `tf_preempt.data` are passed over; a ``scan`` of the program counts, for its elements depend on
    those before.

    Returns:
        The name of its class, such as ``FilterDataset``; None if there is none.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    nodes = (node for node in walk_dataset(dataset) if counter_of(node) is None)
    names = (type(node).__name__ for node in nodes)
    found = next((name for name in names if name not in _ONE_FOR_ONE), None)
    return None if found is None else found.removeprefix("_")


def caches_behind_shuffles(dataset: tf.data.Dataset) -> list[tf.data.Dataset]:
    """The caches in memory that a shuffle reads to their end, each once; not those in files.

    Once it has read all its input, a shuffle drops the input's iterator, and with it goes the cache from what
    is saved of the pipeline.  It never does where the input is endless.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    shuffles = [one for one in walk_dataset(dataset) if type(one).__name__ in _SHUFFLES]
    read = [source for shuffle in shuffles for source in dataset_inputs(shuffle) if not _is_endless(source)]
    below = {id(one): one for source in read for one in walk_dataset(source)}
    return [one for one in below.values() if type(one).__name__ == "CacheDataset" and _is_in_memory(one)]


def _is_endless(dataset: tf.data.Dataset) -> bool:
    return int(dataset.cardinality()) == int(tf.data.INFINITE_CARDINALITY)


def _is_in_memory(cache: tf.data.Dataset) -> bool:
    return bool(tf.get_static_value(attribute(cache, "_filename", "CacheDataset")) == b"")


def epoch_counters(*datasets: tf.data.Dataset) -> list[EpochCounter]:
    """What counts the epochs of the data sets of `tf_preempt.data` that some pipelines read, each once.

    Args:
        *datasets: whose order decides that of the counters.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    nodes = (node for dataset in datasets for node in walk_dataset(dataset))
    found = {id(counter): counter for node in nodes if (counter := counter_of(node)) is not None}
    return list(found.values())


def undistributed(dataset: Any) -> tf.data.Dataset | None:
    """The data set that was distributed; a plain one itself; None if there was none (a function gave it)."""
    if isinstance(dataset, tf.data.Dataset):
        return dataset
    found = getattr(dataset, "_original_dataset", None)
    return found if isinstance(found, tf.data.Dataset) else None
