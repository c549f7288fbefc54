"""How a data set is divided over workers: which policy works for it, and what the user must know of it.

Two ways in which sharding goes wrong without a word are looked for in the data set as it was built, at no
cost for the pipeline: fewer files than workers, and an order that differs between workers.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import tensorflow as tf

from tf_preempt import errors
from tf_preempt.strategies import _tf_internals

_log = logging.getLogger("tf_preempt")
_said: set[str] = set()

_Policy = tf.data.experimental.AutoShardPolicy

# Sources that TensorFlow shards by file, without the version at the end of an op's name.
_READER_OPS = (
    "ArrayRecordDataset",
    "FixedLengthRecordDataset",
    "RecordIODataset",
    "SSTableDataset",
    "TextLineDataset",
    "TFRecordDataset",
)

_SEED_HINT = (
    "call keras.utils.set_random_seed (or tf.random.set_seed) with one number on all workers before the data "
    "set is built or `fit` is called, or give every shuffle a seed; for arrays, shuffle=False works too."
)
_FILES_HINT = (
    "write at least one file per worker, or set options.experimental_distribute.auto_shard_policy = "
    "tf.data.experimental.AutoShardPolicy.DATA with dataset.with_options."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceFacts:
    """What decides how a data set can be sharded.

    Args:
        policy: ``auto_shard_policy`` of the data set's options.
        reads_files: a reader of files is among its sources.
        files: the smallest number of files that a reader has; None if no reader's number is known.
        unseeded: a shuffle or a random source in it differs from process to process.
    """

    policy: Any
    reads_files: bool
    files: int | None
    unseeded: bool

    def __post_init__(self) -> None:
        if self.files is not None and not self.reads_files:
            raise ValueError(f"files={self.files!r} without reads_files: expected None.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardPlan:
    """How a data set will be sharded.

    Args:
        policy: the policy to use.
        warnings: what the user must know, with the cure.
    """

    policy: Any
    warnings: tuple[str, ...] = ()


def plan_shards(facts: SourceFacts, workers: int) -> ShardPlan:
    """Decides how to shard, the same on every worker.

    Args:
        facts: about the data set.
        workers: how many workers share it; more than one.

    Raises:
        ConfigError: policy FILE was asked for, and there are fewer files than workers.
    """
    policy, warnings = facts.policy, []
    short_of_files = facts.files is not None and facts.files < workers
    shortage = f"the data set reads {facts.files} file(s), but there are {workers} workers"
    if short_of_files and policy == _Policy.FILE:
        raise errors.ConfigError(
            f"auto_shard_policy = FILE: {shortage}, expected one file per worker or more.", hint=_FILES_HINT
        )
    if short_of_files and policy == _Policy.AUTO:
        policy = _Policy.DATA
        warnings.append(
            f"auto_shard_policy = AUTO: {shortage}; every worker reads all of it and keeps its share of the "
            f"elements (policy DATA).\nHINT: {_FILES_HINT}"
        )
    by_elements = policy == _Policy.DATA or (policy == _Policy.AUTO and not facts.reads_files)
    if by_elements and facts.unseeded:
        warnings.append(
            "the data set is sharded by elements, but it is shuffled without a seed: each worker shuffles in "
            f"another order, so that workers see some elements twice and others never.\nHINT: {_SEED_HINT}"
        )
    return ShardPlan(policy=policy, warnings=tuple(warnings))


def source_facts(dataset: tf.data.Dataset) -> SourceFacts:
    """Looks at how a data set was built, without running it.

    Args:
        dataset: any; what its functions build inside is searched for readers only.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    nodes = list(_tf_internals.walk_dataset(dataset))
    name_sources = [names for node in nodes for names in _file_name_sources(node)]
    counts = [int(names.cardinality()) for names in name_sources]
    known = [count for count in counts if count >= 0]
    return SourceFacts(
        policy=dataset.options().experimental_distribute.auto_shard_policy,
        reads_files=bool(name_sources),
        files=min(known, default=None),
        unseeded=any(_tf_internals.is_unseeded(node) for node in nodes),
    )


def _file_name_sources(node: tf.data.Dataset) -> list[tf.data.Dataset]:
    """The data sets of file names that `node` reads from, if it reads files."""
    names = _tf_internals.dataset_file_names(node)
    if names is not None:
        return [names]
    if any(op.type.startswith(_READER_OPS) for op in _tf_internals.dataset_function_ops(node)):
        return _tf_internals.dataset_inputs(node)
    return []


def with_working_shards(dataset: tf.data.Dataset, workers: int) -> tf.data.Dataset:
    """The same data set, with a policy under which its shards hold what they should; warns where they cannot.

    Args:
        dataset: as the user built it.
        workers: how many workers share it; more than one.

    Raises:
        ConfigError: policy FILE was asked for, and there are fewer files than workers.
        InternalsChangedError: TensorFlow's private names have changed.
    """
    facts = source_facts(dataset)
    plan = plan_shards(facts, workers)
    for warning in plan.warnings:
        if warning not in _said:
            _said.add(warning)
            _log.warning(warning)
    if plan.policy == facts.policy:
        return dataset
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = plan.policy
    return dataset.with_options(options)


def prepare(strategy: Any, dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The same data set, ready to be divided over the workers of `strategy`; to be called eagerly.

    With several workers, all of them must call it with their data sets in the same order.

    Args:
        strategy: of this package.
        dataset: as the user built it.

    Raises:
        ConfigError: policy FILE was asked for, and there are fewer files than workers.
        InternalsChangedError: TensorFlow's private names have changed.
    """
    workers = worker_count(strategy)
    return with_working_shards(dataset, workers) if workers > 1 else dataset


def worker_count(strategy: Any) -> int:
    """How many processes share the data of `strategy`."""
    return int(strategy.num_replicas_in_sync // len(strategy.extended.worker_devices))
