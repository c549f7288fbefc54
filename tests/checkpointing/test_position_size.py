"""A position that weighs much is said once, with the cure."""

from __future__ import annotations

import logging
import pathlib
import re
from typing import Any

import pytest
import tensorflow as tf

from tf_preempt.checkpointing import position_size
from tf_preempt.checkpointing.handler import PreemptionCheckpointHandler
from tf_preempt.data import from_source

ROW = tf.zeros([1_000_000])


@pytest.fixture(autouse=True)
def _nobody_has_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(position_size, "_looked", False)


def shuffled(buffer: int, numbers: int = 1_000_000) -> tf.data.Dataset:
    """Each element weighs 4 MB, of numbers that cannot be compressed, as TensorFlow does with others."""
    rows = tf.data.Dataset.range(9).map(
        lambda row: tf.random.stateless_uniform([numbers], tf.stack([row, 1]))
    )
    return rows.shuffle(buffer, seed=1)


def saved_twice(directory: pathlib.Path, dataset: tf.data.Dataset, **variables: Any) -> None:
    checkpoint = tf.train.Checkpoint(variable=tf.Variable(0.0), **variables)
    handler = PreemptionCheckpointHandler(None, checkpoint, directory, save_every=None)
    next(handler.track(iter(dataset)))
    handler.save()
    handler.save()
    handler.close()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in caplog.messages if "position of the data weighs" in text]


def test_a_large_shuffle_buffer_is_warned_of_once(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="tf_preempt"):
        saved_twice(tmp_path, shuffled(4))
    (warning,) = warnings(caplog)
    found = re.search(r"weighs (\d+) MB", warning)
    assert found is not None
    assert 16 <= int(found[1]) < 60  # with what TensorFlow has read ahead
    assert "iterator/0/0" in warning
    assert "HINT: use tf_preempt.data.from_source" in warning


@pytest.mark.parametrize(
    "make",
    [lambda: shuffled(4, numbers=10), lambda: from_source([ROW.numpy()] * 8, batch_size=4, seed=1)],
    ids=["small buffer", "read by index"],
)
def test_a_small_position_is_not(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture, make: Any) -> None:
    with caplog.at_level(logging.WARNING, logger="tf_preempt"):
        saved_twice(tmp_path, make())
    assert warnings(caplog) == []


def test_other_things_in_a_part_are_no_position(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="tf_preempt"):
        position_size.warn_of_large_positions({"metric": ROW}, [100_000_000])
    assert warnings(caplog) == []
