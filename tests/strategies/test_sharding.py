from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_preempt import errors
from tf_preempt.strategies.sharding import ShardPlan, SourceFacts, plan_shards, source_facts

Policy = tf.data.experimental.AutoShardPolicy

# Each element on one worker only, and none left out.  `policy OFF` means all of it on each worker.
DIVIDED = {
    "batched": range(16),
    "uneven tail": range(17),
    "empty tail on one worker": range(9),
    "odd batch": range(9),
    "drop remainder": range(16),
    "batch under other steps": range(1, 17),
    "unknown cardinality": [x for x in range(16) if x % 3],
    "policy DATA, seeded shuffle": range(16),
    "policy FILE": range(16),
    "files, AUTO": range(16),
}
ALL_CASES = [*DIVIDED, "padded batch", "nested", "policy OFF", "files, interleaved"]


@pytest.fixture(autouse=True)
def _no_global_seed() -> None:
    """What an earlier test has set for the whole process would be a seed here."""
    tf.random.set_seed(None)


def flat(batches: Any) -> list[int]:
    return [x for batch in batches for leaf in batch for replica in leaf for x in replica]


@pytest.mark.parametrize("worker", [0, 1])
@pytest.mark.parametrize("case", ALL_CASES)
def test_batches_spec_and_cardinality_as_in_tensorflow(two_workers: Any, worker: int, case: str) -> None:
    found = two_workers.saved[worker]["compare_data_sets"][case]
    assert found["ours"]["batches"]
    assert found["ours"] == found["tensorflow"]


@pytest.mark.parametrize(("case", "expected"), DIVIDED.items())
def test_shards_are_disjoint_and_complete(two_workers: Any, case: str, expected: Any) -> None:
    shards = [flat(one["compare_data_sets"][case]["ours"]["batches"]) for one in two_workers.saved]
    assert sorted(shards[0] + shards[1]) == list(expected)
    assert not set(shards[0]) & set(shards[1])


@pytest.mark.parametrize("worker", [0, 1])
def test_every_position_of_an_epoch_is_resumed_in_new_processes(two_workers: Any, worker: int) -> None:
    read = [[part] for part in two_workers.saved[worker]["save_every_position"]]
    remaining = two_workers.restored[worker]["go_on_from_every_position"]
    assert len(read) == 6
    assert remaining == [read[step:] for step in range(7)]


def test_resumable_shards_are_disjoint_and_complete(two_workers: Any) -> None:
    shards = [flat([[part] for part in one["save_every_position"]]) for one in two_workers.saved]
    assert sorted(shards[0] + shards[1]) == [x * 10 for x in range(24)]


@pytest.mark.parametrize("worker", [0, 1])
def test_loop_in_a_graph_goes_on_from_a_restored_position(two_workers: Any, worker: int) -> None:
    assert two_workers.saved[worker]["sum_in_graph"] == sum(x * 10 for x in range(24))


@pytest.mark.parametrize("worker", [0, 1])
def test_options_of_the_user_are_respected(two_workers: Any, worker: int) -> None:
    assert "OwnedMultiDeviceIterator" in two_workers.saved[worker]["explicit_options"]


def test_fewer_files_than_workers_are_sharded_by_elements(two_workers: Any) -> None:
    both = [one["bad_input"]["batches"] for one in two_workers.saved]
    for epoch in range(2):
        shards = [flat(batches[epoch]) for batches in both]
        assert sorted(shards[0] + shards[1]) == list(range(16))


@pytest.mark.parametrize("worker", [0, 1])
@pytest.mark.parametrize(
    "start", ["auto_shard_policy = AUTO: the data set reads 1 file(s)", "the data set is sh"]
)
def test_each_warning_comes_once(two_workers: Any, worker: int, start: str) -> None:
    assert two_workers.outputs[worker].count(start) == 1


@pytest.mark.parametrize("worker", [0, 1])
def test_policy_file_with_too_few_files_is_refused_on_all_workers(two_workers: Any, worker: int) -> None:
    refused = two_workers.saved[worker]["bad_input"]["refused"]
    assert refused.startswith("ConfigError: auto_shard_policy = FILE: the data set reads 1 file(s)")


@pytest.mark.parametrize("worker", [0, 1])
def test_data_set_that_is_not_batched_is_refused(two_workers: Any, worker: int) -> None:
    refused = two_workers.saved[worker]["bad_input"]["not batched"]
    assert refused.startswith("ConfigError: the data set's elements hold scalars")
    assert "HINT: call dataset.batch" in refused


def test_two_replicas_in_one_process_are_saveable(without_cluster: dict[str, Any]) -> None:
    assert without_cluster["two replicas"]["saveable"] == "no error"


def facts(
    policy: Policy, files: int | None = None, unseeded: bool = False, reads: bool = True
) -> SourceFacts:
    return SourceFacts(policy=policy, reads_files=reads, files=files, unseeded=unseeded)


@pytest.mark.parametrize(
    ("found", "policy", "warnings"),
    [
        (facts(Policy.AUTO, files=1), Policy.DATA, ["fewer"]),
        (facts(Policy.AUTO, files=2), Policy.DATA, ["fewer"]),
        (facts(Policy.AUTO, files=3), Policy.AUTO, []),
        (facts(Policy.AUTO, files=None), Policy.AUTO, []),
        (facts(Policy.AUTO, files=3, unseeded=True), Policy.AUTO, []),
        (facts(Policy.AUTO, files=1, unseeded=True), Policy.DATA, ["fewer", "seed"]),
        (facts(Policy.AUTO, reads=False), Policy.AUTO, []),
        (facts(Policy.AUTO, reads=False, unseeded=True), Policy.AUTO, ["seed"]),
        (facts(Policy.DATA, files=1), Policy.DATA, []),
        (facts(Policy.DATA, files=5, unseeded=True), Policy.DATA, ["seed"]),
        (facts(Policy.FILE, files=3, unseeded=True), Policy.FILE, []),
        (facts(Policy.OFF, files=1, unseeded=True), Policy.OFF, []),
        (facts(Policy.HINT, files=1, unseeded=True), Policy.HINT, []),
    ],
)
def test_plan_for_three_workers(found: SourceFacts, policy: Policy, warnings: list[str]) -> None:
    plan = plan_shards(found, 3)
    assert isinstance(plan, ShardPlan)
    assert plan.policy == policy
    kinds = {"fewer": "file(s), but there are 3 workers", "seed": "shuffled without a seed"}
    assert [kinds[kind] in text for kind, text in zip(warnings, plan.warnings, strict=True)] == [True] * len(
        warnings
    )
    assert all("HINT: " in text for text in plan.warnings)


def test_plan_refuses_policy_file_with_too_few_files() -> None:
    with pytest.raises(errors.ConfigError, match=r"2 file\(s\), but there are 3 workers"):
        plan_shards(facts(Policy.FILE, files=2), 3)


def test_facts_refuse_files_without_a_reader() -> None:
    with pytest.raises(ValueError, match="files=2"):
        facts(Policy.AUTO, files=2, reads=False)


def names(count: int) -> list[str]:
    return [f"file-{index}" for index in range(count)]


def slices(count: int) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(names(count))


@pytest.mark.parametrize(
    ("make", "files"),
    [
        (lambda: tf.data.TFRecordDataset(names(1)), 1),
        (lambda: tf.data.TFRecordDataset("file"), 1),
        (lambda: tf.data.TFRecordDataset(names(3), num_parallel_reads=2), 3),
        (lambda: tf.data.TFRecordDataset(slices(2)), 2),
        (lambda: tf.data.TextLineDataset(names(2)), 2),
        (lambda: tf.data.FixedLengthRecordDataset(names(2), 8), 2),
        (lambda: slices(3).interleave(tf.data.TFRecordDataset), 3),
        (lambda: slices(3).interleave(tf.data.TextLineDataset, num_parallel_calls=2), 3),
        (lambda: slices(3).flat_map(lambda f: tf.data.TFRecordDataset(f).map(tf.strings.length)), 3),
        (lambda: tf.data.TFRecordDataset(names(1)).map(tf.strings.length).cache().shuffle(4).batch(2), 1),
        (lambda: tf.data.Dataset.zip((tf.data.TFRecordDataset(names(4)), tf.data.TFRecordDataset("a"))), 1),
        (lambda: tf.data.TFRecordDataset("a").concatenate(tf.data.TFRecordDataset(names(2))), 1),
        (lambda: slices(3).repeat().interleave(tf.data.TFRecordDataset), None),
        (lambda: slices(3).filter(lambda f: True).interleave(tf.data.TFRecordDataset), None),
    ],
)
def test_files_are_counted_without_reading_them(
    make: Callable[[], tf.data.Dataset], files: int | None
) -> None:
    found = source_facts(make())
    assert found.reads_files
    assert found.files == files


@pytest.mark.parametrize(
    "make",
    [
        lambda: tf.data.Dataset.range(3).batch(2),
        lambda: tf.data.Dataset.from_tensor_slices([1.0]).map(lambda x: x + 1),
        lambda: slices(2).interleave(lambda x: tf.data.Dataset.from_tensors(x)),
    ],
)
def test_sources_without_files(make: Callable[[], tf.data.Dataset]) -> None:
    found = source_facts(make())
    assert (found.reads_files, found.files) == (False, None)


@tf.function
def inner_shuffle(x: tf.Tensor) -> tf.Tensor:
    return tf.random.shuffle(tf.range(x))


def keras_arrays(shuffle: bool) -> tf.data.Dataset:
    """The data set that Keras makes of the arrays that ``fit`` is given."""
    found: list[tf.data.Dataset] = []
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    distribute = strategy.experimental_distribute_dataset
    strategy.experimental_distribute_dataset = lambda dataset: found.append(dataset) or distribute(dataset)
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(np.zeros((4, 1)), np.zeros((4, 1)), batch_size=2, shuffle=shuffle, verbose=0)
    return found[0]


def list_files(directory: Any, **arguments: Any) -> tf.data.Dataset:
    (directory / "a.txt").touch()
    return tf.data.TextLineDataset(tf.data.Dataset.list_files(str(directory / "*.txt"), **arguments))


@pytest.mark.parametrize(
    ("make", "unseeded"),
    [
        (lambda _: tf.data.Dataset.range(8).shuffle(8).map(lambda x: x).batch(2), True),
        (lambda _: tf.data.Dataset.range(8).shuffle(8, seed=0).batch(2), False),
        (lambda _: tf.data.Dataset.range(8).shuffle(8, seed=3, reshuffle_each_iteration=False), False),
        (lambda _: tf.data.Dataset.range(8).batch(2), False),
        (lambda _: tf.data.Dataset.zip((tf.data.Dataset.range(8), tf.data.Dataset.random())), True),
        (lambda _: tf.data.Dataset.range(1).map(lambda _: tf.random.shuffle([1, 2])), True),
        (lambda _: tf.data.Dataset.range(1).map(lambda x: inner_shuffle(x)), True),
        (lambda _: tf.data.Dataset.range(1).map(lambda _: tf.random.shuffle([1, 2], seed=7)), False),
        (lambda _: keras_arrays(shuffle=True), True),
        (lambda _: keras_arrays(shuffle=False), False),
        (lambda path: list_files(path), True),
        (lambda path: list_files(path, seed=4), False),
        (lambda path: list_files(path, shuffle=False), False),
    ],
)
def test_unseeded_orders_are_found(
    make: Callable[[Any], tf.data.Dataset], unseeded: bool, tmp_path: Any
) -> None:
    assert source_facts(make(tmp_path)).unseeded is unseeded


def test_a_global_seed_is_a_seed() -> None:
    tf.random.set_seed(3)
    try:
        assert not source_facts(tf.data.Dataset.range(8).shuffle(8)).unseeded
    finally:
        tf.random.set_seed(None)
    assert source_facts(tf.data.Dataset.range(8).shuffle(8)).unseeded


def test_policy_is_that_of_the_data_set() -> None:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = Policy.HINT
    assert source_facts(tf.data.Dataset.range(2).with_options(options).batch(1)).policy == Policy.HINT
    assert source_facts(tf.data.Dataset.range(2)).policy == Policy.AUTO
