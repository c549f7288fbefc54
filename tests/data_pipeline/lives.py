"""Iterators that are saved after each step and gone on from in a data set made anew."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tf_preempt.checkpointing.iterator_state import set_position, take_position

EPOCHS = 2


def values(element: Any) -> Any:
    """An element as lists of Python."""
    return tf.nest.map_structure(lambda tensor: tensor.numpy().tolist(), element)


def epochs_of(dataset: Any, epochs: int) -> Iterator[Any]:
    """The elements of some epochs, each of an iterator of its own."""
    for _ in range(epochs):
        yield from dataset


def undisturbed(make: Callable[[], Any], *, show: Callable[[Any], Any] = values) -> list[list[Any]]:
    """All elements, by epoch."""
    dataset = make()
    return [[show(element) for element in dataset] for _ in range(EPOCHS)]


def saved_after(make: Callable[[], Any], epoch: int, step: int) -> dict[str, Any]:
    """The position of the running iterator after so many steps of an epoch, epochs and steps from 0."""
    dataset = make()
    for _ in range(epoch):
        collections.deque(dataset, maxlen=0)
    iterator = iter(dataset)
    for _ in range(step):
        next(iterator)
    position = take_position(iterator, "train")
    assert position is not None
    return position


def resumed(
    make: Callable[[], Any],
    position: dict[str, Any],
    *,
    epochs_after: int,
    show: Callable[[Any], Any] = values,
) -> list[list[Any]]:
    """What a new process sees: the rest of the epoch, and all of those after it."""
    dataset = make()
    iterator = iter(dataset)
    assert set_position(iterator, "train", position)
    rest = [[show(element) for element in iterator]]
    return rest + [[show(element) for element in dataset] for _ in range(epochs_after)]


def assert_every_step_resumes(make: Callable[[], Any], *, show: Callable[[Any], Any] = values) -> None:
    """Goes on from each step of two epochs, in the undisturbed order."""
    whole = undisturbed(make, show=show)
    steps = len(whole[0])
    assert steps > 1
    for epoch in range(EPOCHS):
        for step in range(steps + 1):
            after = resumed(make, saved_after(make, epoch, step), epochs_after=EPOCHS - 1 - epoch, show=show)
            assert after == [whole[epoch][step:], *whole[epoch + 1 :]], (epoch, step)


def assert_each_once(epochs: list[list[Any]], examples: int) -> None:
    """Each example is in each epoch once; elements are lists of indices."""
    for epoch in epochs:
        counted = collections.Counter(index for batch in epoch for index in batch)
        assert counted == dict.fromkeys(range(examples), 1)
