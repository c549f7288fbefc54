"""A custom loop that was saved at the end of an epoch goes through the next ones in the order of before."""

from __future__ import annotations

import logging
import pathlib
from collections.abc import Callable

import pytest
import tensorflow as tf

from tf_preempt.checkpointing.handler import PreemptionCheckpointHandler

ROWS = 12


def shuffled() -> tf.data.Dataset:
    return tf.data.Dataset.range(ROWS).shuffle(ROWS, seed=3)


PIPELINES: dict[str, Callable[[], tf.data.Dataset]] = {
    "shuffle": shuffled,
    "shuffle, batch, prefetch": lambda: shuffled().batch(4).prefetch(2).unbatch(),
    "unknown length": lambda: shuffled().filter(lambda row: row >= 0),
    "order fixed": lambda: tf.data.Dataset.range(ROWS).shuffle(ROWS, seed=3, reshuffle_each_iteration=False),
    "no shuffle": lambda: tf.data.Dataset.range(ROWS),
}


def life(
    directory: pathlib.Path, pipeline: Callable[[], tf.data.Dataset], first: int, last: int
) -> list[list[int]]:
    """Goes through epochs `first` to `last` with a new iterator for each; returns their orders."""
    checkpoint = tf.train.Checkpoint(variable=tf.Variable(0.0))
    handler = PreemptionCheckpointHandler(None, checkpoint, directory, save_every=None, verbose=0)
    try:
        dataset, orders = pipeline(), []
        iterator = handler.track(iter(dataset), "train")
        for epoch in range(first, last):
            if epoch > 0:
                iterator = handler.track(iter(dataset), "train")
            orders.append([int(row) for row in iterator])
        handler.finish()
    finally:
        handler.close()
    return orders


@pytest.mark.parametrize("pipeline", PIPELINES.values(), ids=PIPELINES)
@pytest.mark.parametrize("ends", [(1, 4), (2, 4), (1, 2, 3, 4)], ids=str)
def test_epochs_after_the_end_of_one(
    tmp_path: pathlib.Path,
    caplog: pytest.LogCaptureFixture,
    pipeline: Callable[[], tf.data.Dataset],
    ends: tuple[int, ...],
) -> None:
    whole = life(tmp_path / "whole", pipeline, 0, 4)
    with caplog.at_level(logging.WARNING, logger="tf_preempt"):
        lives = [
            life(tmp_path / "lives", pipeline, *some) for some in zip((0, *ends[:-1]), ends, strict=True)
        ]
    assert [order for one in lives for order in one] == whole
    assert all(sorted(order) == list(range(ROWS)) for order in whole)
    assert "several shuffles" not in caplog.text


def test_epochs_of_a_shuffle_differ(tmp_path: pathlib.Path) -> None:
    """Otherwise the test above would say nothing."""
    whole = life(tmp_path, shuffled, 0, 4)
    assert len({tuple(order) for order in whole}) == 4


@pytest.mark.parametrize(
    "pipeline",
    [lambda: shuffled().shuffle(4, seed=5), lambda: shuffled().repeat(2).batch(2).unbatch()],
    ids=["shuffle behind shuffle", "repeat behind shuffle"],
)
def test_seeds_that_are_lost_are_warned_of_once(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture, pipeline: Callable[[], tf.data.Dataset]
) -> None:
    life(tmp_path, pipeline, 0, 1)
    with caplog.at_level(logging.WARNING, logger="tf_preempt"):
        life(tmp_path, pipeline, 1, 3)
    (warned,) = [message for message in caplog.messages if "several shuffles" in message]
    assert "Data iterator 'train'" in warned
    assert "HINT: one shuffle" in warned
