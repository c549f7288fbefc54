from __future__ import annotations

import logging
import os
import pathlib
import shutil
from typing import Any

import pytest
import tensorflow as tf

from tf_preempt.checkpointing import manifest as manifests
from tf_preempt.checkpointing.committer import (
    Committer,
    SaveRecord,
    decode_files,
    describe_variables,
    encode_files,
    to_keep,
    variable_differences,
)
from tf_preempt.checkpointing.manifest import FileRecord, Manifest
from tf_preempt.checkpointing.worker_part import WorkerPart, part_name, write_part
from tf_preempt.errors import CheckpointFormatError, CheckpointMismatchError, CheckpointWriteError


class Training:
    """A variable, its checkpoint, and a committer with a directory."""

    def __init__(
        self, directory: pathlib.Path, *, max_to_keep: int | None = None, name: str = "ckpt", size: int = 4
    ) -> None:
        self.variable = tf.Variable(tf.zeros([size]), name="v")
        self.checkpoint = tf.train.Checkpoint(v=self.variable)
        manager = tf.train.CheckpointManager(
            self.checkpoint, str(directory), max_to_keep=None, checkpoint_name=name
        )
        self.committer = Committer(
            manager, max_to_keep=max_to_keep, variables=describe_variables([self.variable]), name=name
        )

    def write(self, number: int, *, fit: int = 0) -> SaveRecord:
        """Writes all files of a checkpoint in which the variable is `number`; commits nothing."""
        self.variable.assign(tf.fill(self.variable.shape, float(number)))
        prefix = self.committer.prefix(number)
        files = self.committer.save_variables(number)
        files += write_part(
            self.committer.directory, part_name(prefix, 0, 1), WorkerPart(values={"n": number})
        )
        return SaveRecord(
            prefix=prefix,
            number=number,
            step=10 * number,
            resume={"fit": fit},
            reason="test",
            started=0.0,
            files=files,
        )

    def commit(self, number: int, *, fit: int = 0) -> Manifest:
        record = self.write(number, fit=fit)
        return self.committer.commit(record, incarnation=0, workers=1, now=1795994195.25, seconds=0.123456)


def committed(directory: pathlib.Path) -> list[int]:
    return sorted(number for number, _ in manifests.manifest_names(str(directory)))


def test_a_commit_describes_the_save_and_all_its_files(tmp_path: pathlib.Path) -> None:
    training = Training(tmp_path)
    manifest = training.commit(3)
    assert (manifest.prefix, manifest.number, manifest.step) == ("ckpt-3", 3, 30)
    assert manifest.written == "2026-11-29T23:16:35.250+00:00"
    assert manifest.seconds == 0.1235
    assert manifest.variables == [["v:0", [4], "float32"]]
    assert set(manifest.versions) == {"tf_preempt", "tensorflow", "keras"}
    assert sorted(record.name for record in manifest.files) == [
        "ckpt-3.data-00000-of-00001",
        "ckpt-3.index",
        "ckpt-3.workers/00000-of-00001.data-00000-of-00001",
        "ckpt-3.workers/00000-of-00001.index",
    ]
    assert manifests.problem_with(str(tmp_path), manifest) is None
    assert training.committer.newest(fit=0) == manifest


def test_what_was_written_but_not_committed_does_not_exist(tmp_path: pathlib.Path) -> None:
    training = Training(tmp_path)
    training.write(1)
    assert training.committer.newest(fit=0) is None
    training.commit(2)
    training.write(3)
    newest = training.committer.newest(fit=0)
    assert newest is not None
    assert newest.number == 2


def test_the_newest_is_restored(tmp_path: pathlib.Path) -> None:
    first = Training(tmp_path)
    for number in (9, 10):
        first.commit(number)
    second = Training(tmp_path)
    newest = second.committer.newest(fit=0)
    assert newest is not None
    second.committer.check_variables(newest)
    second.committer.restore_variables(second.checkpoint, newest.prefix)
    assert second.variable.numpy().tolist() == [10.0] * 4


def test_each_fit_has_its_own_newest(tmp_path: pathlib.Path) -> None:
    training = Training(tmp_path)
    for number, fit in ((1, 0), (2, 0), (3, 1)):
        training.commit(number, fit=fit)
    found = [training.committer.newest(fit=fit) for fit in (0, 1, 2)]
    assert [manifest and manifest.number for manifest in found] == [2, 3, None]


def damage_index(directory: pathlib.Path, prefix: str) -> None:
    path = directory / f"{prefix}.index"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def damage_data(directory: pathlib.Path, prefix: str) -> None:
    path = directory / f"{prefix}.data-00000-of-00001"
    path.write_bytes(path.read_bytes()[:-1])


def damage_part(directory: pathlib.Path, prefix: str) -> None:
    shutil.rmtree(directory / f"{prefix}.workers")


def damage_manifest(directory: pathlib.Path, prefix: str) -> None:
    path = directory / f"{prefix}.manifest.json"
    path.write_bytes(path.read_bytes()[:100])


@pytest.mark.parametrize("damage", [damage_index, damage_data, damage_part, damage_manifest])
def test_a_damaged_newest_is_set_aside_with_one_line_and_the_one_before_is_used(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture, damage: Any
) -> None:
    training = Training(tmp_path)
    for number in (1, 2, 3):
        training.commit(number)
    damage(tmp_path, "ckpt-3")
    with caplog.at_level(logging.WARNING, logger="tf_preempt"):
        newest = training.committer.newest(fit=0)
    assert newest is not None
    assert newest.number == 2
    assert len(caplog.messages) == 1
    assert "ckpt-3" in caplog.messages[0]
    assert "set aside" in caplog.messages[0]
    assert not [name for name in os.listdir(tmp_path) if name.startswith("ckpt-3.")]
    assert "ckpt-3.index" in os.listdir(tmp_path / "set-aside")
    assert manifests.next_number(str(tmp_path)) == 4


def test_all_damaged_leaves_none(tmp_path: pathlib.Path) -> None:
    training = Training(tmp_path)
    for number in (1, 2):
        training.commit(number)
        damage_data(tmp_path, f"ckpt-{number}")
    assert training.committer.newest(fit=0) is None
    assert committed(tmp_path) == []


def test_a_newer_format_is_an_error_and_nothing_is_touched_not_even_what_is_damaged(
    tmp_path: pathlib.Path,
) -> None:
    training = Training(tmp_path)
    for number in (1, 2, 3):
        training.commit(number)
    damage_manifest(tmp_path, "ckpt-3")
    (tmp_path / "ckpt-1.manifest.json").write_text('{"format": 2}')
    before = sorted(os.walk(tmp_path))
    with pytest.raises(CheckpointFormatError, match="HINT: upgrade"):
        training.committer.newest(fit=0)
    assert sorted(os.walk(tmp_path)) == before


@pytest.mark.parametrize(
    ("fits_newest_first", "max_to_keep", "kept"),
    [
        ([], 3, set()),
        ([0], 1, {1}),
        ([0, 0, 0, 0], 2, {4, 3}),
        ([0, 0], 5, {2, 1}),
        ([1, 0, 0], 1, {3, 2}),
        ([2, 2, 1, 0, 0], 2, {5, 4, 3, 2}),
        ([1, 1, 1, 0], 2, {4, 3, 1}),
    ],
)
def test_the_newest_and_the_last_of_each_fit_are_kept(
    fits_newest_first: list[int], max_to_keep: int, kept: set[int]
) -> None:
    count = len(fits_newest_first)
    listed = [
        Manifest(
            prefix=f"ckpt-{count - position}",
            number=count - position,
            step=0,
            incarnation=0,
            resume={"fit": fit},
            workers=1,
            reason="",
            written="",
            seconds=0.0,
            versions={},
        )
        for position, fit in enumerate(fits_newest_first)
    ]
    assert to_keep(listed, max_to_keep) == kept


def test_old_checkpoints_go_after_the_commit_with_all_their_files(tmp_path: pathlib.Path) -> None:
    training = Training(tmp_path, max_to_keep=2)
    for number in range(1, 5):
        training.write(number)
        assert committed(tmp_path) == [number - 2, number - 1][max(0, 3 - number) :], "deleted too early"
        training.commit(number)
    assert committed(tmp_path) == [3, 4]
    assert sorted(os.listdir(tmp_path)) == sorted(
        ["checkpoint"]
        + [
            f"ckpt-{n}{end}"
            for n in (3, 4)
            for end in (".index", ".data-00000-of-00001", ".manifest.json", ".workers")
        ]
    )


@pytest.mark.parametrize("name", ["ckpt", "my-model"])
def test_tensorflow_itself_reads_the_directory_after_retention(tmp_path: pathlib.Path, name: str) -> None:
    directory = tmp_path / "run"
    training = Training(directory, max_to_keep=1, name=name)
    for number in (1, 2, 3):
        training.commit(number)
    for place in (directory, directory.rename(tmp_path / "moved")):
        if not place.exists():
            continue
        path = tf.train.latest_checkpoint(str(place))
        assert path == str(place / f"{name}-3")
        reader = tf.train.load_checkpoint(str(place))
        assert reader.get_tensor("v/.ATTRIBUTES/VARIABLE_VALUE").tolist() == [3.0] * 4
        state = tf.train.get_checkpoint_state(str(place))
        assert list(state.all_model_checkpoint_paths) == [str(place / f"{name}-3")]


def test_tensorflows_own_next_save_overwrites_none_of_ours(tmp_path: pathlib.Path) -> None:
    Training(tmp_path).commit(41)
    variable = tf.Variable(tf.zeros([4]))
    checkpoint = tf.train.Checkpoint(v=variable)
    manager = tf.train.CheckpointManager(checkpoint, str(tmp_path), max_to_keep=5)
    checkpoint.restore(manager.latest_checkpoint).assert_consumed()
    assert manager.save() == str(tmp_path / "ckpt-42")


def test_what_tensorflow_wrote_without_a_count_of_saves_is_restored(tmp_path: pathlib.Path) -> None:
    training = Training(tmp_path)
    training.variable.assign([1.0, 2.0, 3.0, 4.0])
    training.checkpoint.write(str(tmp_path / "mine-1"))
    fresh = Training(tmp_path)
    fresh.committer.restore_variables(fresh.checkpoint, "mine-1")
    assert fresh.variable.numpy().tolist() == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("change", ["another shape", "one more object"])
def test_objects_that_the_checkpoint_does_not_hold_are_a_mismatch_with_the_cure(
    tmp_path: pathlib.Path, change: str
) -> None:
    Training(tmp_path).commit(1)
    fresh = Training(tmp_path, size=5 if change == "another shape" else 4)
    if change == "one more object":
        fresh.checkpoint.w = tf.Variable(1.0)
    with pytest.raises(CheckpointMismatchError, match=r"(?s)ckpt-1 does not hold.*HINT: build"):
        fresh.committer.restore_variables(fresh.checkpoint, "ckpt-1")


def test_all_stay_without_a_limit(tmp_path: pathlib.Path) -> None:
    training = Training(tmp_path, max_to_keep=None)
    for number in range(1, 8):
        training.commit(number)
    assert committed(tmp_path) == list(range(1, 8))


def test_an_old_checkpoint_that_cannot_be_deleted_is_logged_and_the_commit_stands(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    training = Training(tmp_path, max_to_keep=1)
    training.commit(1)
    (tmp_path / "ckpt-1.index").unlink()
    (tmp_path / "ckpt-1.index").mkdir()  # a name that cannot be unlinked, also by root
    with caplog.at_level(logging.WARNING, logger="tf_preempt"):
        assert training.commit(2).number == 2
    assert "could not be deleted" in caplog.text
    newest = training.committer.newest(fit=0)
    assert newest is not None
    assert newest.number == 2


def test_a_commit_stands_when_an_older_manifest_is_of_a_newer_format(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    training = Training(tmp_path, max_to_keep=1)
    training.commit(1)
    (tmp_path / "ckpt-1.manifest.json").write_text('{"format": 2}')
    with caplog.at_level(logging.WARNING, logger="tf_preempt"):
        assert training.commit(2).number == 2
    assert "could not be deleted" in caplog.text
    assert committed(tmp_path) == [1, 2]


@pytest.mark.parametrize("error", [OSError, tf.errors.UnavailableError, IndexError])
def test_a_commit_stands_when_the_directory_cannot_be_listed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, error: Any
) -> None:
    def list_nothing(directory: str) -> Any:
        raise error(None, None, "away") if issubclass(error, tf.errors.OpError) else error("away")

    training = Training(tmp_path, max_to_keep=1)
    monkeypatch.setattr(manifests, "readable_manifests", list_nothing)
    assert training.commit(1).number == 1
    assert committed(tmp_path) == [1]


@pytest.mark.parametrize("listed", [[], [1]])
def test_retention_counts_the_new_checkpoint_when_a_stale_listing_does_not_show_it(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, listed: list[int]
) -> None:
    training = Training(tmp_path, max_to_keep=1)
    stale = [training.commit(number) for number in listed]
    monkeypatch.setattr(manifests, "readable_manifests", lambda _: (stale, []))
    training.commit(2)
    assert committed(tmp_path) == [2]
    assert tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "ckpt-2")


def test_a_save_that_cannot_be_written_is_a_typed_error(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").touch()
    training = Training(tmp_path / "file" / "run")
    with pytest.raises(CheckpointWriteError, match="Saving checkpoint 1 to"):
        training.write(1)


def test_a_commit_that_cannot_be_written_is_a_typed_error_and_leaves_the_older_one(
    tmp_path: pathlib.Path,
) -> None:
    training = Training(tmp_path)
    training.commit(1)
    record = training.write(2)
    (tmp_path / "ckpt-2.manifest.json").mkdir()
    with pytest.raises(CheckpointWriteError, match="Committing"):
        training.committer.commit(record, incarnation=0, workers=1, now=0.0, seconds=0.0)
    (tmp_path / "ckpt-2.manifest.json").rmdir()
    newest = training.committer.newest(fit=0)
    assert newest is not None
    assert newest.number == 1


V = ["v", [3, 2], "float32"]


@pytest.mark.parametrize(
    ("saved", "present", "differences"),
    [
        ([], [], []),
        ([V], [V], []),
        ([V], [["renamed", [3, 2], "float32"]], []),
        (
            [V],
            [["v", [2, 3], "float32"]],
            ["variable 0: checkpoint v (3, 2) float32, program v (2, 3) float32"],
        ),
        ([V], [["v", [3, 2], "int64"]], ["variable 0: checkpoint v (3, 2) float32, program v (3, 2) int64"]),
        ([V], [], ["variable 0: checkpoint v (3, 2) float32, program has none"]),
        ([V], [V, V], ["variable 1: checkpoint has none, program v (3, 2) float32"]),
        ([["s", [], "int32"]], [V], ["variable 0: checkpoint s () int32, program v (3, 2) float32"]),
    ],
)
def test_differences_of_variables(
    saved: list[list[Any]], present: list[list[Any]], differences: list[str]
) -> None:
    assert variable_differences(saved, present) == differences


@pytest.mark.parametrize(
    ("missing", "lines", "last"), [(10, 10, "variable 9"), (11, 11, "and 1 more"), (50, 11, "and 40 more")]
)
def test_at_most_ten_differences_are_listed(missing: int, lines: int, last: str) -> None:
    differences = variable_differences([V] * missing, [])
    assert len(differences) == lines
    assert differences[-1].startswith(last)


def test_another_models_checkpoint_is_refused_with_the_differences_and_the_cure(
    tmp_path: pathlib.Path,
) -> None:
    manifest = Training(tmp_path, size=4).commit(1)
    with pytest.raises(CheckpointMismatchError, match=r"(?s)ckpt-1.*variable 0.*\(4,\).*\(5,\).*HINT"):
        Training(tmp_path, size=5).committer.check_variables(manifest)


def test_variables_are_described_by_path_shape_and_dtype() -> None:
    import keras

    described = describe_variables(
        [tf.Variable([[1, 2]], name="a", dtype=tf.int64), keras.Variable([0.5], name="b", dtype="bfloat16")]
    )
    assert [[shape, dtype] for _, shape, dtype in described] == [[[1, 2], "int64"], [[1], "bfloat16"]]
    assert [path for path, _, _ in described] == ["a:0", "b"]


def test_file_records_survive_their_way_through_a_key() -> None:
    files = [FileRecord(name="a/ä", bytes=3, crc32="00000000"), FileRecord(name="b", bytes=1 << 40)]
    assert decode_files(encode_files(files)) == files


def plain(directory: pathlib.Path, *numbers: int) -> None:
    """Checkpoints as TensorFlow's own manager leaves them."""
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(v=tf.Variable([0.0])), str(directory), max_to_keep=None
    )
    for number in numbers:
        manager.save(checkpoint_number=number)


@pytest.mark.parametrize(
    ("theirs", "ours_not_committed", "adopted"),
    [
        ([], [], None),
        ([1, 2], [], "ckpt-2"),
        ([], [1, 2], None),
        ([1, 2], [3, 4], "ckpt-2"),
    ],
)
def test_checkpoints_of_ours_that_were_never_committed_are_not_adopted(
    tmp_path: pathlib.Path, theirs: list[int], ours_not_committed: list[int], adopted: str | None
) -> None:
    plain(tmp_path, *theirs)
    training = Training(tmp_path)
    for number in ours_not_committed:
        training.write(number)
    assert Training(tmp_path).committer.adoptable() == adopted


def test_plain_checkpoint_whose_files_are_gone_is_not_adopted(tmp_path: pathlib.Path) -> None:
    plain(tmp_path, 1, 2)
    (tmp_path / "ckpt-2.index").unlink()
    assert Training(tmp_path).committer.adoptable() == "ckpt-1"


def test_plain_checkpoints_of_a_directory_that_was_moved_are_adopted(tmp_path: pathlib.Path) -> None:
    plain(tmp_path / "before", 1, 2)
    (tmp_path / "before").rename(tmp_path / "after")
    assert Training(tmp_path / "after").committer.adoptable() == "ckpt-2"
