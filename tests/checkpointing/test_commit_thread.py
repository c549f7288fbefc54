"""Commits in the background, with a thread per worker on one store in memory."""

from __future__ import annotations

import contextlib
import os
import pathlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.checkpointing.test_committer import Training, committed
from tf_preempt.checkpointing.commit_thread import CommitThread, PendingCommit
from tf_preempt.checkpointing.key_value import LocalStore
from tf_preempt.checkpointing.manifest import FileRecord, Manifest
from tf_preempt.checkpointing.startup import Cluster
from tf_preempt.checkpointing.worker_part import WorkerPart, part_name, write_part
from tf_preempt.errors import CheckpointWriteError, CoordinationError, WorkerLostError

TIMEOUT_S = 30.0


@contextlib.contextmanager
def threads(
    training: Training, workers: int, *, store: LocalStore | None = None, **options: Any
) -> Iterator[list[CommitThread]]:
    """Started commit threads of all workers; `options` are the chief's."""
    shared = store or LocalStore()
    made = [
        CommitThread(
            training.committer,
            shared,
            Cluster(worker=worker, workers=workers),
            prefix="p",
            incarnation=4,
            **({"wall_clock": lambda: 100.0} | options if worker == 0 else {"part_timeout_s": 5.0}),
        )
        for worker in range(workers)
    ]
    for thread in made:
        thread.start()
    try:
        yield made
    finally:
        for thread in made:
            thread.close()


def other(training: Training, store: LocalStore, *, part_timeout_s: float) -> CommitThread:
    """The started commit thread of a second worker whose chief does nothing."""
    thread = CommitThread(
        training.committer,
        store,
        Cluster(worker=1, workers=2),
        prefix="p",
        incarnation=0,
        part_timeout_s=part_timeout_s,
    )
    thread.start()
    return thread


def part_of(training: Training, number: int, worker: int, workers: int) -> list[FileRecord]:
    name = part_name(training.committer.prefix(number), worker, workers)
    return write_part(training.committer.directory, name, WorkerPart(values={"worker": worker}))


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_checkpoint_is_committed_once_all_parts_are_there_and_all_workers_hear_of_it(
    tmp_path: pathlib.Path, workers: int
) -> None:
    training = Training(tmp_path)
    commits: list[Manifest] = []
    with threads(training, workers, on_commit=commits.append) as made:
        record = training.write(1)
        pending = [made[0].hand_in(1, [], record)]
        for worker in range(1, workers):
            assert committed(tmp_path) == []
            pending.append(made[worker].hand_in(1, part_of(training, 1, worker, workers), None))
        for one in pending:
            one.wait(TIMEOUT_S)
        assert committed(tmp_path) == [1]
        for thread in made:
            thread.check()
    (manifest,) = commits
    names = {record.name for record in manifest.files}
    for worker in range(1, workers):
        assert f"{part_name('ckpt-1', worker, workers)}.index" in names
    assert (manifest.incarnation, manifest.workers, manifest.seconds) == (4, workers, 100.0)
    assert training.committer.newest(fit=0) == manifest


def test_saves_are_committed_in_the_order_in_which_they_were_handed_in(tmp_path: pathlib.Path) -> None:
    training = Training(tmp_path)
    commits: list[int] = []
    with threads(training, 2, on_commit=lambda manifest: commits.append(manifest.number)) as made:
        pending = []
        for number in (1, 2, 3):
            pending.append(made[0].hand_in(number, [], training.write(number)))
        for number in (1, 2, 3):
            pending.append(made[1].hand_in(number, part_of(training, number, 1, 2), None))
        for one in pending:
            one.wait(TIMEOUT_S)
    assert commits == [1, 2, 3]


def test_every_worker_hears_of_the_end_of_each_save_before_who_waits_for_it(tmp_path: pathlib.Path) -> None:
    training, store = Training(tmp_path), LocalStore()
    ends: list[tuple[int, int, bool]] = []
    (tmp_path / "ckpt-2.manifest.json").mkdir()
    with contextlib.ExitStack() as stack:
        for worker in range(2):
            thread = CommitThread(
                training.committer,
                store,
                Cluster(worker=worker, workers=2),
                prefix="p",
                incarnation=0,
                on_end=lambda number, committed, worker=worker: ends.append((worker, number, committed)),  # type: ignore[misc]
            )
            thread.start()
            stack.callback(thread.close)
            for number in (1, 2):
                record = training.write(number) if worker == 0 else None
                pending = thread.hand_in(number, part_of(training, number, worker, 2), record)
        with pytest.raises(CheckpointWriteError):
            pending.wait(TIMEOUT_S)
        assert (1, 1, True) in ends
        assert (1, 2, False) in ends
    assert sorted(ends) == [(0, 1, True), (0, 2, False), (1, 1, True), (1, 2, False)]


def test_handing_in_does_not_wait_for_the_commit(tmp_path: pathlib.Path) -> None:
    training = Training(tmp_path)
    may_go_on = threading.Event()
    with threads(training, 1, on_commit=lambda _: may_go_on.wait(TIMEOUT_S)) as (thread,):
        pending = [thread.hand_in(number, [], training.write(number)) for number in (1, 2)]
        with pytest.raises(CheckpointWriteError, match=r"Checkpoint 2 was not committed within 0\.01 s"):
            pending[1].wait(0.01)
        may_go_on.set()
        for one in pending:
            one.wait(TIMEOUT_S)


def test_a_part_that_is_missing_surfaces_to_who_waits_and_not_again(tmp_path: pathlib.Path) -> None:
    training = Training(tmp_path)
    with threads(training, 2, part_timeout_s=0.1) as made:
        pending = made[0].hand_in(1, [], training.write(1))
        with pytest.raises(
            CoordinationError, match=r"Worker 1 did not hand in its part within 0\.1 s"
        ) as raised:
            pending.wait(TIMEOUT_S)
        assert isinstance(raised.value.__cause__, CoordinationError)
        with pytest.raises(CoordinationError):
            pending.wait(TIMEOUT_S)  # whoever asks is told that there is no such checkpoint
        made[0].check()
    assert committed(tmp_path) == []


def test_what_nobody_waited_for_surfaces_at_the_next_checks_each_once(tmp_path: pathlib.Path) -> None:
    training = Training(tmp_path)
    with threads(training, 2, part_timeout_s=0.1) as made:
        for number in (1, 2):
            made[0].hand_in(number, [], training.write(number))
        made[0].close()
        for number in (1, 2):
            with pytest.raises(
                CoordinationError, match=f"A checkpoint could not be committed, number {number}: Worker 1"
            ):
                made[0].check()
        made[0].check()


class TimedStore(LocalStore):
    """Answers at once, lets a wait take 3 s on its clock, and remembers the time-outs."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.timeouts_s: list[float] = []

    def get(self, key: str, timeout_s: float) -> str:
        self.timeouts_s.append(timeout_s)
        self.now += 3.0
        return super().get(key, 0.0)


def test_the_chief_gives_all_parts_one_time_out(tmp_path: pathlib.Path) -> None:
    training = Training(tmp_path)
    store = TimedStore()
    for worker in (1, 2, 3):
        store.set(f"p/commit/1/part/{worker}", "[]")
    thread = CommitThread(
        training.committer,
        store,
        Cluster(worker=0, workers=4),
        prefix="p",
        incarnation=0,
        part_timeout_s=5.0,
        clock=lambda: store.now,
    )
    thread.start()
    thread.hand_in(1, [], training.write(1)).wait(TIMEOUT_S)
    thread.close()
    assert store.timeouts_s == [5.0, 2.0, 0.0]


def test_the_others_wait_longer_for_the_answer_than_the_chief_for_the_parts(tmp_path: pathlib.Path) -> None:
    training = Training(tmp_path)
    store = TimedStore()
    thread = other(training, store, part_timeout_s=5.0)
    thread.hand_in(1, [], None)
    thread.close()
    assert store.timeouts_s == [35.0]


def test_the_others_hear_why_the_chief_did_not_commit(tmp_path: pathlib.Path) -> None:
    training = Training(tmp_path)
    with threads(training, 2) as made:
        record = training.write(1)
        (tmp_path / "ckpt-1.manifest.json").mkdir()
        made[0].hand_in(1, [], record)
        pending = made[1].hand_in(1, part_of(training, 1, 1, 2), None)
        with pytest.raises(CheckpointWriteError, match="the chief says: Committing"):
            pending.wait(TIMEOUT_S)
        made[1].check()


def test_a_commit_after_a_failed_one_succeeds(tmp_path: pathlib.Path) -> None:
    training = Training(tmp_path)
    with threads(training, 2, part_timeout_s=0.1) as made:
        with pytest.raises(CoordinationError):
            made[0].hand_in(1, [], training.write(1)).wait(TIMEOUT_S)
        record, files = training.write(2), part_of(training, 2, 1, 2)
        pending = [made[1].hand_in(2, files, None), made[0].hand_in(2, [], record)]
        for one in pending:
            one.wait(TIMEOUT_S)
    assert committed(tmp_path) == [2]


@pytest.mark.parametrize(
    ("failed", "hears", "words"),
    [
        (1, 0, "Worker 1 says: disk full"),
        (0, 1, "the chief says: disk full"),
        (2, 1, "the chief says: Worker 2 says: disk full"),
    ],
)
def test_the_others_hear_at_once_of_a_worker_that_gave_up_and_the_next_commit_succeeds(
    tmp_path: pathlib.Path, failed: int, hears: int, words: str
) -> None:
    training = Training(tmp_path)

    def hand_in(thread: CommitThread, number: int, worker: int) -> PendingCommit:
        if worker == 0:
            return thread.hand_in(number, [], training.write(number))
        return thread.hand_in(number, part_of(training, number, worker, 3), None)

    with threads(training, 3) as made:
        pending = {worker: hand_in(made[worker], 1, worker) for worker in range(3) if worker != failed}
        made[failed].give_up(1, OSError("disk full"))
        with pytest.raises(CheckpointWriteError, match=words):
            pending[hears].wait(TIMEOUT_S)
        made[failed].check()  # its main thread knows already
        second = [hand_in(made[worker], 2, worker) for worker in (2, 1, 0)]
        for one in second:
            one.wait(TIMEOUT_S)
    assert committed(tmp_path) == [2]


def test_giving_up_when_the_chief_is_gone_does_not_end_the_thread(tmp_path: pathlib.Path) -> None:
    class Gone(LocalStore):
        def set(self, key: str, value: str) -> None:
            raise WorkerLostError("The chief is gone.")

    thread = other(Training(tmp_path), Gone(), part_timeout_s=0.1)
    thread.give_up(1, OSError("disk full"))
    pending = thread.hand_in(2, [], None)
    with pytest.raises(CoordinationError, match="The chief is gone"):
        pending.wait(TIMEOUT_S)
    thread.close()


def test_a_chief_that_does_not_answer_is_named(tmp_path: pathlib.Path) -> None:
    training = Training(tmp_path)
    thread = other(training, TimedStore(), part_timeout_s=0.1)
    pending = thread.hand_in(1, part_of(training, 1, 1, 2), None)
    with pytest.raises(CoordinationError, match="The chief did not commit checkpoint 1 in time"):
        pending.wait(TIMEOUT_S)
    thread.close()


def test_an_error_after_the_commit_does_not_make_the_others_wait(tmp_path: pathlib.Path) -> None:
    def on_commit(manifest: Manifest) -> None:
        raise OSError("disk full")

    training = Training(tmp_path)
    with threads(training, 2, on_commit=on_commit) as made:
        files = part_of(training, 1, 1, 2)
        chief = made[0].hand_in(1, [], training.write(1))
        made[1].hand_in(1, files, None).wait(TIMEOUT_S)
        with pytest.raises(CheckpointWriteError, match="disk full"):
            chief.wait(TIMEOUT_S)
    assert committed(tmp_path) == [1]


def test_close_commits_what_was_handed_in_and_may_be_called_again(tmp_path: pathlib.Path) -> None:
    training = Training(tmp_path)
    with threads(training, 1) as (thread,):
        for number in (1, 2):
            thread.hand_in(number, [], training.write(number))
        thread.close()
        assert committed(tmp_path) == [1, 2]
        thread.close()
    assert "ckpt-2.manifest.json" in os.listdir(tmp_path)
