import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_preempt.cli.demo.progress import TRAIN, VALIDATE, Position, ProgressFile, ProgressFollower


def positions():
    return st.builds(Position, st.integers(0, 5), st.sampled_from([TRAIN, VALIDATE]), st.integers(0, 99))


@given(positions(), positions())
def test_positions_are_in_the_order_in_which_keras_runs_them(one, other):
    def in_words(position):
        return position.epoch, [TRAIN, VALIDATE].index(position.phase), position.step

    assert (one < other) == (in_words(one) < in_words(other))


def test_position_in_words_counts_from_one():
    assert str(Position(0, TRAIN, 22)) == "epoch 1, step 23"
    assert str(Position(2, VALIDATE, 0)) == "epoch 3, validation batch 1"


@pytest.fixture
def follower(tmp_path):
    return ProgressFollower(str(tmp_path))


def test_records_come_once_in_the_order_of_their_times(tmp_path, follower):
    chief = ProgressFile(str(tmp_path), 0, clock=iter([1.0, 3.0, 4.0]).__next__)
    other = ProgressFile(str(tmp_path), 1, clock=iter([2.0]).__next__)
    chief.add(Position(0, TRAIN, 0))
    chief.add(Position(0, TRAIN, 1))
    other.add(Position(0, TRAIN, 0))
    records = follower.poll()
    assert [(record.worker, record.t, record.position.step) for record in records] == [
        (0, 1.0, 0),
        (1, 2.0, 0),
        (0, 3.0, 1),
    ]
    assert {record.pid for record in records} == {os.getpid()}
    assert follower.poll() == []
    chief.add(Position(0, TRAIN, 2))
    assert [record.t for record in follower.poll()] == [4.0]
    chief.close()
    other.close()


def test_torn_line_is_read_when_it_is_whole(tmp_path, follower):
    line = json.dumps([7, 1.5, 2, VALIDATE, 4])
    path = tmp_path / "worker-3.jsonl"
    path.write_text(line[:9])
    assert follower.poll() == []
    path.write_text(line + "\n")
    (record,) = follower.poll()
    assert (record.worker, record.pid, record.t, record.position) == (3, 7, 1.5, Position(2, VALIDATE, 4))


def test_second_incarnation_appends(tmp_path, follower):
    for step in range(2):
        file = ProgressFile(str(tmp_path), 0)
        file.add(Position(0, TRAIN, step))
        file.close()
    assert [record.position.step for record in follower.poll()] == [0, 1]


def test_folder_may_appear_later_and_hold_other_files(tmp_path):
    follower = ProgressFollower(str(tmp_path / "later"))
    assert follower.poll() == []
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "worker-0.jsonl.bak").write_text("x\n")
    assert follower.poll() == []
