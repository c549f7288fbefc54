"""The order of all later epochs comes back, wherever Keras's iterator was: source by source."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from tf_preempt.callbacks._keras_internals import Epochs
from tf_preempt.callbacks.data_stream import DataStream
from tf_preempt.callbacks.resume_point import DataPlace

ROWS, EPOCHS = 6, 4


def simple() -> tf.data.Dataset:
    return tf.data.Dataset.range(ROWS).shuffle(ROWS, seed=1)


def prefetched() -> tf.data.Dataset:
    """Its iterator lets go of the shuffle long before its own end."""
    return simple().prefetch(ROWS + 2)


def nested() -> tf.data.Dataset:
    """The second shuffle's seeds advance only when the first element is taken."""
    return simple().shuffle(ROWS, seed=2)


def nested_prefetched() -> tf.data.Dataset:
    return nested().prefetch(ROWS + 2)


def batched() -> tf.data.Dataset:
    return nested().batch(2).prefetch(ROWS)


def repeated() -> tf.data.Dataset:
    """Each epoch takes its rows in two passes, with an order for each."""
    return tf.data.Dataset.range(ROWS // 2).shuffle(ROWS, seed=1).repeat(2).prefetch(ROWS + 2)


def repeated_between() -> tf.data.Dataset:
    """The first shuffle may begin its second pass in an epoch, far ahead of the step."""
    return simple().repeat(2).shuffle(2, seed=2).take(ROWS).prefetch(2)


def behind_itself() -> tf.data.Dataset:
    half = tf.data.Dataset.range(ROWS // 2).shuffle(ROWS, seed=1)
    return half.concatenate(half).prefetch(2)


def generated() -> tf.data.Dataset:
    """Its state cannot be saved."""
    signature = tf.TensorSpec((), tf.int64)
    return tf.data.Dataset.from_generator(lambda: iter(range(ROWS)), output_signature=signature)


PIPELINES = [
    simple,
    prefetched,
    nested,
    nested_prefetched,
    batched,
    repeated,
    repeated_between,
    behind_itself,
    generated,
]


class Program:
    """What Keras's `fit` does with an epoch iterator over a data set, and a stream that watches it."""

    def __init__(self, pipeline: Callable[[], Any]) -> None:
        dataset = pipeline()
        adapter = types.SimpleNamespace(on_epoch_begin=lambda: None, on_epoch_end=lambda: None)
        self.keras = types.SimpleNamespace(
            _get_iterator=lambda: dataset,
            _enumerate_iterator=None,
            _current_iterator=None,
            _steps_seen=0,
            _num_batches=int(dataset.cardinality()) if int(dataset.cardinality()) > 0 else None,
            steps_per_execution=1,
            steps_per_epoch=None,
            data_adapter=adapter,
        )
        self.epochs = Epochs(self.keras, lambda: iter(()))
        self.stream = DataStream(self.epochs, "train_data")
        self.steps = ROWS // 2 if pipeline is batched else ROWS
        self.seen: list[Any] = []

    def begin(self) -> None:
        self.iterator = self.epochs.create_iterator()
        self.epochs.keep(self.iterator)
        self.epochs.counters = (0, self.epochs.counters[1])

    def arrive(self) -> None:
        """Keras counts the step, then the boundary comes."""
        seen, batches = self.epochs.counters
        self.epochs.counters = (seen + 1, batches)
        self.stream.at_step(self.iterator)

    def take(self) -> None:
        self.seen.append(next(self.iterator).numpy().tolist())
        self.stream.step_taken()

    def end(self) -> None:
        """Keras makes the next iterator at the end of an epoch already, and never uses it."""
        self.begin()

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.arrive()
            self.take()

    def epochs_from(self, epoch: int) -> None:
        """All epochs from one on."""
        for _ in range(epoch, EPOCHS):
            self.begin()
            self.train(self.steps)
            self.end()


def undisturbed(pipeline: Callable[[], Any]) -> list[Any]:
    program = Program(pipeline)
    program.epochs_from(0)
    return program.seen


def saved_at(pipeline: Callable[[], Any], epoch: int, step: int) -> tuple[DataPlace, dict[str, Any]]:
    """The place and the tensors at the boundary before a step."""
    program = Program(pipeline)
    for _ in range(epoch):
        program.begin()
        program.train(program.steps)
        program.end()
    program.begin()
    program.train(step)
    program.arrive()
    return program.stream.take(within=True)


@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_every_step_of_an_epoch_comes_back(pipeline: Callable[[], Any], epoch: int) -> None:
    whole = undisturbed(pipeline)
    steps = Program(pipeline).steps
    for step in range(steps):
        place, tensors = saved_at(pipeline, epoch, step)
        assert place.taken == step
        program = Program(pipeline)
        program.iterator = program.stream.restore(place, tensors)
        program.epochs.keep(program.iterator)
        program.train(steps - step)
        program.end()
        program.epochs_from(epoch + 1)
        assert program.seen == whole[epoch * steps + step :], (epoch, step)


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_between_epochs(pipeline: Callable[[], Any]) -> None:
    """As in a validation: the training data's iterator has given all its elements."""
    before = Program(pipeline)
    before.begin()
    before.train(before.steps)
    before.end()
    place, tensors = before.stream.take(within=False)

    after = Program(pipeline)
    after.epochs.keep(after.stream.restore(place, tensors))
    after.epochs_from(1)
    assert after.seen == undisturbed(pipeline)[after.steps :]


def test_second_save_without_a_step_between() -> None:
    """What was restored is saved again, unchanged."""
    place, tensors = saved_at(nested_prefetched, 1, 3)
    program = Program(nested_prefetched)
    program.iterator = program.stream.restore(place, tensors)
    program.epochs.keep(program.iterator)
    program.arrive()
    again, more = program.stream.take(within=True)
    assert again == place
    assert more.keys() == tensors.keys()


@pytest.mark.parametrize("pipeline", [batched, repeated, repeated_between, behind_itself])
def test_second_save_after_some_steps(pipeline: Callable[[], Any]) -> None:
    whole = undisturbed(pipeline)
    steps = Program(pipeline).steps
    place, tensors = saved_at(pipeline, 1, 1)
    for step in range(2, steps):
        program = Program(pipeline)
        program.iterator = program.stream.restore(place, tensors)
        program.epochs.keep(program.iterator)
        program.train(1)
        program.arrive()
        place, tensors = program.stream.take(within=True)
        assert place.taken == step
    last = Program(pipeline)
    last.iterator = last.stream.restore(place, tensors)
    last.epochs.keep(last.iterator)
    last.train(1)
    last.end()
    last.epochs_from(2)
    assert last.seen == whole[2 * steps - 1 :]


def test_shared_shuffle_is_seen() -> None:
    source = simple()
    one, other = Program(lambda: source.take(3)).stream, Program(lambda: source.skip(3)).stream
    alone = Program(lambda: simple().take(3)).stream
    assert one.shares_shuffle_with(other)
    assert not one.shares_shuffle_with(alone)


def test_unused_iterators_advance_the_seeds() -> None:
    """Under a strategy Keras takes one element before each validation."""
    first, second = Program(nested), Program(nested)
    first.begin()
    first.begin()
    next(first.iterator)
    first.begin()
    second.begin()
    second.stream.draw_unused(None, 0, draws=False)
    second.begin()
    assert next(first.iterator).numpy() == next(second.iterator).numpy()
    assert second.epochs.creations == 3
