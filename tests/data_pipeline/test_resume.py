"""Each kind of data set goes on after every step of two epochs, and holds each example once per epoch."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.data_pipeline import lives
from tests.data_pipeline.sources import Batched, Counted, Pairs
from tf_preempt.checkpointing import iterator_state
from tf_preempt.checkpointing.iterator_state import set_position, take_position
from tf_preempt.data import from_arrays, from_source
from tf_preempt.errors import CheckpointMismatchError, ConfigError

EXAMPLES, BATCH = 8, 3
RANGE = np.arange(EXAMPLES)


def arrays(**options: Any) -> tf.data.Dataset:
    return from_arrays(RANGE, batch_size=BATCH, seed=5, **options)


def source(**options: Any) -> tf.data.Dataset:
    return from_source(Counted(EXAMPLES), batch_size=BATCH, seed=5, **options)


def augment(indices: tf.Tensor) -> tf.Tensor:
    return indices + 0


PIPELINES: dict[str, Callable[[], Any]] = {
    "arrays": arrays,
    "source": source,
    "source of batches": lambda: from_source(Batched(EXAMPLES), batch_size=BATCH, seed=5),
    "in order": lambda: source(shuffle=False),
    "one batch": lambda: from_source(Counted(4), batch_size=2, seed=1),
    "mapped": lambda: source().map(augment),
    "mapped in parallel": lambda: source().map(augment, num_parallel_calls=3),
    "prefetched": lambda: arrays().prefetch(2),
    "prefetched to the end": lambda: source().prefetch(EXAMPLES),
    "batched anew": lambda: source().unbatch().batch(2).prefetch(1),
    "shuffled once more": lambda: source().shuffle(3, seed=2).prefetch(1),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_every_step_of_two_epochs_resumes_and_has_each_example_once(name: str) -> None:
    make = PIPELINES[name]
    whole = lives.undisturbed(make)
    lives.assert_each_once(whole, 4 if name == "one batch" else EXAMPLES)
    lives.assert_every_step_resumes(make)


@pytest.mark.parametrize(
    "make",
    [
        lambda: source().repeat(lives.EPOCHS),
        lambda: source().repeat(lives.EPOCHS).prefetch(7),
        lambda: arrays().prefetch(5).repeat(lives.EPOCHS).prefetch(2),
    ],
    ids=["repeated", "prefetched over the end of an epoch", "prefetched twice"],
)
def test_every_step_of_a_repeated_data_set_resumes(make: Callable[[], Any]) -> None:
    """A prefetch begins the next epoch while the last one's elements are still to come."""
    (whole,) = [[lives.values(element) for element in make()]]
    steps = len(whole) // lives.EPOCHS
    epochs = [whole[epoch * steps : (epoch + 1) * steps] for epoch in range(lives.EPOCHS)]
    lives.assert_each_once(epochs, EXAMPLES)
    assert epochs == lives.undisturbed(source)
    lives.assert_every_step_resumes(make)


def test_structures_come_back() -> None:
    lives.assert_every_step_resumes(lambda: from_source(Pairs(5), batch_size=2, seed=5).prefetch(1))


def test_arrays_and_source_have_one_order() -> None:
    assert lives.undisturbed(arrays) == lives.undisturbed(source)


def test_the_order_follows_from_seed_and_epoch_alone() -> None:
    first, second = lives.undisturbed(source)
    assert first != second
    other = [lives.values(element) for element in from_source(Counted(EXAMPLES), batch_size=BATCH, seed=6)]
    assert other not in (first, second)
    begun = source()
    next(iter(begun))  # an epoch that is left after its first batch is begun
    assert [lives.values(element) for element in begun] == second
    iter(begun)  # nothing was asked of it
    third = [lives.values(element) for element in begun]
    assert third not in (first, second)
    assert third == list(map(lives.values, lives.epochs_of(source(), 3)))[2 * len(first) :]


def test_two_sources_in_one_pipeline() -> None:
    lives.assert_every_step_resumes(
        lambda: tf.data.Dataset.zip((source(), from_source(Counted(9), batch_size=2, seed=1))).prefetch(2)
    )


def test_a_data_set_outlives_keras_clear_session() -> None:
    """It replaces the default graph, to which TensorFlow ties Python functions."""
    import keras

    dataset = source()
    keras.backend.clear_session()
    gc.collect()
    assert [lives.values(element) for element in dataset] == lives.undisturbed(source)[0]


@tf.function
def _skip(iterator: Any, steps: tf.Tensor) -> None:
    for _ in tf.range(steps):
        next(iterator)


@pytest.mark.parametrize(
    "step", [1, 20_000, pytest.param(1_000_000, marks=[pytest.mark.exhaustive, pytest.mark.timeout(600)])]
)
def test_a_late_step_costs_what_an_early_one_does(step: int) -> None:
    """Counted in items that are read, and in bytes of the position."""
    length = 2_000_000
    dataset = from_source(Counted(length), batch_size=1, seed=3)
    iterator = iter(dataset)
    _skip(iterator, tf.constant(step))
    position = take_position(iterator, "train")
    assert position is not None
    expected = [int(next(iterator)[0]) for _ in range(3)]

    long = Counted(length)
    iterator = iter(from_source(long, batch_size=1, seed=3))
    long.read.clear()
    assert set_position(iterator, "train", position)
    assert [int(next(iterator)[0]) for _ in range(3)] == expected
    assert long.read == expected
    size = sum(len(tf.io.serialize_tensor(part).numpy()) for part in tf.unstack(position["train/0"]))
    assert size < 2000


def test_nothing_that_was_read_is_in_the_state() -> None:
    """A million numbers per example."""
    large = np.zeros((8, 1_000_000), "float32")
    iterator = iter(from_source(large, batch_size=2, seed=1))
    next(iterator)
    position = take_position(iterator, "train")
    assert position is not None
    assert sum(len(tf.io.serialize_tensor(part).numpy()) for part in tf.unstack(position["train/0"])) < 2000


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (lambda: from_source(Counted(EXAMPLES), batch_size=BATCH, seed=6), "seed=5.*seed=6"),
        (lambda: from_source(Counted(EXAMPLES), batch_size=4, seed=5), "batch_size=3.*batch_size=4"),
        (lambda: from_source(Counted(12), batch_size=BATCH, seed=5), "8 examples.*12 examples"),
        (lambda: source(shuffle=False), "seed=5.*shuffle=False"),
        (lambda: source(drop_remainder=True), "drop_remainder=True"),
        (lambda: tf.data.Dataset.range(1).scan(np.int64(0), lambda e, i: (e, i[None])), "now made with none"),
    ],
)
def test_another_order_than_the_saved_one_is_refused(other: Callable[[], Any], words: str) -> None:
    position = lives.saved_after(source, 0, 1)
    del position["train/0"]
    iterator = iter(other())
    position["train/0"] = (take_position(iterator, "train") or {})["train/0"]
    with pytest.raises(CheckpointMismatchError, match=f"(?s){words}.*HINT"):
        set_position(iterator, "train", position)


def test_symbolic_checkpoints_are_refused() -> None:
    """With them, what was read ahead is read again, and would be an epoch further."""
    options = tf.data.Options()
    options.experimental_symbolic_checkpoint = True
    with pytest.raises(ConfigError, match=r"experimental_symbolic_checkpoint.*\nHINT"):
        take_position(iter(source().with_options(options)), "train")


def test_a_position_waits_for_what_is_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between number and state an epoch begins: then the state has it, and the number would not."""
    dataset = source()
    iterator = iter(dataset)
    next(iterator)
    take_state = iterator_state._take_state
    states: list[Any] = []

    def take(*arguments: Any) -> Any:
        states.append(take_state(*arguments))
        if len(states) == 1:
            next(iter(dataset))
        return states[-1]

    monkeypatch.setattr(iterator_state, "_take_state", take)
    position = take_position(iterator, "train")
    assert position is not None
    assert len(states) == 2
    assert position["train/epochs"].numpy()[0, 0] == 2
