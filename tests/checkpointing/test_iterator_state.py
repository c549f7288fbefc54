from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tensorflow as tf

from tf_preempt.checkpointing.iterator_state import advance, set_position, shuffles_in, take_position
from tf_preempt.errors import UnsupportedStrategyError

RANGE = tf.data.Dataset.range


def mapped_in_parallel() -> Any:
    return RANGE(17).map(lambda x: x * 2, num_parallel_calls=2).batch(2).prefetch(2)


PIPELINES: dict[str, Callable[[], Any]] = {
    "batched": lambda: RANGE(10).batch(3),
    "shuffled": lambda: RANGE(12).shuffle(5, seed=1).batch(2),
    "shuffled and repeated": lambda: RANGE(7).shuffle(7, seed=1).repeat(3).batch(2),
    "repeated, then shuffled": lambda: RANGE(7).repeat(2).shuffle(4, seed=1),
    "shuffled twice": lambda: RANGE(9).shuffle(3, seed=1).batch(2).shuffle(4, seed=2),
    "shuffled without reshuffling": lambda: (
        RANGE(9).shuffle(9, seed=1, reshuffle_each_iteration=False).repeat(2)
    ),
    "prefetched": lambda: RANGE(9).shuffle(9, seed=5).batch(2).prefetch(3),
    "mapped in parallel": mapped_in_parallel,
    "interleaved": lambda: RANGE(4).interleave(lambda x: RANGE(x * 10, x * 10 + 3), cycle_length=2),
    "zipped": lambda: tf.data.Dataset.zip((RANGE(6), RANGE(6).shuffle(6, seed=4))),
    "flat-mapped": lambda: RANGE(4).flat_map(lambda x: RANGE(x)),
    "taken and skipped": lambda: RANGE(20).skip(3).take(9).batch(2),
    "from arrays": lambda: tf.data.Dataset.from_tensor_slices({"x": tf.range(8.0), "y": tf.range(8)}),
    "cached": lambda: RANGE(6).cache().repeat(2),
}


def rest_of(iterator: Iterator[Any]) -> list[Any]:
    return [tf.nest.map_structure(lambda tensor: tensor.numpy().tolist(), element) for element in iterator]


@pytest.mark.parametrize("name", PIPELINES)
def test_a_fresh_iterator_goes_on_from_a_position_after_every_step(name: str) -> None:
    make = PIPELINES[name]
    length = len(rest_of(iter(make())))
    assert length > 3
    for step in range(length + 1):
        iterator = iter(make())
        advance(iterator, step)
        position = take_position(iterator, "train")
        assert position is not None
        assert list(position) == ["train/0"]
        fresh = iter(make())
        assert set_position(fresh, "train", position)
        assert rest_of(fresh) == rest_of(iterator), f"after {step} steps"


def test_an_iterator_that_has_gone_on_is_set_back_in_place() -> None:
    iterator = iter(PIPELINES["shuffled and repeated"]())
    advance(iterator, 3)
    position = take_position(iterator, "train")
    assert position is not None
    rest = rest_of(iterator)
    assert set_position(iterator, "train", position)
    assert rest_of(iterator) == rest


def test_positions_of_several_iterators_lie_side_by_side() -> None:
    first, second = iter(RANGE(9)), iter(RANGE(9))
    advance(first, 2)
    advance(second, 5)
    tensors = (take_position(first, "train") or {}) | (take_position(second, "validate") or {})
    fresh = iter(RANGE(9))
    assert set_position(fresh, "validate", tensors)
    assert rest_of(fresh) == [5, 6, 7, 8]


@pytest.mark.parametrize("tensors", [{}, {"other/0": tf.constant(1)}, {"train": tf.constant(1)}])
def test_no_position_under_a_name_leaves_the_iterator_alone(tensors: dict[str, Any]) -> None:
    iterator = iter(RANGE(3))
    assert not set_position(iterator, "train", tensors)
    assert rest_of(iterator) == [0, 1, 2]


def generated() -> Any:
    return tf.data.Dataset.from_generator(
        lambda: iter(range(5)), output_signature=tf.TensorSpec([], tf.int64)
    )


@pytest.mark.parametrize(
    "make",
    [
        generated,
        lambda: RANGE(5).map(lambda x: tf.cast(x, tf.float32) + tf.random.uniform([])),
        lambda: RANGE(5).map(lambda x: tf.py_function(lambda y: y, [x], tf.int64)),
    ],
    ids=["generator", "stateful random op", "py_function"],
)
def test_a_pipeline_with_state_outside_the_iterator_has_no_position(make: Callable[[], Any]) -> None:
    assert take_position(iter(make()), "train") is None


def test_what_is_no_iterator_of_tf_data_is_refused() -> None:
    with pytest.raises(UnsupportedStrategyError, match="HINT"):
        take_position(iter([1, 2, 3]), "train")


@pytest.mark.parametrize(
    ("make", "shuffles"),
    [
        (lambda: RANGE(9), 0),
        (lambda: RANGE(9).shuffle(3, seed=1), 1),
        (lambda: RANGE(9).shuffle(3, seed=1).map(lambda x: x + 1).batch(2), 1),
        (lambda: RANGE(9).shuffle(3, seed=1).shuffle(2, seed=2), 2),
        (lambda: RANGE(9).shuffle(3, seed=1).repeat(2), 1),
        (lambda: tf.data.Dataset.zip((RANGE(9).shuffle(2, seed=1), RANGE(9).shuffle(2, seed=2))), 2),
    ],
)
def test_shuffles_in_a_position_are_counted(make: Callable[[], Any], shuffles: int) -> None:
    iterator = iter(make())
    advance(iterator, 1)
    position = take_position(iterator, "train")
    assert position is not None
    assert shuffles_in(position, "train") == shuffles
    assert shuffles_in(position, "validate") == 0


def test_a_shuffle_that_has_given_its_last_element_is_gone_from_the_position() -> None:
    iterator = iter(RANGE(4).shuffle(4, seed=1).batch(2).prefetch(2))
    assert shuffles_in(take_position(iterator, "train") or {}, "train") == 1
    advance(iterator, 2)
    assert next(iterator, None) is None
    assert shuffles_in(take_position(iterator, "train") or {}, "train") == 0


def test_advance_takes_so_many_elements_and_no_more() -> None:
    iterator = iter(RANGE(5))
    advance(iterator, 0)
    advance(iterator, 2)
    assert next(iterator).numpy() == 2
    with pytest.raises(StopIteration):
        advance(iterator, 3)
