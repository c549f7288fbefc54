from __future__ import annotations

import dataclasses
import json
import os
import pathlib

import pytest

from tf_preempt.checkpointing import manifest as manifests
from tf_preempt.checkpointing.manifest import FileRecord, Manifest
from tf_preempt.errors import CheckpointFormatError, NewerFormatError


def a_manifest(directory: pathlib.Path, number: int = 7, **changes: object) -> Manifest:
    """A checkpoint of three files, and its manifest, not written yet."""
    prefix = f"ckpt-{number}"
    names = [f"{prefix}.index", f"{prefix}.data-00000-of-00001", f"{prefix}.workers/00000-of-00001.index"]
    for name in names:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"content of {name}".encode())
    values: dict[str, object] = {
        "prefix": prefix,
        "number": number,
        "step": 120,
        "incarnation": 3,
        "resume": {"fit": 0, "epoch": 2, "logs": {"loss": 0.1}},
        "workers": 1,
        "reason": "notice: SIGTERM on worker 1",
        "written": "2026-11-29T23:11:07.000+00:00",
        "seconds": 0.41,
        "versions": {"tf_preempt": "0.1"},
        "variables": [["dense/kernel", [3, 2], "float32"]],
        "files": [FileRecord.of(str(directory), name) for name in names],
    }
    return Manifest(**{**values, **changes})  # type: ignore[arg-type]


def write(directory: pathlib.Path, manifest: Manifest) -> pathlib.Path:
    path = directory / manifest.name
    path.write_bytes(manifest.to_bytes())
    return path


def test_a_manifest_is_read_as_it_was_written(tmp_path: pathlib.Path) -> None:
    manifest = a_manifest(tmp_path)
    write(tmp_path, manifest)
    assert manifests.read_manifest(str(tmp_path), manifest.name) == manifest


def test_the_file_is_strict_json_with_its_format(tmp_path: pathlib.Path) -> None:
    content = json.loads(a_manifest(tmp_path).to_bytes())
    assert content["format"] == 1
    assert content["files"][0] == {"name": "ckpt-7.index", "bytes": 23, "crc32": content["files"][0]["crc32"]}
    with pytest.raises(ValueError, match="JSON"):
        a_manifest(tmp_path, resume={"loss": float("nan")}).to_bytes()


def test_a_large_file_has_no_checksum_in_the_manifest(tmp_path: pathlib.Path) -> None:
    (tmp_path / "small").write_bytes(b"123456789")
    (tmp_path / "large").write_bytes(bytes((1 << 20) + 1))
    assert FileRecord.of(str(tmp_path), "small") == FileRecord(name="small", bytes=9, crc32="cbf43926")
    assert FileRecord.of(str(tmp_path), "large") == FileRecord(name="large", bytes=(1 << 20) + 1)


def test_an_index_has_a_checksum_whatever_its_size(tmp_path: pathlib.Path) -> None:
    """TensorFlow checks what an index points to, and not always the index."""
    (tmp_path / "ckpt-1.index").write_bytes(bytes((1 << 20) + 1))
    assert FileRecord.of(str(tmp_path), "ckpt-1.index").crc32 is not None


@pytest.mark.parametrize("version", [2, 0, "1", None, [1]])
def test_another_format_is_refused_with_the_cure_and_nothing_is_touched(
    tmp_path: pathlib.Path, version: object
) -> None:
    manifest = a_manifest(tmp_path)
    path = write(tmp_path, manifest)
    path.write_text(json.dumps({"format": version, "new": "fields"}))
    with pytest.raises(NewerFormatError, match=r"(?s)has format .*reads format 1.*HINT: upgrade"):
        manifests.readable_manifests(str(tmp_path))
    assert path.exists()


def with_field(name: str, value: object) -> bytes:
    content = {
        "format": 1,
        "prefix": "ckpt-7",
        "number": 7,
        "step": 1,
        "incarnation": 0,
        "resume": {},
        "workers": 1,
        "reason": "r",
        "written": "t",
        "seconds": 0.5,
        "versions": {},
        "variables": [],
        "files": [{"name": "ckpt-7.index", "bytes": 3, "crc32": None}],
    }
    return json.dumps({**content, name: value}).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"null",
        b"[]",
        b"[1]",
        b"7",
        b'"text"',
        b"{}",
        b'{"format": 1}',
        b'{"format": 1, "files": []}',
        b'{"format": 1, "files": [{}]}',
        with_field("files", None),
        with_field("files", ["ckpt-7.index"]),
        with_field("files", [{"name": 3, "bytes": 3}]),
        with_field("files", [{"name": "ckpt-7.index", "bytes": "3"}]),
        with_field("files", [{"name": "../elsewhere", "bytes": 3}]),
        with_field("files", [{"name": "/etc/passwd", "bytes": 3}]),
        with_field("files", [{"name": "ckpt-7.workers/../../elsewhere", "bytes": 3}]),
        with_field("unknown", 1),
        with_field("prefix", "ckpt-8"),
        with_field("number", "7"),
        with_field("step", None),
        with_field("step", True),
        with_field("resume", []),
        with_field("workers", "2"),
        with_field("incarnation", 1.5),
        with_field("variables", {}),
    ],
)
def test_what_is_no_manifest_counts_as_damaged(tmp_path: pathlib.Path, content: bytes) -> None:
    (tmp_path / "ckpt-7.manifest.json").write_bytes(content)
    with pytest.raises(CheckpointFormatError, match=r"ckpt-7\.manifest\.json is not a manifest") as raised:
        manifests.read_manifest(str(tmp_path), "ckpt-7.manifest.json")
    assert not isinstance(raised.value, NewerFormatError)
    good, damaged = manifests.readable_manifests(str(tmp_path))
    assert good == []
    assert [broken.name for broken in damaged] == ["ckpt-7.manifest.json"]


def test_the_valid_form_of_these_contents_is_a_manifest(tmp_path: pathlib.Path) -> None:
    (tmp_path / "ckpt-7.manifest.json").write_bytes(with_field("step", 5))
    assert manifests.read_manifest(str(tmp_path), "ckpt-7.manifest.json").step == 5


def test_a_manifest_that_is_not_there_is_an_os_error(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError):
        manifests.read_manifest(str(tmp_path), "ckpt-7.manifest.json")


def test_manifests_are_listed_newest_first_by_number_and_nothing_else_is(tmp_path: pathlib.Path) -> None:
    names = ["ckpt-9.manifest.json", "ckpt-10.manifest.json", "my-model-2.manifest.json"]
    others = [".ckpt-11.manifest.json.x1.tmp", "ckpt-12.index", "manifest.json", "ckpt-x.manifest.json"]
    for name in [*names, *others, ".ckpt-13.manifest.json"]:
        (tmp_path / name).touch()
    assert manifests.manifest_names(str(tmp_path)) == [
        (10, "ckpt-10.manifest.json"),
        (9, "ckpt-9.manifest.json"),
        (2, "my-model-2.manifest.json"),
    ]
    assert manifests.manifest_names(str(tmp_path / "missing")) == []


def test_the_newest_is_the_one_with_the_largest_number_whatever_its_name_says(tmp_path: pathlib.Path) -> None:
    """A user's `save_fn` names its checkpoints as it likes."""
    for prefix, number in (("ckpt-6", 6), ("mine-2", 7), ("ckpt-5", 5)):
        write(tmp_path, a_manifest(tmp_path, number=number, prefix=prefix))
    good, _ = manifests.readable_manifests(str(tmp_path))
    assert [manifest.prefix for manifest in good] == ["mine-2", "ckpt-6", "ckpt-5"]


def test_files_that_are_as_the_manifest_says_have_no_problem(tmp_path: pathlib.Path) -> None:
    assert manifests.problem_with(str(tmp_path), a_manifest(tmp_path)) is None


@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda path: path.unlink(), "is missing"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "bytes, its manifest says"),
        (lambda path: path.write_bytes(b""), "has 0 bytes"),
        (lambda path: path.write_bytes(path.read_bytes() + b"x"), "bytes, its manifest says"),
        (lambda path: path.write_bytes(b"X" + path.read_bytes()[1:]), "does not have the checksum"),
    ],
)
def test_every_damage_to_every_file_is_found(
    tmp_path: pathlib.Path, position: int, damage: object, problem: str
) -> None:
    manifest = a_manifest(tmp_path)
    name = manifest.files[position].name
    damage(tmp_path / name)  # type: ignore[operator]
    found = manifests.problem_with(str(tmp_path), manifest)
    assert found is not None
    assert found.startswith(name)
    assert problem in found


def test_setting_aside_moves_one_checkpoint_with_all_its_files(tmp_path: pathlib.Path) -> None:
    for number in (1, 11):
        write(tmp_path, a_manifest(tmp_path, number))
    manifests.set_aside(str(tmp_path), prefix="ckpt-1")
    assert sorted(os.listdir(tmp_path)) == [
        "ckpt-11.data-00000-of-00001",
        "ckpt-11.index",
        "ckpt-11.manifest.json",
        "ckpt-11.workers",
        "set-aside",
    ]
    assert sorted(os.listdir(tmp_path / "set-aside")) == [
        "ckpt-1.data-00000-of-00001",
        "ckpt-1.index",
        "ckpt-1.manifest.json",
        "ckpt-1.workers",
    ]
    assert (tmp_path / "set-aside/ckpt-1.workers/00000-of-00001.index").exists()


def test_setting_aside_the_same_name_again_replaces_what_is_there(tmp_path: pathlib.Path) -> None:
    for reason in ("first", "second"):
        write(tmp_path, a_manifest(tmp_path, reason=reason))
        manifests.set_aside(str(tmp_path), prefix="ckpt-7")
    assert manifests.read_manifest(str(tmp_path / "set-aside"), "ckpt-7.manifest.json").reason == "second"


@pytest.mark.parametrize(
    ("names", "number"),
    [
        ([], 1),
        (["checkpoint", "events/00003-00001.jsonl"], 1),
        (["ckpt-7.index"], 8),
        (["ckpt-7.data-00000-of-00001"], 8),
        (["ckpt-7.workers/00000-of-00001.index"], 8),
        (["ckpt-9.manifest.json", "ckpt-10.manifest.json"], 11),
        ([".ckpt-12.manifest.json.abc.tmp"], 13),
        (["ckpt-7_temp/part-00000-of-00001"], 8),
        (["set-aside/ckpt-20.manifest.json", "ckpt-7.index"], 21),
        (["my-model-3.index"], 4),
    ],
)
def test_the_next_number_is_one_that_nothing_has_used(
    tmp_path: pathlib.Path, names: list[str], number: int
) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert manifests.next_number(str(tmp_path)) == number


def test_the_next_incarnation_follows_events_and_manifests(tmp_path: pathlib.Path) -> None:
    assert manifests.next_incarnation(str(tmp_path / "missing")) == 0
    assert manifests.next_incarnation(str(tmp_path)) == 0
    (tmp_path / "events").mkdir()
    for name in ("00000-00000.jsonl", "00002-00001.0001.jsonl", "notes.txt"):
        (tmp_path / "events" / name).touch()
    assert manifests.next_incarnation(str(tmp_path)) == 3
    write(tmp_path, dataclasses.replace(a_manifest(tmp_path), incarnation=5))
    assert manifests.next_incarnation(str(tmp_path)) == 6
