"""Iterators that nobody needs any more hold nobody up, though their end may have to wait."""

from __future__ import annotations

import gc
import pathlib
import threading
import types
import weakref
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_preempt
from tf_preempt.callbacks.second_passes import SecondPasses
from tf_preempt.checkpointing import old_iterators
from tf_preempt.checkpointing.old_iterators import delete_in_background

TIMEOUT_S = 20.0


class Stuck:
    """An attribute that keeps what has it from being deleted, until it is told."""

    def __init__(self) -> None:
        self.may_go = threading.Event()

    def __del__(self) -> None:
        self.may_go.wait(TIMEOUT_S)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == old_iterators.THREAD_NAME]


def wait_for_threads() -> None:
    for thread in threads():
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()


def test_an_iterator_whose_end_has_to_wait_is_deleted_in_another_thread() -> None:
    stuck = Stuck()
    may_go, box = stuck.may_go, [types.SimpleNamespace(stuck=stuck)]
    del stuck
    delete_in_background(box)
    (thread,) = threads()
    assert thread.is_alive()
    may_go.set()
    wait_for_threads()
    assert box == []


def test_who_still_has_the_iterator_for_a_moment_does_not_get_to_delete_it() -> None:
    class Thing:
        pass

    deleted_in = list[threading.Thread]()
    thing = Thing()
    weakref.finalize(thing, lambda: deleted_in.append(threading.current_thread()))
    delete_in_background([thing])
    (thread,) = threads()
    del thing
    wait_for_threads()
    assert deleted_in == [thread]


def test_nothing_is_started_for_nothing() -> None:
    delete_in_background([None])
    delete_in_background([])
    assert threads() == []


def test_a_loop_goes_on_while_the_iterator_of_the_epoch_before_cannot_be_deleted(
    tmp_path: pathlib.Path,
) -> None:
    dataset = tf.data.Dataset.range(2)
    checkpoint = tf.train.Checkpoint(number=tf.Variable(0))
    handler = tf_preempt.PreemptionCheckpointHandler(None, checkpoint, tmp_path, save_every=None, verbose=0)
    seen = []
    with handler.watch_preemption_scope():
        iterator = handler.track(iter(dataset), "train")
        iterator.stuck = Stuck()
        may_go = iterator.stuck.may_go
        for number in handler.steps(4):
            if number == 2:
                iterator = handler.track(iter(dataset), "train")
            seen.append(int(handler.run(lambda row: row, next(iterator))))
    (thread,) = threads()
    assert thread.is_alive()
    assert seen == [0, 1, 0, 1]
    may_go.set()
    wait_for_threads()


@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # its length is not known before its end
@pytest.mark.parametrize("data", ["tf.data", "from_arrays", "from_generator"])
@pytest.mark.parametrize("kind", ["fit", "loop"])
def test_the_iterator_of_an_epoch_ends_in_the_background_without_a_collection(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, kind: str, data: str
) -> None:
    """What is in a cycle would be deleted by the garbage collector, in the main thread and at any time."""
    deleted_in: list[str] = []
    delete = old_iterators._delete

    def watched(box: list[Any]) -> None:
        for one in box:
            weakref.finalize(one, lambda: deleted_in.append(threading.current_thread().name))
        del one
        delete(box)

    monkeypatch.setattr(old_iterators, "_delete", watched)
    x, y = np.ones((8, 1), np.float32), np.ones((8, 1), np.float32)
    dataset = {
        "tf.data": lambda: tf.data.Dataset.from_tensor_slices((x, y)).batch(2),
        "from_arrays": lambda: tf_preempt.data.from_arrays(x, y, batch_size=2, seed=1),
        "from_generator": lambda: tf.data.Dataset.from_generator(
            lambda: ((x[:2], y[:2]) for _ in range(4)),
            output_signature=(tf.TensorSpec((2, 1), tf.float32), tf.TensorSpec((2, 1), tf.float32)),
        ),
    }[data]()
    gc.collect()
    gc.disable()
    try:
        if kind == "fit":
            fit(dataset, tmp_path)
        else:
            loop(dataset, tmp_path)
        wait_for_threads()
    finally:
        gc.enable()
    assert deleted_in == [old_iterators.THREAD_NAME] * 2


def test_what_is_known_of_second_passes_holds_no_iterator() -> None:
    passes = SecondPasses("train", shuffles=1)
    iterator = iter(tf.data.Dataset.range(4).shuffle(4, seed=1).repeat(2))
    passes.at_step(iterator)
    passes.step_taken(1)
    assert passes.take(iterator, is_begun=True)[:2] == (1, False)
    is_there = weakref.ref(iterator)
    del iterator
    assert is_there() is None


def fit(dataset: Any, directory: pathlib.Path) -> None:
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    callback = tf_preempt.callbacks.PreemptionCheckpoint(directory, save_every=None, verbose=0)
    model.fit(dataset, epochs=3, verbose=0, shuffle=False, callbacks=[callback])


def loop(dataset: Any, directory: pathlib.Path) -> None:
    checkpoint = tf.train.Checkpoint(number=tf.Variable(0))
    handler = tf_preempt.PreemptionCheckpointHandler(None, checkpoint, directory, save_every=None, verbose=0)
    with handler.watch_preemption_scope():
        iterator = None
        for number in handler.steps(12):
            if number % 4 == 0:
                iterator = handler.track(iter(dataset), "train")
            handler.run(lambda batch: batch, next(iterator))
