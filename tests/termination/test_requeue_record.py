"""How often a job was requeued and how its runs ended, kept in the checkpoint directory."""

from __future__ import annotations

import json
import os

import pytest

from tf_preempt.termination.requeue_record import FILE_NAME, History, RequeueRecord


@pytest.fixture
def record(tmp_path):
    return RequeueRecord(str(tmp_path), "12")


def lives(record, *progress):
    """The history after lives that ended so."""
    history = History()
    for incarnation, made_progress in enumerate(progress):
        history = record.add(incarnation=incarnation, made_progress=made_progress)
    return history


@pytest.mark.parametrize(
    ("progress", "no_progress"),
    [
        ([True], 0),
        ([False], 1),
        ([None], 0),
        ([False, False], 2),
        ([False, True], 0),
        ([True, False], 1),
        ([False, None, False], 2),
        ([False, True, None, False, None], 1),
        ([False, False, None, True, None, None], 0),
    ],
)
def test_counts_the_lives_in_a_row_that_got_nowhere(record, progress, no_progress):
    assert lives(record, *progress) == History(requeues=0, no_progress=no_progress)


def test_a_life_counts_once_as_it_ended_last(record):
    record.add(incarnation=3, made_progress=False)
    assert record.add(incarnation=3, made_progress=False).no_progress == 1
    assert record.add(incarnation=3, made_progress=True).no_progress == 0


def test_requeues_are_counted_across_processes(record, tmp_path):
    record.count_requeue()
    record.add(incarnation=0, made_progress=False)
    RequeueRecord(str(tmp_path), "12").count_requeue()
    assert RequeueRecord(str(tmp_path), "12").add(incarnation=1, made_progress=None) == History(
        requeues=2, no_progress=1
    )


def test_another_job_in_the_same_directory_begins_anew(record, tmp_path, caplog):
    record.count_requeue()
    lives(record, False, False)
    assert lives(RequeueRecord(str(tmp_path), "13"), False) == History(requeues=0, no_progress=1)
    assert not caplog.records


def test_workers_that_end_the_same_life_count_once_also_before_it_has_a_number(record):
    for run, no_progress in ((0, 1), (0, 1), (1, 2), (1, 2)):
        assert record.add(run=run, incarnation=None, made_progress=False).no_progress == no_progress


def test_what_is_in_the_file(record, tmp_path):
    record.add(incarnation=2, made_progress=True)
    record.count_requeue()
    assert json.loads((tmp_path / FILE_NAME).read_text(encoding="utf-8")) == {
        "format": 1,
        "job": "12",
        "requeues": 1,
        "lives": [{"run": 0, "incarnation": 2, "progress": True}],
    }
    assert os.listdir(tmp_path) == [FILE_NAME]


def test_the_file_does_not_grow_without_end(record, tmp_path):
    lives(record, *[False] * 60)
    kept = json.loads((tmp_path / FILE_NAME).read_text(encoding="utf-8"))["lives"]
    assert [life["incarnation"] for life in kept] == list(range(10, 60))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "Expecting value"),
        (b'{"format": 1, "job": "12", "requ', "Unterminated string"),
        (b"\xff\xff", "decode"),
        (b"[]", "indices"),
        (b'{"format": 1}', "'job'"),
        (b'{"format": "1", "job": "12", "requeues": 0, "lives": []}', "not supported"),
        (b'{"format": 1, "job": "12", "requeues": "many", "lives": []}', "invalid literal"),
        (b'{"format": 1, "job": "12", "requeues": 5, "lives": [{}]}', "'run'"),
        (b'{"format": 2, "job": "12", "requeues": 5, "lives": []}', "has format 2, which is newer than 1"),
    ],
)
def test_a_file_that_cannot_be_read_costs_a_warning_only(record, tmp_path, caplog, content, words):
    (tmp_path / FILE_NAME).write_bytes(content)
    assert record.add(incarnation=0, made_progress=False) == History(requeues=0, no_progress=1)
    (message,) = caplog.messages
    assert f"{tmp_path / FILE_NAME} cannot be read, and requeues are counted anew" in message
    assert words in message
    assert record.add(incarnation=1, made_progress=False) == History(requeues=0, no_progress=2)


def test_a_file_that_cannot_be_written_costs_a_warning_only(tmp_path, caplog):
    record = RequeueRecord(str(tmp_path / "missing"), "12")
    assert record.add(incarnation=0, made_progress=False) == History(requeues=0, no_progress=1)
    record.count_requeue()
    assert len(caplog.messages) == 2
    assert all(
        "requeues.json cannot be written, so that this run is not counted" in m for m in caplog.messages
    )
    assert not (tmp_path / "missing").exists()
