"""The handler for custom loops, in this process; tests/integration/test_custom_loop.py has real workers."""

from __future__ import annotations

import contextlib
import logging
import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tf_preempt.checkpointing.handler import PreemptionCheckpointHandler
from tf_preempt.data import from_arrays
from tf_preempt.errors import CheckpointMismatchError
from tf_preempt.strategies import MirroredStrategy

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


UNTRACKED = "no data iterator is tracked"


def untracked_life(directory: pathlib.Path, *, steps: int, in_checkpoint: bool = False) -> list[int]:
    """Takes an element in each of the steps that are left; the handler does not know of the iterator."""
    iterator = iter(tf.data.Dataset.range(10))
    held = {"iterator": iterator} if in_checkpoint else {}
    checkpoint = tf.train.Checkpoint(variable=tf.Variable(0.0), **held)
    handler = PreemptionCheckpointHandler(None, checkpoint, directory, save_every=None)
    try:
        seen = [int(next(iterator)) for _ in handler.steps(steps)]
        handler.finish()
    finally:
        handler.close()
    return seen


def test_a_resumed_loop_that_tracks_nothing_is_told_once_that_its_data_begins_anew(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert untracked_life(tmp_path, steps=2) == [0, 1]
    assert UNTRACKED not in caplog.text
    assert untracked_life(tmp_path, steps=5) == [0, 1, 2]
    (warned,) = [message for message in caplog.messages if UNTRACKED in message]
    assert warned.startswith("The run goes on after step 2")
    assert "HINT: iterator = handler.track(iter(dataset))" in warned
    assert "from the number of the step can ignore this" in warned


@pytest.mark.parametrize(
    ("first", "second", "in_checkpoint", "seen"),
    [
        pytest.param(0, 2, False, [0, 1], id="nothing was done before"),
        pytest.param(2, 2, False, [], id="nothing is left"),
        pytest.param(2, 4, True, [2, 3], id="the checkpoint holds the iterator"),
    ],
)
def test_a_resumed_loop_whose_data_goes_on_is_told_nothing(
    tmp_path: pathlib.Path,
    caplog: pytest.LogCaptureFixture,
    first: int,
    second: int,
    in_checkpoint: bool,
    seen: list[int],
) -> None:
    untracked_life(tmp_path, steps=first, in_checkpoint=in_checkpoint)
    assert untracked_life(tmp_path, steps=second, in_checkpoint=in_checkpoint) == seen
    assert UNTRACKED not in caplog.text


def test_an_iterator_that_is_tracked_within_the_first_step_is_tracked(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen = []
    for total in (2, 4):
        handler = handler_for(tmp_path)
        iterator = None
        for _ in handler.steps(total):
            iterator = iterator or handler.track(iter(tf.data.Dataset.range(10)), "train")
            seen.append(int(next(iterator)))
        handler.finish()
    assert seen == [0, 1, 2, 3]
    assert UNTRACKED not in caplog.text


def replicated_life(directory: pathlib.Path, replicas: int) -> list[list[int]]:
    """One step of a loop over data of this package; each replica's part of the batch."""
    strategy = MirroredStrategy([f"cpu:{number}" for number in range(replicas)])
    handler = handler_for(directory)
    try:
        dataset = from_arrays(np.arange(24), batch_size=6, shuffle=False)
        iterator = handler.track(iter(strategy.experimental_distribute_dataset(dataset)), "train")
        parts = strategy.experimental_local_results(next(iterator))
        handler.finish()
    finally:
        handler.close()
    return [part.numpy().tolist() for part in parts]


def test_other_numbers_of_replicas_are_refused_with_both_and_the_cure(tmp_path: pathlib.Path) -> None:
    assert replicated_life(tmp_path, 2) == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(
        CheckpointMismatchError, match=r"(?s)to 2 replica\(s\).*gives it to 1 now.*HINT: use 2 device"
    ):
        replicated_life(tmp_path, 1)
    assert replicated_life(tmp_path, 2) == [[6, 7, 8], [9, 10, 11]]


def metric_life(directory: pathlib.Path, *, replicas: int, metrics: int = 1) -> float:
    """Adds 1 to the first of some sync-on-read variables; under a strategy if there are replicas."""
    devices = [f"cpu:{number}" for number in range(replicas)]
    with MirroredStrategy(devices).scope() if devices else contextlib.nullcontext():
        variables = [
            tf.Variable(
                0.0,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
            )
            for _ in range(metrics)
        ]
    checkpoint = tf.train.Checkpoint(variables=variables)
    handler = PreemptionCheckpointHandler(None, checkpoint, directory, save_every=None, verbose=0)
    try:
        variables[0].assign(variables[0].read_value() + 1.0)
        handler.finish()
    finally:
        handler.close()
    return float(variables[0].read_value())


def test_sync_on_read_variables_go_on_under_the_same_strategy(tmp_path: pathlib.Path) -> None:
    assert [metric_life(tmp_path, replicas=2) for _ in range(2)] == [1.0, 2.0]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ((1, 1), (0, 1), r"written under a strategy and holds 1 part.*HINT: .*in the scope of the strategy"),
        (
            (0, 1),
            (1, 1),
            r"object has 1 part.*written without a strategy.*HINT: .*without a strategy",
        ),
        ((1, 2), (1, 1), r"holds 2 parts.*checkpoint object 1\..*HINT: build the checkpoint object"),
    ],
)
def test_other_sync_on_read_variables_are_refused_with_the_reason(
    tmp_path: pathlib.Path, before: tuple[int, int], after: tuple[int, int], said: str
) -> None:
    metric_life(tmp_path, replicas=before[0], metrics=before[1])
    with pytest.raises(CheckpointMismatchError, match=rf"(?s){said}"):
        metric_life(tmp_path, replicas=after[0], metrics=after[1])


def looking_life(directory: pathlib.Path, *, looks: bool) -> int:
    """One step of a loop that may look at the first element before it tracks the iterator."""
    handler = handler_for(directory)
    try:
        iterator = iter(from_arrays(np.arange(24), batch_size=1, shuffle=False))
        if looks:
            next(iterator)
        handler.track(iterator, "train")
        value = int(next(iterator)[0])
        handler.finish()
    finally:
        handler.close()
    return value


@pytest.mark.parametrize("looks", [True, False])
def test_a_look_in_one_life_only_does_not_keep_the_next_one_from_its_place(
    tmp_path: pathlib.Path, looks: bool
) -> None:
    first = looking_life(tmp_path, looks=looks)
    assert looking_life(tmp_path, looks=not looks) == first + 1
    assert looking_life(tmp_path, looks=looks) == first + 2
