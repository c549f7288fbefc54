import dataclasses
import json
import os

import pytest

from tf_preempt.errors import CheckpointFormatError, ConfigError, DirectoryNotWritableError
from tf_preempt.goodput.status_file import Status, StatusFile


def test_status_comes_back_as_it_was_written(tmp_path):
    file = StatusFile(str(tmp_path / "status"))
    for commits in (0, 1):
        status = Status(
            incarnation=3, restored_step=100, committed_step=120, commits=commits, reason="notice: SIGTERM"
        )
        file.write(status)
        assert file.read() == status


def test_file_holds_exactly_the_documented_fields(tmp_path):
    StatusFile(str(tmp_path / "status")).write(Status(incarnation=3))
    assert json.loads((tmp_path / "status").read_text()) == {
        "format": 1,
        "incarnation": 3,
        "restored_step": None,
        "committed_step": None,
        "commits": 0,
        "reason": None,
    }


def test_missing_file_is_none(tmp_path):
    assert StatusFile(str(tmp_path / "status")).read() is None


def test_path_comes_from_the_environment():
    assert StatusFile.from_environ({"TF_PREEMPT_STATUS_FILE": "/x/status"}).path == "/x/status"


@pytest.mark.parametrize("environ", [{}, {"TF_PREEMPT_STATUS_FILE": ""}])
def test_without_a_supervisor_there_is_no_file(environ):
    assert StatusFile.from_environ(environ) is None


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        '{"format": "1", "incarnation": 0}',
        '{"format": 1}',
        '{"format": 1, "incarnation": -1}',
        '{"format": 1, "incarnation": true}',
        '{"format": 1, "incarnation": 0, "commits": null}',
        '{"format": 1, "incarnation": 0, "committed_step": 1.5}',
        '{"format": 1, "incarnation": 0, "reason": 7}',
        '{"format": 1, "incarnation": 0, "colour": "red"}',
        "\udcff",
    ],
)
def test_malformed_content_is_an_error_that_names_the_file(tmp_path, content):
    path = tmp_path / "status"
    path.write_bytes(os.fsencode(content))
    with pytest.raises(CheckpointFormatError, match=r"status' cannot be understood(.|\n)*HINT"):
        StatusFile(str(path)).read()


def test_newer_format_is_said_also_when_its_fields_are_unknown(tmp_path):
    (tmp_path / "status").write_text('{"format": 2, "epoch": 3}')
    with pytest.raises(CheckpointFormatError, match="format 2, and this version reads up to 1"):
        StatusFile(str(tmp_path / "status")).read()


def test_path_that_cannot_be_written_is_named_with_the_variable(tmp_path):
    with pytest.raises(DirectoryNotWritableError, match=r"missing/status(.|\n)*TF_PREEMPT_STATUS_FILE"):
        StatusFile(str(tmp_path / "missing" / "status")).write(Status(incarnation=0))


@pytest.mark.parametrize(
    "wrong", [{"incarnation": -1}, {"commits": None}, {"restored_step": "7"}, {"reason": 3}, {"format": 0.5}]
)
def test_wrong_status_is_refused(wrong):
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))}="):
        dataclasses.replace(Status(incarnation=0), **wrong)
