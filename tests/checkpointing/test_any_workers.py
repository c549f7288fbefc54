from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tf_preempt.checkpointing.any_workers import bound_to_workers, go_ahead, steps_taken
from tf_preempt.checkpointing.iterator_state import epoch_counters_of
from tf_preempt.data import from_arrays, from_source
from tf_preempt.errors import CheckpointMismatchError
from tf_preempt.strategies import MirroredStrategy

Dataset = tf.data.Dataset
X = np.arange(20.0, dtype="float32")


class Source:
    """Its items are their indices; notes which were read."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> np.int64:
        self.read.append(index)
        return np.int64(index)


def full() -> Dataset:
    return from_arrays(X, batch_size=5, seed=1)


def uneven() -> Dataset:
    return from_arrays(X, batch_size=6, seed=1)


def policy(value: tf.data.experimental.AutoShardPolicy) -> tf.data.Options:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = value
    return options


ALLOWED = {
    "plain": full,
    "uneven": uneven,
    "map_and_prefetch": lambda: uneven().map(lambda x: x + 1, num_parallel_calls=2).prefetch(2),
    "rounds": lambda: full().repeat(),
    "some_rounds": lambda: full().repeat(2).take(6).skip(1),
    "two_sources": lambda: Dataset.zip((full(), from_arrays(X, batch_size=5, seed=2))),
    "constant_table": lambda: full().map(lambda x: tf.gather(tf.range(20), tf.cast(x, tf.int32))),
}

generator = tf.random.Generator.from_seed(1)

REFUSED = {
    "not_ours": (lambda: Dataset.from_tensor_slices(X).batch(5), "not read by tf_preempt.data"),
    "filter": (lambda: full().filter(lambda x: True), "a FilterDataset"),
    "shuffle": (lambda: full().shuffle(2, seed=1), "a ShuffleDataset"),
    "batches_anew": (lambda: full().unbatch().batch(4), "a BatchDataset"),
    "cache": (lambda: full().cache(), "a CacheDataset"),
    "concatenate": (lambda: full().concatenate(full()), "a ConcatenateDataset"),
    "own_scan": (lambda: full().scan(0.0, lambda before, x: (before + x[0], x)), "a ScanDataset"),
    "random_numbers": (lambda: full().map(lambda x: x + tf.random.normal([])), "draw random numbers"),
    "generator": (lambda: full().map(lambda x: x + generator.normal([])), "draw random numbers"),
    "unordered": (
        lambda: full().map(lambda x: x, num_parallel_calls=2, deterministic=False),
        "ready first",
    ),
    "policy_off": (
        lambda: full().with_options(policy(tf.data.experimental.AutoShardPolicy.OFF)),
        "a policy",
    ),
    "uneven_rounds": (lambda: uneven().repeat(), "filled up with examples of the next round"),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_data_with_which_any_number_of_workers_can_go_on(name: str) -> None:
    assert bound_to_workers(iter(ALLOWED[name]()), workers=1) is None
    strategy = MirroredStrategy(["cpu:0", "cpu:1"])
    distributed = iter(strategy.experimental_distribute_dataset(ALLOWED[name]()))
    assert bound_to_workers(distributed, workers=1) is None
    assert bound_to_workers(distributed, workers=2) is None


@pytest.mark.parametrize("name", REFUSED)
def test_data_that_is_bound_to_its_workers_says_why(name: str) -> None:
    make, reason = REFUSED[name]
    assert reason in (bound_to_workers(iter(make()), workers=1) or "")


def test_data_that_no_strategy_divides_is_bound_where_there_are_several_workers() -> None:
    assert "which no strategy divides" in (bound_to_workers(iter(full()), workers=2) or "")


def test_data_that_a_function_makes_for_each_worker_is_bound() -> None:
    strategy = MirroredStrategy(["cpu:0", "cpu:1"])
    iterator = iter(strategy.distribute_datasets_from_function(lambda _: full()))
    assert "a function of the program" in (bound_to_workers(iterator, workers=1) or "")


def left_after(make: Callable[[], Dataset], steps: int) -> list[Any]:
    iterator = iter(make())
    go_ahead(iterator, steps)
    return [tf.nest.map_structure(lambda leaf: leaf.numpy().tolist(), one) for one in iterator]


FINITE = [name for name in ALLOWED if name != "rounds"]


@pytest.mark.parametrize("name", FINITE)
def test_going_ahead_leaves_what_is_left(name: str) -> None:
    everything = left_after(ALLOWED[name], 0)
    for steps in range(1, len(everything) + 1):
        assert left_after(ALLOWED[name], steps) == everything[steps:]


def test_going_ahead_over_the_ends_of_rounds() -> None:
    first, other = iter(full().repeat()), iter(full().repeat())
    for _ in range(11):
        next(first)
    go_ahead(other, 11)
    for _ in range(5):
        np.testing.assert_array_equal(next(other), next(first))


def test_the_next_epoch_is_the_one_that_would_have_come() -> None:
    one, other = full(), full()
    assert len(list(one)) == 4
    go_ahead(iter(other), 4)
    np.testing.assert_array_equal(list(other), list(one))


@pytest.mark.parametrize(("steps", "read"), [(0, 20), (2, 10), (3, 5), (4, 0)])
def test_going_ahead_reads_nothing_of_a_source(steps: int, read: int) -> None:
    source = Source()
    dataset = from_source(source, batch_size=5, seed=1).map(lambda x: x + 1)
    source.read.clear()  # item 0 shows what items are like
    iterator = iter(dataset)
    go_ahead(iterator, steps)
    left = [int(value) - 1 for batch in iterator for value in batch]
    assert source.read == left
    assert len(left) == read


def test_an_iterator_that_reads_an_earlier_epoch_meanwhile_gets_its_items() -> None:
    dataset = from_source(Source(), batch_size=5, shuffle=False)
    earlier, later = iter(dataset), iter(dataset)
    next(earlier)
    counters = epoch_counters_of(later)
    with counters[0].passing_over(2):
        assert next(earlier).numpy().tolist() == [5, 6, 7, 8, 9]
        assert next(later).numpy().tolist() == [0, 0, 0, 0, 0]


def test_replicas_of_one_worker_go_ahead_together() -> None:
    strategy = MirroredStrategy(["cpu:0", "cpu:1"])

    def numbers(iterator: Any) -> list[int]:
        return [
            int(value)
            for batch in iterator
            for replica in strategy.experimental_local_results(batch)
            for value in replica
        ]

    everything = numbers(iter(strategy.experimental_distribute_dataset(uneven())))
    iterator = iter(strategy.experimental_distribute_dataset(uneven()))
    go_ahead(iterator, 2)
    assert numbers(iterator) == everything[12:]


def test_data_that_ends_before_is_an_error() -> None:
    with pytest.raises(
        CheckpointMismatchError, match=r"(?s)ends after 4 elements.*after 9 steps.*HINT: use the same"
    ):
        go_ahead(iter(full()), 9)


@pytest.mark.parametrize(("elements", "steps"), [(0, 0), (1, 1), (2, 1), (3, 2), (4, 2)])
def test_a_step_gives_an_element_to_each_replica(elements: int, steps: int) -> None:
    strategy = MirroredStrategy(["cpu:0", "cpu:1"])
    assert steps_taken(iter(strategy.experimental_distribute_dataset(full())), elements) == steps
    assert steps_taken(iter(full()), elements) == elements
