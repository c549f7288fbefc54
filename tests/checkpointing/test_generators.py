"""Generators that no checkpoint reaches; programs that use them are in tests/callbacks/test_randomness.py."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_preempt.checkpointing.generators import Generators, held_generators
from tf_preempt.checkpointing.handler import PreemptionCheckpointHandler
from tf_preempt.checkpointing.random_state import set_random_state, take_random_state
from tf_preempt.strategies import _tf_internals

STATEFUL = importlib.import_module("tensorflow.python.ops.stateful_random_ops")


@pytest.fixture(autouse=True)
def _no_global_generators(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a new process; and what the tests make is gone after them."""
    before = take_random_state()
    keras.utils.set_random_seed(1)  # Keras's generator is gone
    monkeypatch.setattr(STATEFUL, "global_generator", None)
    yield
    keras.utils.set_random_seed(1)
    set_random_state(before)


class Helper:
    """An object of a user's program that Keras and TensorFlow know nothing of."""

    def __init__(self, generator: Any) -> None:
        self.generator = generator


def tensorflow_generator() -> Any:
    return tf.random.Generator.from_seed(3)


def seed_generator() -> Any:
    return keras.random.SeedGenerator(3)


HOLDERS = {
    "attribute": lambda generator: generator,
    "list": lambda generator: [None, generator],
    "dict": lambda generator: {"noise": generator},
    "object": Helper,
    "object in a list": lambda generator: [Helper(generator)],
}


class Holder(keras.layers.Layer):
    def __init__(self, held: Any) -> None:
        super().__init__()
        self.held = held


def draw(generator: Any) -> list[float]:
    if isinstance(generator, tf.random.Generator):
        return [float(value) for value in generator.uniform((2,))]
    return [float(value) for value in keras.random.uniform((2,), seed=generator)]


def life(directory: Path, held: Any, generator: Any) -> list[float]:
    """Draws, saves, and draws again, as one life of a custom loop."""
    checkpoint = tf.train.Checkpoint(layer=Holder(held))
    handler = PreemptionCheckpointHandler(None, checkpoint, directory, save_every=None)
    try:
        drawn = draw(generator)
        handler.finish()
        return drawn + draw(generator)
    finally:
        handler.close()


@pytest.mark.parametrize("make", [tensorflow_generator, seed_generator])
@pytest.mark.parametrize("holder", HOLDERS)
def test_generator_on_a_layer_goes_on_wherever_it_hangs(tmp_path: Path, holder: str, make: Any) -> None:
    first, second = make(), make()
    drawn = life(tmp_path, HOLDERS[holder](first), first)
    assert draw(make()) == drawn[:2]
    assert life(tmp_path, HOLDERS[holder](second), second)[:2] == drawn[2:]


@pytest.mark.parametrize("holder", ["list", "object"])
def test_each_generator_is_held_once(holder: str) -> None:
    """What TensorFlow or Keras saves by itself is left to them."""
    layer = Holder(HOLDERS[holder](tensorflow_generator()))
    layer.same = layer.held
    layer.tracked = tensorflow_generator()
    layer.seeds = seed_generator()
    checkpoint = tf.train.Checkpoint(layer=layer)
    assert len(held_generators(checkpoint, known=layer.variables)) == 1


def test_generators_of_two_replicas() -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        layer = Holder([tensorflow_generator()])
    generators = Generators(tf.train.Checkpoint(layer=layer))
    strategy.run(lambda: layer.held[0].uniform(()))
    saved = generators.take()
    before = layer.held[0].state.numpy()
    strategy.run(lambda: layer.held[0].uniform(()))
    generators.restore(saved)
    assert layer.held[0].state.numpy().tolist() == before.tolist()


def global_draws() -> list[float]:
    numbers = [keras.random.uniform(()), tf.random.uniform(()), tf.random.get_global_generator().uniform(())]
    return [float(number) for number in numbers]


@pytest.mark.parametrize("made_before", [True, False])
def test_generators_of_the_process_go_on(made_before: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the new process has not made them yet when it restores."""
    generators = Generators(tf.train.Checkpoint())
    global_draws()
    tensors, state = generators.take(), take_random_state()
    expected = global_draws()

    keras.utils.set_random_seed(1)
    monkeypatch.setattr(STATEFUL, "global_generator", None)
    if made_before:
        global_draws()
    generators.restore(tensors)
    set_random_state(state)
    assert global_draws() == expected


@pytest.mark.parametrize("algorithm", ["philox", "threefry"])
def test_global_generator_keeps_its_algorithm(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tf.random.Generator.from_seed(5, alg=algorithm)
    tf.random.set_global_generator(made)
    generators = Generators(tf.train.Checkpoint())
    tensors = generators.take()
    monkeypatch.setattr(STATEFUL, "global_generator", None)
    generators.restore(tensors)
    found = tf.random.get_global_generator()
    assert (found.algorithm, found.state.numpy().tolist()) == (made.algorithm, made.state.numpy().tolist())


def test_taking_makes_no_generator() -> None:
    assert Generators(tf.train.Checkpoint()).take() == {}
    assert _tf_internals.keras_global_generator() is None
    assert _tf_internals.tensorflow_global_generator() is None


def test_generator_that_is_gone_is_said_with_its_place(caplog: pytest.LogCaptureFixture) -> None:
    saved = Generators(tf.train.Checkpoint(layer=Holder([tensorflow_generator()]))).take()
    with caplog.at_level(logging.WARNING, "tf_preempt"):
        Generators(tf.train.Checkpoint(layer=Holder([]))).restore(saved)
    (message,) = caplog.messages
    assert "/layer.held[0]" in message
    assert "HINT" in message


def test_large_containers_are_data_and_not_looked_into() -> None:
    layer = Holder([np.float32(0)] * 2000 + [tensorflow_generator()])
    assert held_generators(tf.train.Checkpoint(layer=layer)) == {}
