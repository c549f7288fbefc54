import json
import os

from tf_preempt.checkpointing.manifest import FileRecord, Manifest, problem_with, readable_manifests
from tf_preempt.testing.drill.kept_checkpoints import KeptCheckpoints


def commit(directory, number, size=10):
    prefix = f"ckpt-{number}"
    names = [f"{prefix}.index", f"{prefix}.workers/00000-of-00001.index"]
    (directory / f"{prefix}.workers").mkdir(parents=True)
    for name in names:
        (directory / name).write_bytes(b"x" * size)
    manifest = Manifest(
        prefix=prefix,
        number=number,
        step=number,
        incarnation=0,
        resume={},
        workers=1,
        reason="",
        written="",
        seconds=0.0,
        versions={},
        files=[FileRecord.of(str(directory), name) for name in names],
    )
    (directory / manifest.name).write_bytes(manifest.to_bytes())


def test_checkpoint_outlives_its_deletion_in_the_directory(tmp_path):
    commit(tmp_path / "it", 1)
    kept = KeptCheckpoints(str(tmp_path / "it"), str(tmp_path / "kept"))
    assert kept.keep("ckpt-1") is True
    for folder, _, names in os.walk(tmp_path / "it"):
        for name in names:
            os.unlink(os.path.join(folder, name))
    (manifest,), damaged = readable_manifests(str(tmp_path / "kept"))
    assert damaged == []
    assert problem_with(str(tmp_path / "kept"), manifest) is None


def test_checkpoint_that_is_gone_already_is_left_out(tmp_path):
    commit(tmp_path / "it", 1)
    (tmp_path / "it" / "ckpt-1.index").unlink()
    kept = KeptCheckpoints(str(tmp_path / "it"), str(tmp_path / "kept"))
    assert kept.keep("ckpt-1") is False
    assert kept.keep("ckpt-2") is False
    assert readable_manifests(str(tmp_path / "kept")) == ([], [])


def test_no_more_is_kept_than_was_allowed(tmp_path):
    for number, size in ((1, 10), (2, 100), (3, 10)):
        commit(tmp_path / "it", number, size)
    kept = KeptCheckpoints(str(tmp_path / "it"), str(tmp_path / "kept"), most_bytes=50)
    assert [kept.keep(f"ckpt-{number}") for number in (1, 2, 3)] == [True, False, True]


def test_file_that_is_no_manifest_is_left_out(tmp_path):
    (tmp_path / "it").mkdir()
    (tmp_path / "it" / "ckpt-1.manifest.json").write_text(json.dumps({"format": 1}))
    assert KeptCheckpoints(str(tmp_path / "it"), str(tmp_path / "kept")).keep("ckpt-1") is False
