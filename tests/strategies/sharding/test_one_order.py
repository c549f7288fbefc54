from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tf_preempt.strategies import _tf_internals
from tf_preempt.strategies.sharding import one_order
from tf_preempt.strategies.sharding.one_order import Reordering, agreed_seeds

NUMBERS = tf.data.Dataset.range(24)


@pytest.fixture(autouse=True)
def _no_global_seed() -> None:
    """What an earlier test has set for the whole process would be a seed here."""
    tf.random.set_seed(None)


def elements(dataset: tf.data.Dataset) -> list[int]:
    return [int(one) for one in dataset]


def with_variable() -> tf.data.Dataset:
    added = tf.Variable(1, dtype=tf.int64)
    return NUMBERS.shuffle(24).map(lambda x: x + added)


def with_mutable_table() -> tf.data.Dataset:
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1)
    return NUMBERS.shuffle(24).map(table.lookup)


def with_generator_state() -> tf.data.Dataset:
    generator = tf.random.Generator.from_seed(3)
    return NUMBERS.shuffle(24).map(lambda x: generator.uniform([]))


@pytest.mark.parametrize(
    ("make", "obstacle"),
    [
        (lambda: NUMBERS.shuffle(24), None),
        (with_variable, "a variable or a table that may change"),
        (with_mutable_table, "a variable or a table that may change"),
        (with_generator_state, "a variable or a table that may change"),
    ],
)
def test_what_cannot_be_built_again(make: Callable[[], tf.data.Dataset], obstacle: str | None) -> None:
    reordering = Reordering(make())
    found = reordering.obstacle
    assert (reordering._graph is None) == (obstacle is not None)
    assert found is None if obstacle is None else obstacle in str(found)


def test_what_is_too_large_is_not_built_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_order, "_LARGEST_BYTES", 100)
    dataset = tf.data.Dataset.from_tensor_slices(np.zeros(20)).shuffle(20)
    assert "MiB of arrays" in str(Reordering(dataset).obstacle)


def test_static_table_is_kept() -> None:
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a", "b"], [1, 2]), -1)
    dataset = tf.data.Dataset.from_tensor_slices(["a", "b", "c"]).shuffle(3).map(table.lookup)
    reordering = Reordering(dataset)
    assert reordering.obstacle is None
    assert sorted(elements(reordering.apply(5))) == [-1, 1, 2]


def test_it_is_built_once_so_that_epochs_go_on() -> None:
    dataset = NUMBERS.shuffle(24)
    first = Reordering(dataset).apply(5)
    again = Reordering(dataset).apply(6)
    assert again is first
    assert elements(first) != elements(again)


def test_two_data_sets_of_one_shuffle_see_one_order() -> None:
    shuffled = NUMBERS.shuffle(24, reshuffle_each_iteration=False)
    train, test = shuffled.skip(8), shuffled.take(8)
    found = elements(Reordering(train).apply(5)) + elements(Reordering(test).apply(6))
    assert sorted(found) == list(range(24))


def test_two_data_sets_alike_see_two_orders() -> None:
    found = [elements(Reordering(NUMBERS.shuffle(24)).apply(draw)) for draw in (5, 6)]
    assert found[0] != found[1]


def test_walking_it_meets_the_user_s_shuffle() -> None:
    shuffled = NUMBERS.shuffle(24)
    built = Reordering(shuffled.batch(2)).apply(5)
    assert _tf_internals.reshuffles(built) == [shuffled]


class Shuffle:
    """Stands for a data set that shuffles."""


def test_seeds_are_kept_for_each_shuffle() -> None:
    first, second = Shuffle(), Shuffle()
    assert agreed_seeds([first, second], 5) == [(5, 2), (5, 3)]
    assert agreed_seeds([second], 6) == [(5, 3)]


def test_one_shuffle_read_twice_gets_other_seeds_each_time() -> None:
    both: list[Any] = [Shuffle()] * 2
    first, second = agreed_seeds(both, 5)
    assert first != second


def test_a_python_function_keeps_working() -> None:
    """TensorFlow writes its device in a form that it does not read."""

    def tenfold(number: Any) -> Any:
        return tf.ensure_shape(tf.numpy_function(lambda x: x * 10, [number], tf.int64), [])

    reordering = one_order.Reordering(tf.data.Dataset.range(4).map(tenfold).shuffle(4))
    assert reordering.obstacle is None
    assert sorted(int(number) for number in reordering.apply(1)) == [0, 10, 20, 30]
