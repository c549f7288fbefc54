"""The handler for custom loops, in this process; tests/integration/test_custom_loop.py has real workers."""

from __future__ import annotations

import logging
import pathlib
from typing import Any

import pytest
import tensorflow as tf

from tf_preempt.checkpointing.handler import PreemptionCheckpointHandler

WORDS = "has no position of a data iterator"


def handler_for(directory: pathlib.Path, **options: Any) -> PreemptionCheckpointHandler:
    checkpoint = tf.train.Checkpoint(variable=tf.Variable(0.0))
    return PreemptionCheckpointHandler(None, checkpoint, directory, save_every=None, **options)


def life(directory: pathlib.Path, *names: str | None, draws: int = 2) -> list[list[int]]:
    """Tracks an iterator under each name and draws from them; the n-th one counts from 100 n."""
    handler = handler_for(directory)
    try:
        iterators = [
            handler.track(iter(tf.data.Dataset.range(100 * index, 1000)), name)
            for index, name in enumerate(names)
        ]
        seen = [[int(next(iterator)) for _ in range(draws)] for iterator in iterators]
        handler.finish()
    finally:
        handler.close()
    return seen


@pytest.mark.parametrize("names", [(None, None), ("train", "test"), ("train", None)])
def test_iterators_tracked_as_before_go_on_where_they_were(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture, names: tuple[str | None, ...]
) -> None:
    assert life(tmp_path, *names) == [[0, 1], [100, 101]]
    assert life(tmp_path, *names) == [[2, 3], [102, 103]]
    assert WORDS not in caplog.text


def test_positions_go_by_names_and_not_by_order(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert life(tmp_path, "train", "test") == [[0, 1], [100, 101]]
    assert life(tmp_path, "test", "train") == [[102, 103], [2, 3]]
    assert WORDS not in caplog.text


@pytest.mark.parametrize(
    ("before", "after", "seen", "lost"),
    [
        (("train", "test"), ("train", "valid"), [[2, 3], [100, 101]], ["valid"]),
        (("train", "test"), ("a", "b"), [[0, 1], [100, 101]], ["a", "b"]),
        (("train",), (None,), [[0, 1]], ["0"]),
        ((None,), (None, None), [[2, 3], [100, 101]], ["1"]),
    ],
)
def test_a_renamed_iterator_begins_at_its_beginning_and_is_warned_of(
    tmp_path: pathlib.Path,
    caplog: pytest.LogCaptureFixture,
    before: tuple[str | None, ...],
    after: tuple[str | None, ...],
    seen: list[list[int]],
    lost: list[str],
) -> None:
    life(tmp_path, *before)
    with caplog.at_level(logging.WARNING, logger="tf_preempt"):
        assert life(tmp_path, *after) == seen
    warned = [message for message in caplog.messages if WORDS in message]
    assert len(warned) == len(lost)
    for message, name in zip(warned, lost, strict=True):
        assert f"{WORDS} {name!r}" in message
        assert "HINT: track the same iterators" in message


def test_the_iterator_of_a_new_epoch_takes_the_place_of_the_one_before(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    handler = handler_for(tmp_path)
    for _ in range(2):
        iterator = handler.track(iter(tf.data.Dataset.range(50)), "train")
        assert int(next(iterator)) == 0
    next(iterator)
    handler.finish()
    assert life(tmp_path, "train") == [[2, 3]]
    assert WORDS not in caplog.text


@pytest.mark.parametrize(("verbose", "printed"), [(1, True), (0, False)])
def test_the_environments_directory_and_the_restored_step_are_said(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], verbose: int, printed: bool
) -> None:
    environ = {"TF_PREEMPT_DIR_OVERRIDE": str(tmp_path / "other")}
    handler_for(tmp_path / "given", environ=environ).finish()
    capsys.readouterr()
    handler_for(tmp_path / "given", environ=environ, verbose=verbose).close()
    other, given = tmp_path / "other", tmp_path / "given"
    expected = [
        f"tf_preempt: TF_PREEMPT_DIR_OVERRIDE={other} is used in place of the program's directory {given}.",
        f"tf_preempt: Restored step 0 from {other}/ckpt-1.",
    ]
    assert capsys.readouterr().out.splitlines() == (expected if printed else [])


def test_the_override_of_a_managers_directory_is_said(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = tf.train.Checkpoint(variable=tf.Variable(0.0))
    manager = tf.train.CheckpointManager(checkpoint, str(tmp_path / "given"), max_to_keep=2)
    environ = {"TF_PREEMPT_DIR_OVERRIDE": str(tmp_path / "other")}
    PreemptionCheckpointHandler(None, manager, environ=environ).close()
    assert f"in place of the program's directory {tmp_path / 'given'}." in capsys.readouterr().out
