from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_preempt import errors
from tf_preempt.strategies._tf_internals import dataset_graphs
from tf_preempt.strategies.sharding import shard_facts
from tf_preempt.strategies.sharding.exchange import ROW_BYTES
from tf_preempt.strategies.sharding.shard_facts import SourceFacts, refusal, source_facts

Policy = tf.data.experimental.AutoShardPolicy
HINT = tf.data.experimental.SHARD_HINT


@pytest.fixture(autouse=True)
def _no_global_seed() -> None:
    """What an earlier test has set for the whole process would be a seed here."""
    tf.random.set_seed(None)


def names(count: int) -> list[str]:
    return [f"file-{index}" for index in range(count)]


def slices(count: int) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(names(count))


def with_policy(dataset: tf.data.Dataset, policy: Policy) -> tf.data.Dataset:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    return dataset.with_options(options)


def tfrecord(count: int) -> tf.data.Dataset:
    return tf.data.TFRecordDataset(names(count))


@pytest.mark.parametrize(
    ("make", "files"),
    [
        (lambda: tfrecord(1), (1,)),
        (lambda: tf.data.TFRecordDataset("file"), (1,)),
        (lambda: tf.data.TFRecordDataset(names(3), num_parallel_reads=2), (3,)),
        (lambda: tf.data.TFRecordDataset(slices(2)), (2,)),
        (lambda: tf.data.TextLineDataset(names(2)), (2,)),
        (lambda: tf.data.FixedLengthRecordDataset(names(2), 8), (2,)),
        (lambda: slices(3).interleave(tf.data.TFRecordDataset), (3,)),
        (lambda: slices(3).interleave(tf.data.TextLineDataset, num_parallel_calls=2), (3,)),
        (lambda: slices(3).flat_map(lambda f: tf.data.TFRecordDataset(f).map(tf.strings.length)), (3,)),
        (lambda: tfrecord(1).map(tf.strings.length).cache().shuffle(4).batch(2), (1,)),
        (lambda: tf.data.Dataset.zip((tfrecord(4), tfrecord(1))), (4, 1)),
        (lambda: tfrecord(1).concatenate(tfrecord(2)), (1, 2)),
        (lambda: slices(5).shard(2, 1).interleave(tf.data.TFRecordDataset), (2,)),
        (lambda: slices(5).shuffle(5).interleave(tf.data.TFRecordDataset), (5,)),
        (lambda: slices(3).filter(lambda f: f != "file-1").interleave(tf.data.TFRecordDataset), (2,)),
        (lambda: slices(3).repeat().interleave(tf.data.TFRecordDataset), (None,)),
        (lambda: with_policy(tfrecord(2).batch(2), Policy.FILE).prefetch(1), (2,)),
        (lambda: tf.data.Dataset.zip(tuple(tfrecord(2 + n) for n in range(70))), (2, None)),
    ],
)
def test_files_are_counted_without_reading_them(
    make: Callable[[], tf.data.Dataset], files: tuple[int | None, ...]
) -> None:
    assert source_facts(make(), 2).files == files


@pytest.mark.parametrize(
    "make",
    [
        lambda: tf.data.Dataset.range(3).batch(2),
        lambda: tf.data.Dataset.from_tensor_slices([1.0]).map(lambda x: x + 1),
        lambda: slices(2).interleave(lambda x: tf.data.Dataset.from_tensors(x)),
        lambda: tf.data.Dataset.zip((tfrecord(4), tf.data.Dataset.range(3))),
        lambda: with_policy(tf.data.Dataset.range(3).batch(2), Policy.FILE),
        lambda: with_policy(tfrecord(4), Policy.DATA),
        lambda: with_policy(tfrecord(4), Policy.OFF),
    ],
)
def test_what_cannot_or_must_not_be_sharded_by_files(make: Callable[[], tf.data.Dataset]) -> None:
    found = source_facts(make(), 2)
    assert found.files is None
    assert found.fewest_files is None


def test_large_arrays_are_not_copied_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_facts, "_ASK_UP_TO_BYTES", 100)
    asked: list[Any] = []
    monkeypatch.setattr(shard_facts.dataset_graphs, "sharded_graph", lambda *given: asked.append(given))
    assert source_facts(tf.data.Dataset.from_tensor_slices(np.zeros(200)), 2).files is None
    assert not asked


def test_large_arrays_beside_a_reader_are_copied_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_facts, "_ASK_UP_TO_BYTES", 100)
    added = tf.zeros(200)
    assert source_facts(tfrecord(2).map(lambda text: (text, added)), 2).files == (2,)


def test_facts_refuse_files_of_no_reader() -> None:
    with pytest.raises(ValueError, match=r"files=\(\)"):
        SourceFacts(policy=Policy.AUTO, files=())


def test_facts_refuse_an_empty_batch() -> None:
    with pytest.raises(ValueError, match="batch_size=0"):
        SourceFacts(policy=Policy.AUTO, batch_size=0)


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


def list_files(directory: Path, **arguments: Any) -> tf.data.Dataset:
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
        (lambda _: tf.data.Dataset.range(2).flat_map(lambda x: tf.data.Dataset.range(x).shuffle(2)), True),
        (
            lambda _: tf.data.Dataset.range(2).flat_map(lambda x: tf.data.Dataset.range(x).shuffle(2, 5)),
            False,
        ),
        (lambda _: tf.data.Dataset.range(8).filter(lambda _: tf.random.uniform([]) < 0.5), True),
        (lambda _: tf.data.Dataset.range(8).filter(lambda _: tf.random.uniform([], seed=3) < 0.5), False),
        (lambda _: tf.data.Dataset.range(8).filter(lambda x: x > 2), False),
        (lambda _: tf.data.Dataset.range(8).map(lambda x: tf.random.uniform([])), False),
        (lambda _: keras_arrays(shuffle=True), True),
        (lambda _: keras_arrays(shuffle=False), False),
        (lambda path: list_files(path), True),
        (lambda path: list_files(path, seed=4), False),
        (lambda path: list_files(path, shuffle=False), False),
    ],
)
def test_unseeded_orders_are_found(
    make: Callable[[Path], tf.data.Dataset], unseeded: bool, tmp_path: Path
) -> None:
    assert source_facts(make(tmp_path), 2).unseeded is unseeded


def test_a_global_seed_is_a_seed() -> None:
    tf.random.set_seed(3)
    try:
        found = source_facts(tf.data.Dataset.range(8).shuffle(8), 2)
    finally:
        tf.random.set_seed(None)
    assert not found.unseeded
    assert found.seeds
    assert source_facts(tf.data.Dataset.range(8).shuffle(8), 2).unseeded


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: tf.data.Dataset.range(8).shuffle(8, seed=seed),
        lambda seed: tf.data.Dataset.range(8).shuffle(8, seed=seed).map(lambda x: x).batch(2),
        lambda seed: tf.data.Dataset.range(1).map(lambda _: tf.random.shuffle([1, 2], seed=seed)),
    ],
)
def test_other_seeds_are_other_facts(make: Callable[[int], tf.data.Dataset]) -> None:
    first, same, other = (source_facts(make(seed), 2) for seed in (5, 5, 6))
    assert first == same
    assert first != other


def in_any_order(**arguments: Any) -> tf.data.Dataset:
    return tf.data.Dataset.range(8).map(lambda x: x, num_parallel_calls=2, **arguments)


def interleaved(**arguments: Any) -> tf.data.Dataset:
    return tf.data.Dataset.range(8).interleave(
        tf.data.Dataset.from_tensors, cycle_length=2, num_parallel_calls=2, **arguments
    )


def free(dataset: tf.data.Dataset) -> tf.data.Dataset:
    options = tf.data.Options()
    options.deterministic = False
    return dataset.with_options(options)


@pytest.mark.parametrize(
    ("dataset", "unordered", "free_order"),
    [
        (in_any_order, False, False),
        (lambda: in_any_order(deterministic=True), False, False),
        (lambda: in_any_order(deterministic=False).batch(2), True, False),
        (lambda: interleaved().batch(2), False, False),
        (lambda: interleaved(deterministic=True).batch(2), False, False),
        (lambda: interleaved(deterministic=False).batch(2), True, False),
        (lambda: tf.data.Dataset.range(2).flat_map(lambda _: in_any_order(deterministic=False)), True, False),
        (lambda: tf.data.Dataset.range(2).flat_map(lambda _: in_any_order()), False, False),
        (lambda: free(in_any_order()).batch(2), False, True),
    ],
)
def test_orders_that_depend_on_time_are_found(
    dataset: Callable[[], tf.data.Dataset], unordered: bool, free_order: bool
) -> None:
    found = source_facts(dataset(), 2)
    assert (found.unordered, found.free_order) == (unordered, free_order)


@pytest.mark.parametrize(
    ("make", "hinted"),
    [
        (lambda: tf.data.Dataset.range(8).shard(HINT, HINT).batch(2), True),
        (lambda: tf.data.Dataset.range(8).shard(2, 1).batch(2), False),
        (lambda: tf.data.Dataset.range(8).batch(2), False),
    ],
)
def test_hint_is_found(make: Callable[[], tf.data.Dataset], hinted: bool) -> None:
    assert source_facts(make(), 2).hinted is hinted


@pytest.mark.parametrize(
    ("make", "size", "batches"),
    [
        (lambda: tf.data.Dataset.range(8).batch(3), 3, 3),
        (lambda: tf.data.Dataset.range(8).batch(3, drop_remainder=True), 3, 2),
        (lambda: tf.data.Dataset.range(8).batch(3).prefetch(1), 3, 3),
        (lambda: tf.data.Dataset.range(8).batch(3).map(lambda x: x), None, 3),
        (lambda: tf.data.Dataset.range(8).filter(lambda x: x > 1).batch(3), 3, None),
        (lambda: tf.data.Dataset.range(8).batch(3).repeat(), 3, None),
        (lambda: tf.data.Dataset.from_tensors(np.zeros((4, 2))), 4, 1),
        (lambda: tf.data.Dataset.range(1, 8).map(tf.range), None, 7),
    ],
)
def test_batches_are_counted(
    make: Callable[[], tf.data.Dataset], size: int | None, batches: int | None
) -> None:
    found = source_facts(make(), 2)
    assert (found.batch_size, found.batches) == (size, batches)


def test_elements_are_the_same_whatever_the_number_of_rows() -> None:
    first, second = (tf.data.Dataset.range(8).batch(size, drop_remainder=True) for size in (2, 4))
    assert source_facts(first, 2).element_spec == source_facts(second, 2).element_spec


def test_long_descriptions_are_cut_and_still_differ() -> None:
    specs = []
    for last in "xy":
        parts = {"a" * 300: 0, "b" * 600: 1, "c" * 600 + last: 2}
        facts = source_facts(tf.data.Dataset.from_tensors(parts).batch(2), 2)
        specs.append(SourceFacts.from_json(facts.to_json()).element_spec)
    assert specs[0] != specs[1]
    assert max(map(len, specs)) <= 600


@pytest.mark.parametrize("character", ["x", "\u2713", "\U0001f600", "\x01", "\udcff"])
def test_the_most_that_a_worker_can_say_fits_in_what_is_sent(character: str) -> None:
    largest = 2**63 - 1
    facts = SourceFacts(
        policy=Policy.AUTO,
        files=(largest,) * 64,
        obstacle=character * 5000,
        seeds=character * 5000,
        batch_size=largest,
        batches=largest,
        element_spec=character * 5000,
        refused=character * 5000,
    )
    assert len(f"{largest} {facts.to_json()}".encode()) <= ROW_BYTES


def test_policy_is_that_of_the_data_set() -> None:
    assert source_facts(with_policy(tf.data.Dataset.range(2), Policy.HINT).batch(1), 2).policy == Policy.HINT
    assert source_facts(tf.data.Dataset.range(2), 2).policy == Policy.AUTO


@pytest.mark.parametrize(
    "facts",
    [
        SourceFacts(policy=Policy.AUTO),
        SourceFacts(
            policy=Policy.HINT,
            files=(3, None),
            hinted=True,
            unseeded=True,
            unordered=True,
            free_order=True,
            obstacle="größer",
            repeated=True,
            seeds="(1, 2)",
            batch_size=4,
            batches=5,
            element_spec="TensorSpec",
        ),
        refusal(errors.ConfigError("no", hint="yes")),
        refusal(errors.ConfigError("\u2713" * 5000, hint="\u2713" * 5000)),
    ],
)
def test_facts_survive_the_way_to_other_workers(facts: SourceFacts) -> None:
    assert SourceFacts.from_json(facts.to_json()) == facts


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (errors.ConfigError("no", hint="yes"), "no\nHINT: yes"),
        (errors.ConfigError("n" * 5000, hint="yes"), r"n+\.\.\. \(\w+\)\nHINT: yes"),
        (KeyError("x"), "looking at the data set raised KeyError: 'x'\nHINT: see that the data set can .*"),
    ],
)
def test_refusal_keeps_the_cure(error: Exception, text: str) -> None:
    assert re.fullmatch(text, str(refusal(error).refused))


def entangled(times: int) -> tf.data.Dataset:
    dataset = tfrecord(3)
    for _ in range(times):
        dataset = tf.data.Dataset.zip((dataset, dataset)).map(lambda one, _: one)
    return dataset


def test_policy_file_is_refused_where_it_takes_too_long_to_tell_the_files() -> None:
    with pytest.raises(errors.ConfigError, match=r"FILE: the data set has \d+ steps(?s:.*)HINT: "):
        source_facts(with_policy(entangled(40), Policy.FILE), 2)


def test_files_and_batch_size_are_not_known_where_it_takes_too_long_to_tell() -> None:
    found = source_facts(entangled(40), 2)
    assert (found.files, found.batch_size) == (None, None)
    assert source_facts(entangled(3), 2).files == (3,) * 8


@pytest.mark.parametrize(
    "make",
    [
        lambda: entangled(4),
        lambda: tf.data.Dataset.range(3).shuffle(3).concatenate(tf.data.Dataset.range(3)),
        lambda: tf.data.Dataset.range(3),
    ],
)
def test_steps_are_counted_as_a_graph_lists_them(make: Callable[[], tf.data.Dataset]) -> None:
    dataset = make()
    assert dataset_graphs.steps_in_graph(dataset) == len(dataset_graphs.dataset_tree(dataset))
