import json

import pytest

from tf_preempt.checkpointing.manifest import FileRecord, Manifest
from tf_preempt.cli.doctor.finding import Status
from tf_preempt.cli.doctor.saves import Notice, SaveTimes, check_saves, read_save_times
from tf_preempt.goodput.events import EventLog

NOTICE = Notice(seconds=10.0, origin="GraceTime 5 s + KillWait 5 s", cure="ask for more")


def write_manifest(directory, number, seconds, size_bytes=0):
    manifest = Manifest(
        prefix=f"ckpt-{number}",
        number=number,
        step=number,
        incarnation=0,
        resume={},
        workers=1,
        reason="",
        written="",
        seconds=seconds,
        versions={},
        files=[FileRecord(name="x", bytes=size_bytes)],
    )
    (directory / manifest.name).write_bytes(manifest.to_bytes())


def write_commits(directory, *commits):
    with EventLog(str(directory), incarnation=0, worker=0) as events:
        for number, seconds in commits:
            events.write("save", checkpoint=f"ckpt-{number}", seconds=100.0)
            events.write("commit", checkpoint=f"ckpt-{number}", seconds=seconds)


def test_times_come_from_manifests_and_from_the_events_of_checkpoints_that_are_gone(tmp_path):
    write_commits(tmp_path, (1, 9.0), (2, 2.0), (3, 3.0))
    write_manifest(tmp_path, 3, 3.0, size_bytes=3_000)
    write_manifest(tmp_path, 4, 4.0, size_bytes=4_000)
    times, findings = read_save_times(str(tmp_path))
    assert times == SaveTimes(seconds=(9.0, 2.0, 3.0, 4.0), size_bytes=4_000)
    assert (times.slowest_s, findings) == (9.0, [])


def test_only_the_newest_saves_count(tmp_path):
    write_commits(tmp_path, (1, 99.0), *((number, 1.0) for number in range(2, 22)))
    times, _ = read_save_times(str(tmp_path))
    assert (len(times.seconds), times.slowest_s) == (20, 1.0)


def test_a_directory_that_is_not_there_has_no_saves(tmp_path):
    assert read_save_times(str(tmp_path / "none")) == (SaveTimes(), [])


def test_a_damaged_manifest_is_a_warning_and_the_others_count(tmp_path):
    write_manifest(tmp_path, 1, 1.0)
    (tmp_path / "ckpt-2.manifest.json").write_text("{")
    times, (finding,) = read_save_times(str(tmp_path))
    assert times.seconds == (1.0,)
    assert finding.status is Status.WARNING
    assert finding.message.startswith("ckpt-2.manifest.json cannot be read: ")


def test_a_directory_that_cannot_be_read_is_one_warning_with_the_cure(tmp_path):
    (tmp_path / "file").touch()
    times, (finding,) = read_save_times(str(tmp_path / "file"))
    assert times == SaveTimes()
    assert finding.status is Status.WARNING
    assert "read the checkpoint directory" in finding.hint


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("ckpt-2.manifest.json", {"format": 9}),
        ("events/00001-00000.jsonl", {"v": 9, "t": 1.0, "kind": "commit"}),
    ],
)
def test_a_newer_format_is_an_error_with_the_cure(tmp_path, name, content):
    write_commits(tmp_path, (1, 1.5))
    (tmp_path / name).write_text(json.dumps(content) + "\n")
    _, (finding,) = read_save_times(str(tmp_path))
    assert finding.status is Status.ERROR
    assert "tf_preempt" in finding.hint


@pytest.mark.parametrize(
    ("seconds", "status", "said"),
    [
        ((0.5, 5.0, 1.0), Status.OK, "the slowest of 3 commit(s) took 5.00 s"),
        ((5.1,), Status.WARNING, "tight, as the running step ends first"),
        ((10.0,), Status.WARNING, "tight, as the running step ends first"),
        ((10.1,), Status.ERROR, "it does not fit"),
        ((), Status.INFO, "no commit in this directory yet"),
    ],
)
def test_the_slowest_save_is_compared_with_the_notice(seconds, status, said):
    finding = check_saves(SaveTimes(seconds=seconds), NOTICE, otherwise="not this")
    assert finding.status is status
    assert said in finding.message
    assert NOTICE.origin in finding.message
    assert "not this" not in finding.message
    assert finding.values["notice_s"] == 10.0
    assert finding.hint is None or NOTICE.cure in finding.hint


def test_without_a_known_notice_the_time_is_only_told():
    finding = check_saves(SaveTimes(seconds=(3.0,), size_bytes=2_000_000), None, otherwise="nobody preempts")
    assert finding.status is Status.INFO
    assert finding.message == (
        "the slowest of 1 commit(s) took 3.00 s (the newest has 2.0 MB); nobody preempts"
    )
