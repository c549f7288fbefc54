"""What `fit` says to a checkpoint of another number of workers; the real ones are in `tests/integration`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tests.callbacks import lives
from tf_preempt.checkpointing import manifest as manifests
from tf_preempt.checkpointing.worker_part import part_name, read_part, write_part
from tf_preempt.data import from_arrays
from tf_preempt.errors import CheckpointMismatchError

FIRST_EPOCH, SECOND_EPOCH = 0, 1


def ours(*, batch_size: int = lives.BATCH) -> tf.data.Dataset:
    return from_arrays(*lives.arrays(), batch_size=batch_size, seed=1)


def plain() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(lives.arrays()).batch(lives.BATCH)


def buffered() -> tf.data.Dataset:
    return ours().shuffle(2, seed=1)


def noisy() -> tf.data.Dataset:
    """Its state cannot be saved: a place in it is a number of elements to be taken again."""
    return ours().map(lambda x, y: (x + tf.random.uniform([], seed=1), y))


def program(
    train: Callable[[], tf.data.Dataset] = ours, validate: Callable[[], tf.data.Dataset] | None = None
) -> lives.Program:
    def data() -> dict[str, Any]:
        return {"x": train(), "validation_data": validate() if validate else None}

    return lives.Program(data=data, epochs=2)


def left_by_two_workers(directory: Path, first_life: lives.Program, *, epoch: int = FIRST_EPOCH) -> None:
    """Leaves a program, and rewrites its checkpoint as two workers would have written it."""
    assert first_life.run(directory, interrupt=lives.Interrupt(epoch, 1)) is None
    (_, name), *_ = sorted(manifests.manifest_names(str(directory)), reverse=True)
    manifest = manifests.read_manifest(str(directory), name)
    part = read_part(str(directory), part_name(manifest.prefix, 0, 1))
    files = [record for record in manifest.files if ".workers/" not in record.name]
    for worker in range(2):
        files += write_part(str(directory), part_name(manifest.prefix, worker, 2), part)
    (directory / name).write_bytes(dataclasses.replace(manifest, workers=2, files=files).to_bytes())


@pytest.mark.parametrize("validate", [None, ours])
def test_data_that_lets_other_workers_go_on(tmp_path: Path, validate: Any) -> None:
    left_by_two_workers(tmp_path, program(validate=validate), epoch=SECOND_EPOCH)
    resumed = program(validate=validate).run(tmp_path)
    assert resumed is not None
    assert resumed.epochs == [0, 1]


@pytest.mark.parametrize(
    ("epoch", "train", "validate", "said"),
    [
        (FIRST_EPOCH, buffered, ours, "'train_data': its pipeline holds a ShuffleDataset"),
        (FIRST_EPOCH, noisy, ours, "'train_data': its functions draw random numbers"),
        (SECOND_EPOCH, ours, noisy, "'validation_data': its functions draw random numbers"),
    ],
)
def test_data_with_which_others_can_go_on_no_more_is_refused(
    tmp_path: Path, epoch: int, train: Any, validate: Any, said: str
) -> None:
    left_by_two_workers(tmp_path, program(validate=ours), epoch=epoch)
    with pytest.raises(
        CheckpointMismatchError,
        match=rf"(?s)another number of workers, and this one cannot go on with the data {said}.*HINT",
    ):
        program(train, validate).run(tmp_path)


def test_plain_validation_data_lets_others_go_on_before_the_first_validation(tmp_path: Path) -> None:
    left_by_two_workers(tmp_path, program(validate=plain), epoch=FIRST_EPOCH)
    assert program(validate=plain).run(tmp_path) is not None


def test_plain_validation_data_is_refused_after_the_first_validation_with_the_reason(tmp_path: Path) -> None:
    left_by_two_workers(tmp_path, program(validate=plain), epoch=SECOND_EPOCH)
    with pytest.raises(
        CheckpointMismatchError,
        match=r"(?s)'validation_data': it is not read by tf_preempt.*before the first validation.*HINT",
    ):
        program(validate=plain).run(tmp_path)


def test_a_batch_size_that_goes_with_the_number_of_replicas_is_refused_with_the_cure(tmp_path: Path) -> None:
    left_by_two_workers(tmp_path, program(lambda: ours(batch_size=4)))
    with pytest.raises(
        CheckpointMismatchError,
        match=r"(?s)has 10 batches.*by another number of workers it had 5.*HINT.*of all replicas together",
    ):
        program(lambda: ours(batch_size=2)).run(tmp_path)
