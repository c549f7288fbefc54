import json
import logging
import os
import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tf_preempt import _files
from tf_preempt.errors import ConfigError, NewerFormatError
from tf_preempt.goodput.events import EventFollower, EventLog, read_events


class Clock:
    def __init__(self, now=0.0):
        self.now = now

    def __call__(self):
        self.now += 1.0
        return self.now


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def append(directory, name, text):
    folder = directory / "events"
    folder.mkdir(exist_ok=True)
    with open(folder / name, "a") as file:
        file.write(text)


def line(t=1.0, v=1, **fields):
    return json.dumps({"v": v, "t": t, "worker": 0, "incarnation": 0, "kind": "x", **fields}) + "\n"


def test_line_has_the_documented_form_and_place(tmp_path):
    with EventLog(str(tmp_path), incarnation=3, worker=1, clock=Clock(10.25)) as log:
        log.write("notice", source="SIGTERM", deadline_s=None, boundary=315)
    assert lines_of(tmp_path / "events" / "00003-00001.jsonl") == [
        {
            "v": 1,
            "t": 11.25,
            "worker": 1,
            "incarnation": 3,
            "kind": "notice",
            "source": "SIGTERM",
            "deadline_s": None,
            "boundary": 315,
        }
    ]


def test_nothing_is_created_before_the_first_event(tmp_path):
    EventLog(str(tmp_path / "run"), incarnation=0, worker=0).close()
    assert not (tmp_path / "run").exists()


def test_event_can_be_read_before_the_log_is_closed(tmp_path):
    with EventLog(str(tmp_path), incarnation=0, worker=0) as log:
        log.write("started")
        assert [event["kind"] for event in read_events(str(tmp_path))] == ["started"]


def test_numbers_of_numpy_stay_numbers_and_the_rest_becomes_text(tmp_path):
    with EventLog(str(tmp_path), incarnation=0, worker=0) as log:
        log.write("x", step=np.int64(7), loss=np.float32(0.5), many=np.arange(2), other=ValueError("no"))
    (event,) = read_events(str(tmp_path))
    assert (event["step"], event["loss"], event["many"], event["other"]) == (7, 0.5, [0, 1], "no")


@pytest.mark.parametrize("name", ["v", "t", "worker", "incarnation", "kind"])
def test_field_with_a_name_that_all_events_use_is_refused(tmp_path, name):
    log = EventLog(str(tmp_path), incarnation=0, worker=0)
    with pytest.raises(ConfigError, match=f"'{name}'"):
        log.write("x", **{name: 1})


@pytest.mark.parametrize("argument", ["incarnation", "worker"])
def test_negative_number_is_refused(tmp_path, argument):
    with pytest.raises(ConfigError, match=f"{argument}=-1"):
        EventLog(str(tmp_path), **{"incarnation": 0, "worker": 0, argument: -1})


def test_threads_write_whole_lines(tmp_path):
    with EventLog(str(tmp_path), incarnation=0, worker=0) as log:

        def write(thread):
            for i in range(200):
                log.write("x", thread=thread, i=i, filler="y" * 500)

        threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    seen = {(event["thread"], event["i"]) for event in lines_of(tmp_path / "events" / "00000-00000.jsonl")}
    assert seen == {(thread, i) for thread in range(4) for i in range(200)}


def test_closing_twice_and_writing_after_it_do_nothing(tmp_path):
    log = EventLog(str(tmp_path), incarnation=0, worker=0)
    log.write("x")
    log.close()
    log.write("late")
    log.flush()
    log.close()
    assert [event["kind"] for event in read_events(str(tmp_path))] == ["x"]


def test_directory_that_cannot_be_written_is_logged_once_and_recovered_from(tmp_path, caplog):
    (tmp_path / "events").write_text("a file in the way")
    with (
        caplog.at_level(logging.WARNING, "tf_preempt"),
        EventLog(str(tmp_path), incarnation=0, worker=0) as log,
    ):
        log.write("lost")
        log.write("lost too")
        (tmp_path / "events").unlink()
        log.write("kept")
    assert [event["kind"] for event in read_events(str(tmp_path))] == ["kept"]
    assert len(caplog.records) == 1
    assert "00000-00000.jsonl misses events" in caplog.text


def test_line_after_one_that_only_partly_fitted_on_the_disk_is_whole(tmp_path, monkeypatch, caplog):
    with EventLog(str(tmp_path), incarnation=0, worker=0) as log:
        log.write("before")
        write = os.write
        with monkeypatch.context() as disk_full:
            disk_full.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:9]))
            log.write("torn")
        log.write("after")
    assert [event["kind"] for event in read_events(str(tmp_path))] == ["before", "after"]


def test_log_goes_on_behind_a_torn_line_of_a_killed_process(tmp_path):
    append(tmp_path, "00000-00000.jsonl", line(kind="whole") + '{"v": 1, "t"')
    with EventLog(str(tmp_path), incarnation=0, worker=0) as log:
        log.write("next")
    assert [event["kind"] for event in read_events(str(tmp_path))] == ["whole", "next"]


def test_events_of_all_workers_and_incarnations_come_in_the_order_of_time(tmp_path):
    append(tmp_path, "00001-00000.jsonl", line(5.0, kind="e") + line(6.0, kind="f"))
    append(tmp_path, "00000-00001.jsonl", line(1.0, kind="a") + line(3.5, kind="d"))
    append(tmp_path, "00000-00000.jsonl", line(2.0, kind="b") + line(3.0, kind="c"))
    assert "".join(event["kind"] for event in read_events(str(tmp_path))) == "abcdef"


def test_other_files_in_the_folder_are_left_alone(tmp_path):
    append(tmp_path, "00000-00000.jsonl", line())
    append(tmp_path, "notes.jsonl", line())
    append(tmp_path, ".00000-00000.jsonl.x.tmp", line())
    assert len(read_events(str(tmp_path))) == 1


def test_directory_without_a_log_has_no_events(tmp_path):
    assert read_events(str(tmp_path / "nothing")) == []
    assert EventFollower(str(tmp_path / "nothing")).poll() == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, len(line(kind="torn")) - 2))
def test_torn_last_line_is_left_out_wherever_it_is_torn(tmp_path, cut):
    folder = tmp_path / "events"
    folder.mkdir(exist_ok=True)
    (folder / "00000-00000.jsonl").write_text(line(kind="whole") + line(kind="torn")[:cut])
    assert [event["kind"] for event in read_events(str(tmp_path))] == ["whole"]


def test_last_line_that_lacks_only_its_end_is_read(tmp_path):
    append(tmp_path, "00000-00000.jsonl", line(kind="a") + line(kind="b")[:-1])
    assert [event["kind"] for event in read_events(str(tmp_path))] == ["a", "b"]


@pytest.mark.parametrize("rubbish", ["[1]\n", "7\n", '{"v": 1}\n', '{"v": "1", "t": 1}\n', "\x00\x00\n"])
def test_line_that_is_no_event_is_left_out_and_said(tmp_path, caplog, rubbish):
    append(tmp_path, "00000-00000.jsonl", rubbish + line(kind="good"))
    assert [event["kind"] for event in read_events(str(tmp_path))] == ["good"]
    assert "left out a line" in caplog.text


@pytest.mark.parametrize("read", [read_events, lambda directory: EventFollower(directory).poll()])
def test_line_of_a_newer_version_is_refused(tmp_path, read):
    append(tmp_path, "00000-00000.jsonl", line(v=2))
    with pytest.raises(NewerFormatError, match=r"v=2(.|\n)*HINT"):
        read(str(tmp_path))


def test_follower_gives_each_event_once_also_of_files_that_appear_later(tmp_path):
    follower = EventFollower(str(tmp_path))
    assert follower.poll() == []
    append(tmp_path, "00000-00000.jsonl", line(2.0, kind="a"))
    append(tmp_path, "00000-00001.jsonl", line(1.0, kind="b"))
    assert [event["kind"] for event in follower.poll()] == ["b", "a"]
    assert follower.poll() == []
    append(tmp_path, "00001-00000.jsonl", line(3.0, kind="c"))
    append(tmp_path, "00000-00000.jsonl", line(4.0, kind="d"))
    assert [event["kind"] for event in follower.poll()] == ["c", "d"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(0, 400), max_size=8))
def test_follower_is_not_confused_by_lines_that_come_in_pieces(tmp_path, cuts):
    content = "".join(line(float(i), kind="é" * i) for i in range(5)).encode()
    path = tmp_path / "events" / "00000-00000.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"")
    follower, seen = EventFollower(str(tmp_path)), []
    for end in [*sorted(cuts), len(content)]:
        path.write_bytes(content[:end])
        seen += follower.poll()
    assert [event["t"] for event in seen] == [0.0, 1.0, 2.0, 3.0, 4.0]


class FakeObjectStore:
    """Objects by URL, behind the few functions of `_files` that the event log uses."""

    def __init__(self, monkeypatch):
        self.objects = {}
        self.broken = False
        for name in ("make_dirs", "exists", "write_atomic", "list_dir", "read_bytes"):
            monkeypatch.setattr(_files, name, getattr(self, name))

    def make_dirs(self, path):
        pass

    def exists(self, path):
        return path in self.objects

    def write_atomic(self, path, content):
        if self.broken:
            raise RuntimeError("store is away")  # TensorFlow's errors are no OSError
        self.objects[path] = content

    def list_dir(self, path):
        return sorted(p.removeprefix(path + "/") for p in self.objects if p.startswith(path + "/"))

    def read_bytes(self, path):
        return self.objects[path]


@pytest.fixture
def store(monkeypatch):
    return FakeObjectStore(monkeypatch)


def test_url_gets_one_object_per_flush_that_had_something(store):
    with EventLog("gs://b/run", incarnation=3, worker=1) as log:
        log.write("a")
        log.write("b")
        assert store.objects == {}
        log.flush()
        log.flush()
        log.write("c")
    assert {path: content.count(b"\n") for path, content in store.objects.items()} == {
        "gs://b/run/events/00003-00001.0000.jsonl": 2,
        "gs://b/run/events/00003-00001.0001.jsonl": 1,
    }
    assert [event["kind"] for event in read_events("gs://b/run")] == ["a", "b", "c"]


@pytest.mark.parametrize("kind", ["start", "restore", "notice", "commit", "exit"])
def test_url_gets_what_tells_of_a_life_at_once_with_all_before_it(store, kind):
    log = EventLog("gs://b/run", incarnation=0, worker=0)
    log.write("save")
    log.write(kind)
    log.write("save")
    assert [event["kind"] for event in read_events("gs://b/run")] == ["save", kind]
    log.close()


def test_event_whose_own_flush_fails_is_kept_and_raises_nothing(store):
    with EventLog("gs://b/run", incarnation=0, worker=0) as log:
        store.broken = True
        log.write("start")
        store.broken = False
        log.write("commit")
        assert [event["kind"] for event in read_events("gs://b/run")] == ["start", "commit"]


def test_second_log_of_a_worker_replaces_no_object(store):
    for kind in "ab":
        with EventLog("gs://b/run", incarnation=0, worker=0) as log:
            log.write(kind)
    assert [event["kind"] for event in read_events("gs://b/run")] == ["a", "b"]


def test_events_wait_for_a_store_that_comes_back(store, caplog):
    with EventLog("gs://b/run", incarnation=0, worker=0) as log:
        store.broken = True
        log.write("a")
        log.flush()
        log.flush()
        store.broken = False
        log.write("b")
    assert [event["kind"] for event in read_events("gs://b/run")] == ["a", "b"]
    assert len(caplog.records) == 1


def test_follower_reads_each_object_once(store):
    follower = EventFollower("gs://b/run")
    with EventLog("gs://b/run", incarnation=0, worker=0) as log:
        log.write("a")
        log.flush()
        assert [event["kind"] for event in follower.poll()] == ["a"]
        log.write("b")
        log.flush()
        assert [event["kind"] for event in follower.poll()] == ["b"]
        assert follower.poll() == []
