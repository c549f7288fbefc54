from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tf_preempt.checkpointing.iterator_state import set_position, take_position
from tf_preempt.checkpointing.step_counts import StepCounts
from tf_preempt.data import from_arrays
from tf_preempt.errors import CheckpointMismatchError
from tf_preempt.strategies import MirroredStrategy


def data() -> tf.data.Dataset:
    x = np.arange(20.0, dtype="float32")
    return from_arrays({"a": x, "b": (x, x)}, batch_size=4, seed=3).map(lambda one: one).prefetch(2)


def lists(iterator: Any) -> list[Any]:
    return [element["a"].numpy().tolist() for element in iterator]


def distributed(replicas: int) -> Any:
    strategy = MirroredStrategy([f"cpu:{number}" for number in range(replicas)])
    return iter(strategy.experimental_distribute_dataset(data()))


@pytest.mark.parametrize("replicas", [1, 2])
def test_steps_are_counted_in_functions_and_outside(replicas: int) -> None:
    counts, iterator = StepCounts(workers=1), distributed(replicas)
    counts.watch(iterator, "train")
    assert counts.take() == {"train": 0}

    @tf.function
    def three_steps(iterator: Any) -> None:
        for _ in tf.range(3):
            next(iterator)

    next(iterator)
    assert counts.take() == {"train": 1}
    three_steps(iterator)
    assert counts.take() == {"train": 4}
    assert counts.bound == {}


def test_elements_are_those_of_an_iterator_that_nobody_counts() -> None:
    expected, iterator = lists(data()), iter(data())
    StepCounts(workers=1).watch(iterator, "train")
    assert lists(iterator) == expected


def test_the_count_goes_on_where_the_position_was() -> None:
    saving, iterator = StepCounts(workers=1), iter(data())
    saving.watch(iterator, "train")
    expected = lists(iterator)
    saving.watch(iterator_of_saved := iter(data()), "train")
    for _ in range(3):
        next(iterator_of_saved)
    position, steps = take_position(iterator_of_saved, "train"), saving.take()["train"]
    assert position is not None

    counts, resumed = StepCounts(workers=1), iter(data())
    counts.watch(resumed, "train")
    assert set_position(resumed, "train", position)
    counts.resume("train", steps, position, beginning="none")
    assert counts.take() == {"train": 3}
    assert next(resumed)["a"].numpy().tolist() == expected[3]
    assert counts.take() == {"train": 4}


def test_an_iterator_from_which_elements_were_taken_is_left_as_it_is_and_bound() -> None:
    counts, iterator, expected = StepCounts(workers=1), iter(data()), lists(data())
    next(iterator)
    counts.watch(iterator, "train")
    assert counts.bound == {"train": "elements were taken from its iterator before that was tracked"}
    assert counts.take() == {}
    assert lists(iterator) == expected[1:]


def test_the_iterator_of_the_next_epoch_is_counted_from_its_beginning() -> None:
    counts, dataset = StepCounts(workers=1), data()
    for _ in range(2):
        iterator = iter(dataset)
        counts.watch(iterator, "train")
        assert counts.take() == {"train": 0}
        lists(iterator)
        assert counts.take() == {"train": 5}


def _look_before_the_first_step(dataset: tf.data.Dataset, iterator: Any) -> None:
    next(iter(dataset))
    next(iterator)


def _look_after_the_first_step(dataset: tf.data.Dataset, iterator: Any) -> None:
    next(iterator)
    next(iter(dataset))


@pytest.mark.parametrize("look", [_look_before_the_first_step, _look_after_the_first_step])
def test_an_iterator_is_bound_whose_data_set_began_another_one(look: Any) -> None:
    counts, dataset = StepCounts(workers=1), data()
    iterator = iter(dataset)
    counts.watch(iterator, "train")
    assert counts.bound == {}
    look(dataset, iterator)
    assert "another iterator of its data set was begun" in counts.bound["train"]


def test_a_look_between_tracking_and_the_first_step_binds_rounds_too() -> None:
    counts, dataset = StepCounts(workers=1), data().repeat()
    iterator = iter(dataset)
    counts.watch(iterator, "train")
    _look_before_the_first_step(dataset, iterator)
    assert "another iterator of its data set was begun" in counts.bound["train"]


@pytest.mark.parametrize("rounds", [1, 3])
def test_what_an_iterator_begins_by_itself_does_not_bind_it(rounds: int) -> None:
    counts, iterator = StepCounts(workers=1), iter(data().repeat(rounds))
    counts.watch(iterator, "train")
    for _ in range(5 * rounds):
        next(iterator)
        assert counts.bound == {}


def test_two_tracked_iterators_of_one_data_set_are_bound() -> None:
    counts, dataset = StepCounts(workers=1), data()
    iterators = {name: iter(dataset) for name in ("train", "accuracy")}
    for name, iterator in iterators.items():
        counts.watch(iterator, name)
    for iterator in iterators.values():
        next(iterator)
    assert sorted(counts.bound) == ["accuracy", "train"]


def test_data_that_cannot_be_counted_is_not_touched() -> None:
    counts, iterator = StepCounts(workers=1), iter(tf.data.Dataset.range(3))
    counts.watch(iterator, "train")
    assert list(counts.bound) == ["train"]
    counts.resume("train", 7, {}, beginning="none")
    assert counts.take() == {}
    with pytest.raises(
        CheckpointMismatchError, match=r"(?s)cannot go on with the data iterator 'train'.*HINT"
    ):
        counts.go_ahead(iterator, "train", 1, {}, beginning="new")


@pytest.mark.parametrize("was_bound", [True, False])
def test_what_was_bound_when_it_was_saved_stays_bound(was_bound: bool) -> None:
    counts, iterator = StepCounts(workers=1), iter(data().repeat())
    counts.watch(iterator, "train")
    counts.resume("train", 7, {}, beginning="none", was_bound=was_bound)
    assert bool(counts.bound) == was_bound
