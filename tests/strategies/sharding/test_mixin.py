from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tf_preempt import errors
from tf_preempt.strategies.sharding import mixin, one_order

Policy = tf.data.experimental.AutoShardPolicy

# Stands for a strategy with two workers of one replica each.
STRATEGY = types.SimpleNamespace(
    num_replicas_in_sync=2, extended=types.SimpleNamespace(worker_devices=("CPU:0",))
)


@pytest.fixture(autouse=True)
def _no_global_seed() -> None:
    """What an earlier test has set for the whole process would be a seed here."""
    tf.random.set_seed(None)


@pytest.fixture(autouse=True)
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The other worker has just what this one has; the texts that this one sent."""
    found: list[str] = []

    def exchange(strategy: Any, text: str) -> tuple[list[str], int]:
        found.append(text)
        return [text, text], 1

    monkeypatch.setattr(mixin, "exchange_texts", exchange)
    return found


def in_any_order(dataset: tf.data.Dataset) -> tf.data.Dataset:
    options = tf.data.Options()
    options.deterministic = False
    return dataset.with_options(options)


def test_a_variable_is_read_where_the_options_allow_any_order() -> None:
    added = tf.Variable(1000, dtype=tf.int64)
    dataset = in_any_order(tf.data.Dataset.range(8).shuffle(8).map(lambda x: x + added).batch(4))
    prepared = mixin.prepare(STRATEGY, dataset)
    added.assign(5000)
    assert sorted(x for batch in prepared for x in batch.numpy()) == list(range(5000, 5008))
    assert prepared.options().deterministic is True


def test_large_arrays_are_divided_where_the_options_allow_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_order, "_LARGEST_BYTES", 100)
    dataset = in_any_order(tf.data.Dataset.from_tensor_slices(np.arange(40.0)).shuffle(40).batch(4))
    prepared = mixin.prepare(STRATEGY, dataset)
    assert sorted(x for batch in prepared for x in batch.numpy()) == list(range(40))
    assert prepared.options().deterministic is True


def names_that_fail() -> tf.data.Dataset:
    """Nobody knows how many names there are before they are run."""
    names = tf.data.Dataset.from_tensor_slices(["no such list"]).map(tf.io.read_file)
    names = names.filter(lambda name: name != "")
    return names.interleave(tf.data.TFRecordDataset).batch(2)


def spec_that_fails() -> tf.data.Dataset:
    class Broken(type(tf.data.Dataset.range(2))):  # type: ignore[misc]
        def cardinality(self) -> tf.Tensor:
            raise KeyError("no such split")

    dataset = tf.data.Dataset.range(2).batch(2)
    dataset.cardinality = types.MethodType(Broken.cardinality, dataset)
    return dataset


@pytest.mark.parametrize(
    ("make", "message", "cause"),
    [
        (
            names_that_fail,
            "worker 0: the names of the files that the data set reads cannot be",
            errors.ConfigError,
        ),
        (spec_that_fails, "worker 0: looking at the data set raised KeyError: 'no such split'", KeyError),
        (
            lambda: tf.data.Dataset.range(2),
            "worker 0: the data set's elements hold scalars",
            errors.ConfigError,
        ),
    ],
)
def test_what_fails_on_one_worker_is_told_before_it_is_raised(
    make: Callable[[], tf.data.Dataset], message: str, cause: type[Exception], sent: list[str]
) -> None:
    with pytest.raises(errors.ConfigError, match=f"{message}(?s:.*)HINT: ") as raised:
        mixin.prepare(STRATEGY, make())
    assert len(sent) == 1
    assert isinstance(raised.value.__cause__, cause)


def test_a_private_name_that_is_gone_is_told_and_raised_as_what_it_is(
    monkeypatch: pytest.MonkeyPatch, sent: list[str]
) -> None:
    def look(*_: Any) -> Any:
        raise errors.InternalsChangedError("TensorFlow has no _inputs.", hint="install another.")

    monkeypatch.setattr(mixin, "source_facts", look)
    with pytest.raises(errors.InternalsChangedError, match="has no _inputs"):
        mixin.prepare(STRATEGY, tf.data.Dataset.range(2).batch(2))
    assert "InternalsChangedError: TensorFlow has no _inputs." in sent[0]


@pytest.mark.parametrize(
    ("chance", "repeated"),
    [
        (lambda numbers: numbers.filter(lambda _: tf.random.uniform([]) < 0.5), True),
        (lambda numbers: numbers.shuffle(8), False),
    ],
)
def test_chance_that_repeats_itself_is_explained_each_time(
    chance: Callable[[tf.data.Dataset], tf.data.Dataset], repeated: bool
) -> None:
    dataset = chance(tf.data.Dataset.range(8)).batch(4)
    before = mixin.explain(STRATEGY, dataset)
    mixin.prepare(STRATEGY, dataset)
    after = mixin.explain(STRATEGY, dataset)
    assert [before.repeated, after.repeated] == [repeated, repeated]
    assert before.agreed_seed
    assert len(before.warnings) == int(repeated)


def test_a_filter_can_choose_anew_in_each_epoch_as_the_warning_says() -> None:
    numbers = tf.data.Dataset.random(rerandomize_each_iteration=True)
    both = tf.data.Dataset.zip((tf.data.Dataset.range(64), numbers))
    dataset = both.filter(lambda _, number: number % 2 == 0).map(lambda x, _: x).batch(64)
    assert not mixin.explain(STRATEGY, dataset).repeated
    prepared = mixin.prepare(STRATEGY, dataset)
    first, second = ([x.numpy().tolist() for x in prepared] for _ in range(2))
    assert first != second


def test_a_data_set_zipped_with_itself_over_and_over_is_left_as_it_is() -> None:
    dataset = tf.data.Dataset.range(1).shuffle(1)
    for _ in range(40):
        dataset = tf.data.Dataset.zip((dataset, dataset)).map(lambda one, _: one)
    found = mixin.explain(STRATEGY, dataset.batch(2))
    assert not found.agreed_seed
    assert "steps, counted as often as they are read, too many" in found.warnings[0]
