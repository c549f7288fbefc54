"""Custom loops over what TensorFlow cannot save: elements are counted, and taken again after a resume."""

from __future__ import annotations

import logging
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from tests.data_pipeline.sources import Counted
from tf_preempt.checkpointing.handler import PreemptionCheckpointHandler
from tf_preempt.data import from_source
from tf_preempt.errors import CheckpointMismatchError

LENGTH = 5
WORDS = "cannot be saved"


def generated(made: list[int] | None = None, length: int = LENGTH) -> tf.data.Dataset:
    def numbers() -> Any:
        for number in range(length):
            if made is not None:
                made.append(number)
            yield number

    return tf.data.Dataset.from_generator(numbers, output_signature=tf.TensorSpec((), tf.int64))


def by_chance() -> tf.data.Dataset:
    return tf.data.Dataset.range(LENGTH).map(lambda x: x + tf.cast(tf.random.uniform([], 0, 1) * 0, tf.int64))


def by_py_function() -> tf.data.Dataset:
    return tf.data.Dataset.range(LENGTH).map(lambda x: tf.py_function(lambda y: y, [x], tf.int64))


def life(directory: pathlib.Path, make: Callable[[], Any], take: Callable[[Any], Any]) -> Any:
    """One life of a program: what `take` gives of the tracked iterator; then it is saved."""
    checkpoint = tf.train.Checkpoint(variable=tf.Variable(0.0))
    handler = PreemptionCheckpointHandler(None, checkpoint, directory, save_every=None)
    try:
        taken = take(handler.track(iter(make())))
        handler.save()
    finally:
        handler.close()
    return taken


def some(count: int) -> Callable[[Any], Any]:
    return lambda iterator: [int(next(iterator)) for _ in range(count)]


def rest(iterator: Any) -> list[int]:
    return [int(element) for element in iterator]


@pytest.mark.parametrize(
    "make",
    [
        generated,
        by_chance,
        by_py_function,
        lambda: generated().prefetch(3),
        lambda: generated().map(lambda x: x),
    ],
    ids=["generator", "random op", "py_function", "prefetched", "mapped"],
)
def test_every_step_resumes(tmp_path: pathlib.Path, make: Callable[[], Any]) -> None:
    for step in range(LENGTH + 1):
        directory = tmp_path / str(step)
        assert life(directory, make, some(step)) == list(range(step))
        assert life(directory, make, rest) == list(range(step, LENGTH))


def test_a_second_resume_counts_what_was_taken_in_both_lives(tmp_path: pathlib.Path) -> None:
    assert life(tmp_path, generated, some(2)) == [0, 1]
    assert life(tmp_path, generated, some(1)) == [2]
    assert life(tmp_path, generated, rest) == [3, 4]


def test_elements_that_a_tf_function_takes_are_counted(tmp_path: pathlib.Path) -> None:
    @tf.function
    def step(iterator: Any) -> tf.Tensor:
        return next(iterator) + next(iterator)

    assert life(tmp_path, generated, lambda iterator: int(step(iterator))) == 1
    assert life(tmp_path, generated, rest) == [2, 3, 4]


def test_structures_pass_through(tmp_path: pathlib.Path) -> None:
    def make() -> tf.data.Dataset:
        return generated().map(lambda x: {"a": x, "b": (tf.RaggedTensor.from_row_lengths([x, x], [2]), x)})

    def take(iterator: Any) -> Any:
        element = next(iterator)
        return int(element["a"]), element["b"][0].to_list()

    assert life(tmp_path, make, take) == (0, [[0, 0]])
    assert life(tmp_path, make, take) == (1, [[1, 1]])


def test_a_new_epoch_under_the_same_name_begins_to_count_again(tmp_path: pathlib.Path) -> None:
    def two_epochs(handler: PreemptionCheckpointHandler) -> list[int]:
        dataset = generated()
        assert rest(handler.track(iter(dataset), "train")) == list(range(LENGTH))
        return some(2)(handler.track(iter(dataset), "train"))

    checkpoint = tf.train.Checkpoint(variable=tf.Variable(0.0))
    handler = PreemptionCheckpointHandler(None, checkpoint, tmp_path, save_every=None)
    assert two_epochs(handler) == [0, 1]
    handler.finish()
    handler = PreemptionCheckpointHandler(None, checkpoint, tmp_path, save_every=None)
    assert rest(handler.track(iter(generated()), "train")) == [2, 3, 4]
    handler.close()


def test_each_element_is_made_once_more_and_not_more_often(tmp_path: pathlib.Path) -> None:
    life(tmp_path, generated, some(3))
    made: list[int] = []
    life(tmp_path, lambda: generated(made), some(1))
    assert made == [0, 1, 2, 3]


def test_a_source_behind_a_generator_is_in_the_epoch_that_it_was(tmp_path: pathlib.Path) -> None:
    """The numbers of the epochs are set before elements are taken again."""
    sources: list[Any] = []

    def make() -> tf.data.Dataset:
        source = from_source(Counted(6), batch_size=2, seed=3)
        sources.append(source)
        pairs = tf.data.Dataset.zip((source, generated()))
        return pairs.map(lambda indices, number: (indices, number))

    def indices(iterator: Any) -> list[Any]:
        return [element[0].numpy().tolist() for element in iterator]

    dataset = make()
    list(dataset)
    second = indices(iter(dataset))
    sources.clear()

    def begun() -> tf.data.Dataset:
        dataset = make()
        list(dataset)
        return dataset

    assert (
        life(tmp_path, begun, lambda iterator: indices(iterator.__next__() for _ in range(1))) == second[:1]
    )
    assert life(tmp_path, make, indices) == second[1:]
    third = indices(iter(tf.data.Dataset.zip((sources[-1], generated()))))
    assert third not in (second, indices(iter(make())))


def test_the_cost_is_said_in_one_warning(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    life(tmp_path, generated, some(3))
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="tf_preempt"):
        life(tmp_path, generated, some(1))
    (warning,) = [one.getMessage() for one in caplog.records if WORDS in one.getMessage()]
    assert "takes all elements again" in warning
    assert "HINT: use tf_preempt.data.from_source" in warning
    assert "Data iterator '0': [3] elements are taken again and dropped." in caplog.messages


def test_a_generator_that_has_become_shorter_is_refused(tmp_path: pathlib.Path) -> None:
    life(tmp_path, generated, some(4))
    with pytest.raises(CheckpointMismatchError, match=r"ends after 2 elements; 4 had been taken.*\nHINT"):
        life(tmp_path, lambda: generated(length=2), rest)
