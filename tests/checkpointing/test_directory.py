from __future__ import annotations

import os
import pathlib

import pytest

from tf_preempt.checkpointing.directory import (
    DirectoryClaim,
    WriteProof,
    check_shared,
    directory_news,
    resolve_directory,
)
from tf_preempt.errors import (
    ConfigError,
    DirectoryInUseError,
    DirectoryNotGivenError,
    DirectoryNotSharedError,
    DirectoryNotWritableError,
)

ALL = {
    "TF_PREEMPT_DIR_OVERRIDE": "/override",
    "TF_PREEMPT_DIR": "/default",
    "AIP_CHECKPOINT_DIR": "gs://aip/x/",
}


def without(*names: str) -> dict[str, str]:
    return {name: value for name, value in ALL.items() if name not in names}


@pytest.mark.parametrize(
    ("argument", "environ", "directory"),
    [
        ("/given", ALL, "/override"),
        (None, ALL, "/override"),
        ("/given", without("TF_PREEMPT_DIR_OVERRIDE"), "/given"),
        ("/given/", {}, "/given"),
        (pathlib.Path("/given/x"), {}, "/given/x"),
        ("gs://bucket/run-7/", {}, "gs://bucket/run-7"),
        (None, without("TF_PREEMPT_DIR_OVERRIDE"), "/default"),
        ("", without("TF_PREEMPT_DIR_OVERRIDE"), "/default"),
        (None, without("TF_PREEMPT_DIR_OVERRIDE", "TF_PREEMPT_DIR"), "gs://aip/x"),
        (None, {"TF_PREEMPT_DIR_OVERRIDE": "", "TF_PREEMPT_DIR": "", "AIP_CHECKPOINT_DIR": "/a"}, "/a"),
        ("runs/7", {}, os.path.join(os.getcwd(), "runs/7")),
        ("~/runs", {}, os.path.expanduser("~/runs")),
    ],
)
def test_the_directory_comes_from_override_argument_and_environment_in_this_order(
    argument: str | pathlib.Path | None, environ: dict[str, str], directory: str
) -> None:
    assert resolve_directory(argument, environ) == directory


@pytest.mark.parametrize(
    ("argument", "environ", "news"),
    [
        (
            "/given",
            ALL,
            "TF_PREEMPT_DIR_OVERRIDE=/override is used in place of the program's directory /given.",
        ),
        (None, ALL, "Checkpoints go to /override (from TF_PREEMPT_DIR_OVERRIDE)."),
        (
            None,
            without("TF_PREEMPT_DIR_OVERRIDE"),
            "Checkpoints go to /default (from TF_PREEMPT_DIR).",
        ),
        ("", {"AIP_CHECKPOINT_DIR": "/a"}, "Checkpoints go to /a (from AIP_CHECKPOINT_DIR)."),
        ("/given", without("TF_PREEMPT_DIR_OVERRIDE"), None),
        (None, {"TF_PREEMPT_DIR": ""}, None),
    ],
)
def test_a_directory_that_the_environment_chose_is_news(
    argument: str | None, environ: dict[str, str], news: str | None
) -> None:
    assert directory_news(argument, environ) == news


@pytest.mark.parametrize("argument", [None, ""])
def test_no_directory_anywhere_is_an_error_that_names_all_places(argument: str | None) -> None:
    with pytest.raises(DirectoryNotGivenError, match="HINT: pass one") as raised:
        resolve_directory(argument, {"TF_PREEMPT_DIR": ""})
    for name in ("directory=", "TF_PREEMPT_DIR", "AIP_CHECKPOINT_DIR"):
        assert name in str(raised.value)


def test_a_directory_has_one_user_at_a_time_also_under_another_name(tmp_path: pathlib.Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    claim = DirectoryClaim(str(tmp_path))
    for name in (tmp_path, tmp_path / "link", tmp_path / "." / "link" / ".." / tmp_path.name):
        with pytest.raises(DirectoryInUseError, match=r"(?s)at the same time.*HINT: pass one"):
            DirectoryClaim(str(name))
    claim.release()
    claim.release()
    DirectoryClaim(str(tmp_path / "link")).release()


def test_a_refused_claim_does_not_take_the_first_ones_away(tmp_path: pathlib.Path) -> None:
    claim = DirectoryClaim(str(tmp_path))
    for _ in range(2):
        with pytest.raises(DirectoryInUseError):
            DirectoryClaim(str(tmp_path))
    claim.release()


def test_urls_are_claimed_by_name() -> None:
    claim = DirectoryClaim("gs://bucket/a")
    DirectoryClaim("gs://bucket/b").release()
    with pytest.raises(DirectoryInUseError):
        DirectoryClaim("gs://bucket/a")
    claim.release()


def test_a_proof_is_seen_by_others_and_leaves_nothing(tmp_path: pathlib.Path) -> None:
    directory = str(tmp_path / "new" / "run")
    proof = WriteProof(directory)
    check_shared(directory, proof.name, worker=1)
    proof.remove()
    assert os.listdir(directory) == []
    proof.remove(also_directory=True)
    assert os.listdir(tmp_path) == []


def test_a_relative_directory_is_taken_away_too(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    WriteProof("new/run").remove(also_directory=True)
    assert os.listdir(tmp_path) == []


def test_a_proof_takes_away_only_directories_that_it_has_made(tmp_path: pathlib.Path) -> None:
    WriteProof(str(tmp_path)).remove(also_directory=True)
    assert tmp_path.exists()


def test_a_proof_leaves_directories_that_are_not_empty(tmp_path: pathlib.Path) -> None:
    proof = WriteProof(str(tmp_path / "new" / "run"))
    (tmp_path / "new" / "run" / "file").touch()
    proof.remove(also_directory=True)
    assert os.listdir(tmp_path / "new" / "run") == ["file"]


def test_two_proofs_never_have_the_same_name(tmp_path: pathlib.Path) -> None:
    proofs = [WriteProof(str(tmp_path)) for _ in range(2)]
    assert len(os.listdir(tmp_path)) == 2
    for proof in proofs:
        proof.remove()


@pytest.mark.parametrize("below", ["", "run", "a/b"])
def test_a_directory_that_cannot_be_written_to_is_an_error_that_names_it(
    tmp_path: pathlib.Path, below: str
) -> None:
    (tmp_path / "file").write_text("no directory")
    directory = os.path.join(tmp_path, "file", below)
    with pytest.raises(DirectoryNotWritableError, match=r"(?s)cannot be written to.*HINT") as raised:
        WriteProof(directory)
    assert directory in str(raised.value)
    assert os.listdir(tmp_path) == ["file"]


def test_a_proof_that_does_not_appear_is_an_error_that_names_worker_and_directory(
    tmp_path: pathlib.Path,
) -> None:
    with pytest.raises(
        DirectoryNotSharedError, match=r"(?s)Worker 3 does not see.*HINT: all workers"
    ) as raised:
        check_shared(str(tmp_path), "proof", worker=3, patience_s=0.0)
    assert str(tmp_path) in str(raised.value)


def test_a_directory_that_is_no_path_is_named() -> None:
    with pytest.raises(ConfigError, match=r"directory=5: expected a path .* received int"):
        resolve_directory(5, {})  # type: ignore[arg-type]
