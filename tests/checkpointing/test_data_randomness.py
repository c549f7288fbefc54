"""What a pipeline keeps outside of its iterator, in words; and that the words are true."""

from __future__ import annotations

import inspect
import logging
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from tests.callbacks import lives
from tests.callbacks.lives import Program, assert_identical
from tf_preempt.callbacks import PreemptionCheckpoint
from tf_preempt.checkpointing.data_randomness import (
    describe_outside,
    warn_of_lost_cache,
    warn_of_unseeded_order,
)
from tf_preempt.checkpointing.handler import PreemptionCheckpointHandler
from tf_preempt.checkpointing.random_state import set_random_state, take_random_state
from tf_preempt.data import from_arrays

WORDS = "cannot be saved: the pipeline holds"
EXACT = "exact, for random ops with a seed draw the same numbers again"
DEPENDS = "exact only if the pipeline gives the same elements each time"


@pytest.fixture(autouse=True)
def _own_random_state() -> Iterator[None]:
    before = take_random_state()
    yield
    keras.utils.set_random_seed(1)
    set_random_state(before)


def noisy(x: Any) -> Any:
    return tf.cast(x, tf.float32) + tf.random.uniform((), seed=3)


def unseeded(x: Any) -> Any:
    return tf.cast(x, tf.float32) + tf.random.normal(())


def in_python(x: Any) -> Any:
    return tf.py_function(lambda x: x, [x], tf.int64)


def line_of(function: Callable[..., Any]) -> str:
    return f"test_data_randomness.py:{inspect.getsourcelines(function)[1] + 1}"


RANGE = tf.data.Dataset.range
PIPELINES: dict[str, tuple[Callable[[], Any], str, str, str]] = {
    "random op with a seed": (
        lambda: RANGE(4).map(noisy),
        f"a stateful random op (RandomUniform at {line_of(noisy)})",
        EXACT,
        "tf.random.stateless_uniform",
    ),
    "random op without": (
        lambda: RANGE(4).map(unseeded),
        f"a stateful random op (RandomStandardNormal at {line_of(unseeded)})",
        "not exact, for RandomStandardNormal without a seed",
        "tf.random.stateless_normal",
    ),
    "random op behind a shuffle without a seed": (
        lambda: RANGE(4).shuffle(4).map(noisy),
        f"a stateful random op (RandomUniform at {line_of(noisy)})",
        "not exact, for shuffle without a seed",
        "give shuffles a seed",
    ),
    "Python function": (
        lambda: RANGE(4).map(in_python),
        f"a Python generator or function (EagerPyFunc at {line_of(in_python)})",
        DEPENDS,
        "tf_preempt.data.from_source",
    ),
    "both": (
        lambda: RANGE(4).map(in_python).map(noisy),
        "a stateful random op (RandomUniform at",
        DEPENDS,
        "tf.random.stateless_uniform",
    ),
    "generator": (
        lambda: tf.data.Dataset.from_generator(
            lambda: iter(range(3)), output_signature=tf.TensorSpec((), tf.int64)
        ),
        "a Python generator or function (",
        DEPENDS,
        "tf_preempt.data.from_source",
    ),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_what_is_kept_and_what_a_resume_makes_of_it(name: str) -> None:
    tf.random.set_seed(None)
    make, holds, result, hint = PIPELINES[name]
    outside = describe_outside(iter(make()))
    assert outside.holds.startswith(holds)
    assert outside.result.startswith(result)
    assert hint in outside.hint


def test_generator_has_one_cure() -> None:
    make = PIPELINES["generator"][0]
    assert describe_outside(iter(make())).hint == (
        "use tf_preempt.data.from_source in place of from_generator, and tf.data transformations in place of "
        "Python functions"
    )


def test_seed_of_the_program_is_a_seed() -> None:
    tf.random.set_seed(1)
    assert describe_outside(iter(RANGE(4).shuffle(4).map(unseeded))).result == EXACT


def test_arrays_shuffled_by_fit_have_their_cure() -> None:
    tf.random.set_seed(1)
    outside = describe_outside(iter(RANGE(4).map(lambda x: tf.random.shuffle(tf.range(3)))))
    assert "RandomShuffle" in outside.holds
    assert "in place of fit(x, y, shuffle=True)" in outside.hint


def test_resume_of_random_ops_with_a_seed_is_exact_as_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def data() -> dict[str, Any]:
        return {"x": lives.pipeline().map(lambda x, y: (x + tf.random.uniform((3,)), y))}

    program = Program(data=data)
    assert_identical(program.run_interrupted(tmp_path / "lives"), program.run(tmp_path / "whole"))
    said = [message for message in caplog.messages if WORDS in message]
    assert said
    assert all(EXACT in message for message in said)


class Seen(keras.callbacks.Callback):
    """Reads what the model sees: the sum of each batch."""

    def __init__(self, sums: list[float]) -> None:
        super().__init__()
        self._sums = sums

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._sums.append(float(self.model.seen.numpy()))


class Seeing(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.seen = tf.Variable(0.0, trainable=False)

    def call(self, x: Any) -> Any:
        self.seen.assign(tf.reduce_sum(x))
        return self.dense(x)


SAVED = lives.STEPS + 2


class Copy(keras.callbacks.Callback):
    """Copies the checkpoints at the end of the second epoch, and lets the training go on."""

    def __init__(self, source: Path, target: Path) -> None:
        super().__init__()
        self._source, self._target = source, target

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1:
            while not (self._source / "ckpt-1.manifest.json").exists():
                threading.Event().wait(0.05)
            shutil.copytree(self._source, self._target)


@pytest.mark.parametrize("shuffles", [1, 2])
def test_shuffle_without_a_seed_finishes_the_epoch_and_then_orders_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, shuffles: int
) -> None:
    """As the warning says; and no example comes twice."""
    tf.random.set_seed(None)

    def train(directory: Path, *more: Any) -> list[float]:
        sums: list[float] = []
        data = tf.data.Dataset.from_tensor_slices(lives.arrays())
        for _ in range(shuffles):
            data = data.shuffle(lives.ROWS)
        model = Seeing()
        model.compile("sgd", "mse")
        ours = PreemptionCheckpoint(directory, save_every=SAVED, max_to_keep=None)
        callbacks = [ours, Seen(sums), *more]
        model.fit(data.batch(lives.BATCH), epochs=3, verbose=0, shuffle=False, callbacks=callbacks)
        return sums

    uninterrupted = train(tmp_path / "run", Copy(tmp_path / "run", tmp_path / "copy"))
    lives.new_process(monkeypatch)
    resumed = train(tmp_path / "copy")
    assert len(resumed) == 3 * lives.STEPS - SAVED
    left = 2 * lives.STEPS - SAVED
    assert resumed[:left] == uninterrupted[SAVED : 2 * lives.STEPS]
    assert resumed[left:] != uninterrupted[2 * lives.STEPS :]
    assert sum(resumed[left:]) == pytest.approx(float(lives.arrays()[0].sum()))
    said = [message for message in caplog.messages if "shuffled without a seed" in message]
    assert len(said) == 2  # in each life
    assert "Dataset.shuffle(..., seed=1)" in said[0]


@pytest.mark.parametrize(("program_seed", "seed"), [(1, None), (None, 1)])
def test_shuffle_with_a_seed_is_not_warned_of(
    caplog: pytest.LogCaptureFixture, program_seed: int | None, seed: int | None
) -> None:
    tf.random.set_seed(program_seed)
    with caplog.at_level(logging.WARNING, "tf_preempt"):
        warn_of_unseeded_order(iter(RANGE(4).shuffle(4, seed=seed)), "training")
    assert not caplog.messages


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: RANGE(4).map(unseeded), f"RandomStandardNormal at {line_of(unseeded)}"),
        (lambda: RANGE(4).shuffle(4), "The tracked 'train' data is shuffled without a seed"),
    ],
)
def test_a_custom_loop_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, make: Callable[[], Any], words: str
) -> None:
    tf.random.set_seed(None)
    checkpoint = tf.train.Checkpoint(variable=tf.Variable(0.0))
    handler = PreemptionCheckpointHandler(None, checkpoint, tmp_path, save_every=None)
    try:
        with caplog.at_level(logging.WARNING, "tf_preempt"):
            handler.track(iter(make()), "train")
    finally:
        handler.close()
    (message,) = caplog.messages
    assert words in message


LOST_CACHE = "data has a cache in memory between a shuffle and what gives other elements in each epoch"


def noise() -> Callable[[Any, Any], Any]:
    generator = tf.random.Generator.from_seed(1)
    return lambda x, y: (x + generator.normal(tf.shape(x)), y)


def with_generator() -> tf.data.Dataset:
    return lives.pipeline().map(noise())


def with_random_layer() -> tf.data.Dataset:
    layer = keras.layers.GaussianNoise(0.5, seed=1)
    return lives.pipeline().map(lambda x, y: (layer(x, training=True), y))


def with_constant_layer() -> tf.data.Dataset:
    layer = keras.layers.Normalization(mean=0.5, variance=2.0)
    table = tf.Variable([2.0])
    return lives.pipeline().map(lambda x, y: (layer(x) * table, y))


def ordered_by_number() -> tf.data.Dataset:
    x, y = lives.arrays()
    return from_arrays(x, y, batch_size=lives.BATCH, seed=1)


def shuffled(dataset: tf.data.Dataset) -> tf.data.Dataset:
    return dataset.shuffle(lives.STEPS, seed=2)


CACHES: dict[str, tuple[Callable[[Path], Any], bool]] = {
    "generator": (lambda _: shuffled(with_generator().cache()), True),
    "random layer": (lambda _: shuffled(with_random_layer().cache()), True),
    "an epoch's number": (lambda _: shuffled(ordered_by_number().cache()), True),
    "more between and behind": (lambda _: shuffled(with_generator().cache().prefetch(1)).prefetch(1), True),
    "three times": (lambda _: shuffled(with_generator().cache().repeat(3)), True),
    "without end": (lambda _: shuffled(with_generator().cache().repeat()), False),
    "cached in a file": (lambda path: shuffled(with_generator().cache(str(path / "cache"))), False),
    "cached below what draws": (lambda _: shuffled(lives.pipeline().cache().map(noise())), False),
    "shuffled below the cache": (lambda _: shuffled(with_generator()).cache(), False),
    "no shuffle": (lambda _: with_generator().cache(), False),
    "no cache": (lambda _: shuffled(with_generator()), False),
    "the same in each epoch": (lambda _: shuffled(lives.pipeline().cache()), False),
    "variables that are only read": (lambda _: shuffled(with_constant_layer().cache()), False),
}


@pytest.mark.parametrize("name", CACHES)
def test_a_cache_that_a_resume_fills_with_other_elements_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    make, is_lost = CACHES[name]
    with caplog.at_level(logging.WARNING, "tf_preempt"):
        warn_of_lost_cache(iter(make(tmp_path)), "training")
    assert [LOST_CACHE in message for message in caplog.messages] == [True] * is_lost


def test_fit_says_once_that_a_cache_is_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    program = Program(data=lambda: {"x": shuffled(with_generator().cache())})
    program.run(tmp_path)
    (said,) = [message for message in caplog.messages if LOST_CACHE in message]
    assert said.startswith("The training data")
    assert "HINT: cache before what draws random numbers" in said


def test_a_loop_is_told_once_that_a_cache_is_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoint = tf.train.Checkpoint(variable=tf.Variable(0.0))
    handler = PreemptionCheckpointHandler(None, checkpoint, tmp_path, save_every=None)
    data = shuffled(with_generator().cache())
    try:
        for _ in range(2):
            handler.track(iter(data), "train")
    finally:
        handler.close()
    (said,) = [message for message in caplog.messages if LOST_CACHE in message]
    assert said.startswith("The tracked 'train' data")
