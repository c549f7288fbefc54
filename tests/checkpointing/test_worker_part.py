from __future__ import annotations

import os
import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tf_preempt.checkpointing.iterator_state import set_position, take_position
from tf_preempt.checkpointing.manifest import FileRecord
from tf_preempt.checkpointing.worker_part import WorkerPart, part_name, read_part, write_part
from tf_preempt.errors import CheckpointFormatError, CheckpointMismatchError, CheckpointWriteError

NAME = part_name("ckpt-7", 1, 4)


def test_a_parts_name_says_whose_it_is() -> None:
    assert NAME == "ckpt-7.workers/00001-of-00004"


def test_files_are_measured_and_are_all_there_is(tmp_path: pathlib.Path) -> None:
    files = write_part(str(tmp_path), NAME, WorkerPart(values={"a": 1}))
    assert [record.name for record in files] == [f"{NAME}.index", f"{NAME}.data-00000-of-00001"]
    assert files == [FileRecord.of(str(tmp_path), record.name) for record in files]
    assert sorted(os.listdir(tmp_path / "ckpt-7.workers")) == sorted(
        record.name.rpartition("/")[2] for record in files
    )


def test_values_and_tensors_of_every_kind_come_back_bit_for_bit(tmp_path: pathlib.Path) -> None:
    values: dict[str, Any] = {"random": {"python": [3, [1, 2**32 - 1], None]}, "text": "ä\n", "none": None}
    tensors = {
        "float": tf.constant([0.1, float("nan"), float("-inf")]),
        "bfloat16": tf.constant([0.1], tf.bfloat16),
        "int64": tf.constant(2**63 - 1, tf.int64),
        "uint8": tf.zeros([0, 3], tf.uint8),
        "bool": tf.constant([True]),
        "string": tf.constant([b"\x00\xff", b""]),
        "name with/slashes": tf.constant(1),
    }
    write_part(str(tmp_path), NAME, WorkerPart(tensors=tensors, values=values))
    part = read_part(str(tmp_path), NAME)
    assert part.values == values
    assert part.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert part.tensors[name].dtype == tensor.dtype
        assert part.tensors[name].shape == tensor.shape
        assert part.tensors[name].numpy().tobytes() == tensor.numpy().tobytes() or tensor.dtype == tf.string
    assert part.tensors["string"].numpy().tolist() == [b"\x00\xff", b""]


def test_what_numpy_holds_is_taken_too(tmp_path: pathlib.Path) -> None:
    write_part(str(tmp_path), NAME, WorkerPart(tensors={"array": np.arange(3)}))
    assert read_part(str(tmp_path), NAME).tensors["array"].numpy().tolist() == [0, 1, 2]


def test_an_empty_part_comes_back_empty(tmp_path: pathlib.Path) -> None:
    write_part(str(tmp_path), NAME, WorkerPart())
    assert read_part(str(tmp_path), NAME) == WorkerPart()


def test_the_state_of_an_iterator_comes_back(tmp_path: pathlib.Path) -> None:
    dataset = tf.data.Dataset.range(20).shuffle(8, seed=3).repeat(2).batch(3).prefetch(2)
    iterator = iter(dataset)
    for _ in range(4):
        next(iterator)
    position = take_position(iterator, "train")
    assert position is not None
    write_part(str(tmp_path), NAME, WorkerPart(tensors=position))
    expected = [batch.numpy().tolist() for batch in iterator]
    fresh = iter(dataset)
    assert set_position(fresh, "train", read_part(str(tmp_path), NAME).tensors)
    assert [batch.numpy().tolist() for batch in fresh] == expected


@pytest.mark.parametrize(
    "name", [part_name("ckpt-7", 0, 2), part_name("ckpt-7", 4, 5), part_name("ckpt-8", 1, 4)]
)
def test_a_part_whose_file_is_not_there_is_a_mismatch_with_the_cure(
    tmp_path: pathlib.Path, name: str
) -> None:
    write_part(str(tmp_path), NAME, WorkerPart())
    with pytest.raises(CheckpointMismatchError) as caught:
        read_part(str(tmp_path), name)
    text = str(caught.value)
    assert f"has no part {name} in {tmp_path}: expected its file {tmp_path / name}.index," in text
    assert "It is gone, or this worker sees another directory" in text
    assert "HINT: let all workers see one directory; copy a directory as a whole; or go back" in text
    assert f"by moving {name[:6]}.* out of it" in text


@pytest.mark.parametrize(
    ("suffix", "damage"),
    [
        (".index", "shorter"),
        (".index", "empty"),
        (".data-00000-of-00001", "shorter"),
        (".data-00000-of-00001", "empty"),
        (".data-00000-of-00001", "flipped"),  # TensorFlow may not see it in the index; the manifest does
    ],
)
def test_damage_to_either_file_is_a_format_error(tmp_path: pathlib.Path, suffix: str, damage: str) -> None:
    write_part(str(tmp_path), NAME, WorkerPart(tensors={"a": tf.range(1000)}, values={"b": "c" * 500}))
    path = tmp_path / f"{NAME}{suffix}"
    content = bytearray(path.read_bytes())
    if damage == "flipped":
        content[len(content) // 2] ^= 4
    path.write_bytes(content[: {"shorter": -9, "empty": 0, "flipped": None}[damage]])
    with pytest.raises(CheckpointFormatError, match="is not a worker's part"):
        read_part(str(tmp_path), NAME)


def test_a_bundle_that_is_no_part_is_a_format_error(tmp_path: pathlib.Path) -> None:
    (tmp_path / "ckpt-7.workers").mkdir()
    tf.train.Checkpoint(v=tf.Variable(1.0)).write(str(tmp_path / NAME))
    with pytest.raises(CheckpointFormatError, match="is not a worker's part"):
        read_part(str(tmp_path), NAME)


@pytest.mark.parametrize(
    "index", ["{", "[]", '{"values": {}}', '{"tensors": []}', '{"tensors": [["a", "no type"]], "values": {}}']
)
def test_a_part_with_an_index_of_another_shape_is_a_format_error(tmp_path: pathlib.Path, index: str) -> None:
    (tmp_path / "ckpt-7.workers").mkdir()
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / NAME),
        tensor_names=["tf_preempt/index"],
        shape_and_slices=[""],
        tensors=[tf.constant(index)],
    )
    with pytest.raises(CheckpointFormatError, match="is not a worker's part"):
        read_part(str(tmp_path), NAME)


@pytest.mark.parametrize(
    "error",
    [
        tf.errors.UnavailableError,
        tf.errors.PermissionDeniedError,
        tf.errors.ResourceExhaustedError,
        tf.errors.NotFoundError,
        tf.errors.UnknownError,
    ],
)
def test_an_error_of_the_file_system_is_no_damage(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, error: type[tf.errors.OpError]
) -> None:
    def restore(**_: object) -> None:
        raise error(None, None, "the store is away")

    write_part(str(tmp_path), NAME, WorkerPart())
    monkeypatch.setattr(tf.raw_ops, "RestoreV2", restore)
    with pytest.raises(error, match="the store is away"):
        read_part(str(tmp_path), NAME)


def test_a_data_file_that_is_not_there_is_tensorflows_error(tmp_path: pathlib.Path) -> None:
    files = write_part(str(tmp_path), NAME, WorkerPart())
    (tmp_path / files[1].name).unlink()
    with pytest.raises(tf.errors.NotFoundError):
        read_part(str(tmp_path), NAME)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object()])
def test_values_that_json_has_not_are_refused_with_the_cure(tmp_path: pathlib.Path, value: object) -> None:
    with pytest.raises(CheckpointWriteError, match=r"(?s)00001-of-00004.*JSON.*'loss'.*HINT: save numbers"):
        write_part(str(tmp_path), NAME, WorkerPart(values={"loss": value}))


def test_a_part_that_cannot_be_written_raises_tensorflows_or_the_systems_error(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises((tf.errors.OpError, OSError)):
        write_part(str(tmp_path / "file"), NAME, WorkerPart())
