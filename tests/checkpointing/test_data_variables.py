"""Variables in which a pipeline counts, taken and restored with its position."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tf_preempt.checkpointing import data_variables
from tf_preempt.checkpointing.data_variables import DataVariables
from tf_preempt.checkpointing.handler import PreemptionCheckpointHandler
from tf_preempt.checkpointing.iterator_state import set_position, take_position
from tf_preempt.errors import CheckpointMismatchError


def pipeline(generator: Any, *, prefetch: int = 0) -> tf.data.Dataset:
    return tf.data.Dataset.range(12).map(lambda _: generator.uniform(())).prefetch(prefetch)


def generator() -> Any:
    return tf.random.Generator.from_seed(3)


def draws(iterator: Any, count: int) -> list[float]:
    return [float(next(iterator)) for _ in range(count)]


@pytest.mark.parametrize("prefetch", [0, 3, tf.data.AUTOTUNE])
@pytest.mark.parametrize("step", [0, 1, 5])
def test_position_and_variables_belong_to_each_other(step: int, prefetch: int) -> None:
    """Also while the pipeline reads ahead, when the position is taken."""
    first = iter(pipeline(generator(), prefetch=prefetch))
    variables = DataVariables()
    variables.look_at(first, "train")
    draws(first, step)
    position, saved = variables.take_with(lambda: take_position(first, "train"))
    expected = draws(first, 6)

    assert position is not None
    second = iter(pipeline(generator(), prefetch=prefetch))
    draws(second, 2)
    assert set_position(second, "train", position)
    restored = DataVariables()
    restored.expect(saved)
    restored.look_at(second, "train")
    assert draws(second, 6) == expected


def test_variable_of_two_data_sets_is_restored_once() -> None:
    """The second is looked at when the first has drawn already."""
    shared = generator()
    variables = DataVariables()
    for name in ("train", "validation"):
        variables.look_at(iter(pipeline(shared)), name)
    saved = variables.take()
    assert list(saved) == ["data_variables/train/0"]

    train = iter(pipeline(shared))
    restored = DataVariables()
    restored.expect(saved)
    restored.look_at(train, "train")
    draws(train, 3)
    before = shared.state.numpy().tolist()
    restored.look_at(iter(pipeline(shared)), "validation")
    assert shared.state.numpy().tolist() == before


def test_values_of_a_data_set_that_was_not_looked_at_yet_are_kept() -> None:
    variables = DataVariables()
    variables.look_at(iter(pipeline(generator())), "validation")
    saved = variables.take()
    between = DataVariables()
    between.expect(saved)
    assert {name: value.numpy().tolist() for name, value in between.take().items()} == {
        name: value.numpy().tolist() for name, value in saved.items()
    }


def test_iterator_of_a_later_epoch_is_not_set_back() -> None:
    source = generator()
    variables = DataVariables()
    variables.look_at(iter(pipeline(source)), "train")
    restored = DataVariables()
    restored.expect(variables.take())
    restored.look_at(iter(pipeline(source)), "train")
    draws(iter(pipeline(source)), 2)
    before = source.state.numpy().tolist()
    restored.look_at(iter(pipeline(source)), "train")
    assert source.state.numpy().tolist() == before


def test_data_set_with_other_variables_is_refused() -> None:
    variables = DataVariables()
    variables.look_at(iter(pipeline(generator())), "train")
    other = DataVariables()
    other.expect(variables.take())
    with pytest.raises(CheckpointMismatchError, match=r"'train' used variables .*int64.*, and use \[\] now"):
        other.look_at(iter(tf.data.Dataset.range(3)), "train")


@pytest.mark.parametrize(
    "function",
    [
        lambda x: tf.random.uniform(()),
        lambda x: tf.random.uniform(()) + generator_of_all.uniform(()),
        lambda x: x,
    ],
    ids=["an op that counts", "an op that counts, and a generator", "nothing"],
)
def test_state_that_is_not_in_variables_is_left_to_be_read_again(function: Callable[[Any], Any]) -> None:
    variables = DataVariables()
    variables.look_at(iter(tf.data.Dataset.range(3).map(function)), "train")
    assert variables.take() == {}


generator_of_all = generator()


def test_pipeline_that_never_stands_still_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(data_variables, "_PAUSE_S", 0)
    source = generator()
    variables = DataVariables()
    variables.look_at(iter(pipeline(source)), "train")
    with caplog.at_level(logging.WARNING, "tf_preempt"):
        for _ in range(2):
            variables.take_with(lambda: source.uniform(()))
    (message,) = caplog.messages
    assert "HINT" in message


def life(directory: Path, *, steps: int) -> list[float]:
    handler = PreemptionCheckpointHandler(
        None, tf.train.Checkpoint(variable=tf.Variable(0.0)), directory, save_every=None
    )
    try:
        iterator = handler.track(iter(pipeline(generator(), prefetch=2)))
        drawn = draws(iterator, steps)
        handler.finish()
        return drawn + draws(iterator, 3)
    finally:
        handler.close()


def test_custom_loop_goes_on_drawing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = life(tmp_path, steps=4)
    assert life(tmp_path, steps=0) == first[4:]
    assert "cannot be saved" not in caplog.text
