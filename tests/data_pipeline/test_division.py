"""How data sets that are read by index are divided; test_strategies.py has real strategies."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import tensorflow as tf

from tests.data_pipeline import lives
from tests.data_pipeline.sources import Counted
from tf_preempt.data import from_arrays, from_source
from tf_preempt.errors import ConfigError
from tf_preempt.strategies import MirroredStrategy, _tf_internals, copies
from tf_preempt.strategies.sharding.one_order import Reordering
from tf_preempt.strategies.sharding.shard_facts import Policy, SourceFacts, source_facts
from tf_preempt.strategies.sharding.shard_plan import plan_shards

EXAMPLES = 8


def source(**options: Any) -> tf.data.Dataset:
    return from_source(Counted(EXAMPLES), **{"batch_size": 4, "seed": 5, **options})


def facts(dataset: tf.data.Dataset) -> SourceFacts:
    return source_facts(dataset, 2)


@pytest.mark.parametrize(
    "dataset",
    [
        lambda: source(),
        lambda: source().map(abs).prefetch(1),
        lambda: from_arrays(range(8), batch_size=4, seed=5),
    ],
    ids=["source", "mapped", "arrays"],
)
def test_batches_are_divided_in_order_and_nothing_is_warned_of(dataset: Any) -> None:
    plan = plan_shards([facts(dataset())] * 2)
    assert plan.policy == Policy.DATA
    assert "it is read by index, in one order of all workers" in plan.reason
    assert (plan.hint, plan.warnings, plan.agreed_seed) == (None, (), False)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"seed": 6}, "seed=5.* on worker 0, .*seed=6.* on worker 1"),
        ({"shuffle": False}, "shuffle=False"),
        ({"batch_size": 2}, "batch size: 4 on worker 0, 2 on worker 1"),
    ],
)
def test_another_order_on_one_worker_is_refused_on_all(other: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s)differ in their .*{words}.*HINT"):
        plan_shards([facts(source()), facts(source(**other))])


def test_what_workers_tell_each_other_survives_the_way() -> None:
    found = facts(source())
    assert SourceFacts.from_json(found.to_json()) == found
    assert dataclasses.replace(found, by_index=False) != found


def test_a_shuffle_without_a_seed_behind_it_is_agreed_on() -> None:
    """The data set is built again from its graph; epochs are still counted, in one place."""
    tf.random.set_seed(None)  # of another test in this process
    dataset = source().unbatch().shuffle(3).batch(4)
    assert facts(dataset).unseeded
    reordering = Reordering(dataset)
    assert reordering.obstacle is None
    again = reordering.apply(1)
    (counter,) = _tf_internals.epoch_counters(again)
    epochs = [[lives.values(element) for element in again] for _ in range(2)]
    lives.assert_each_once(epochs, EXAMPLES)
    assert counter.next_epoch == 2


def test_a_look_at_the_first_batch_begins_no_epoch() -> None:
    """Keras looks before it trains; what the iterator has read ahead is ended, and begins none later."""
    strategy = MirroredStrategy(["CPU:0"])
    data = source(batch_size=2).repeat().prefetch(9)
    (counter,) = _tf_internals.epoch_counters(data)
    distributed = strategy.experimental_distribute_dataset(data)
    iterator = iter(distributed)
    assert not iterator.looks_only
    iterator.looks_only = True
    first = next(iterator)
    assert counter.next_epoch == 0
    assert next(iterator, None) is None
    assert lives.values(next(iter(distributed))) == lives.values(first)


def test_batches_are_not_copied_once_more() -> None:
    """What is read is put together anew, and nobody else has it."""
    dataset = source()
    assert copies.unshared(dataset) is dataset
