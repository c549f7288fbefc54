"""A training under protection of two workers, as two threads of this process."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import pathlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import tensorflow as tf

from tests.checkpointing.test_committer import committed
from tests.checkpointing.test_session import (
    TIMEOUT_S,
    Loop,
    commit_large,
    events,
    flip_a_bit,
    newest,
    training,
)
from tf_preempt import errors
from tf_preempt.checkpointing import manifest as manifests
from tf_preempt.checkpointing import session as sessions
from tf_preempt.checkpointing.committer import Committer
from tf_preempt.checkpointing.key_value import LocalStore
from tf_preempt.checkpointing.startup import Cluster
from tf_preempt.termination.config import TerminationConfig


class NoClaim:
    """Two workers of one test share a process."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def release(self) -> None:
        pass


@pytest.fixture
def as_two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets sessions in one process take part in one training, as sessions of equal number in several do."""
    monkeypatch.setattr(sessions, "DirectoryClaim", NoClaim)
    monkeypatch.setattr(sessions, "_ordinals", itertools.repeat(7))


def run_two(
    directory: pathlib.Path, body: Callable[[Loop], None], **options: Any
) -> list[BaseException | None]:
    """Runs `body` on two workers; returns how each was left."""
    store = options.pop("store", None) or LocalStore()

    def one(worker: int) -> BaseException | None:
        own = options | {"config": options["configs"][worker]}
        del own["configs"]
        with contextlib.ExitStack() as stack:
            try:
                loop = stack.enter_context(
                    training(directory, cluster=Cluster(worker=worker, workers=2), store=store, **own)
                )
                body(loop)
            except BaseException as error:
                return error
        return None

    with ThreadPoolExecutor(2) as pool:
        return [future.result(TIMEOUT_S) for future in [pool.submit(one, worker) for worker in range(2)]]


@pytest.mark.usefixtures("as_two_processes")
@pytest.mark.parametrize("noticed", [0, 1])
def test_a_notice_at_one_of_two_workers_makes_both_save_the_same_step_and_leave(
    tmp_path: pathlib.Path, noticed: int
) -> None:
    barrier = threading.Barrier(2)
    tell = threading.Event()
    ends: list[int] = []

    def body(loop: Loop) -> None:
        try:
            for _ in range(100_000):
                loop.session.boundary(loop.capture, step=loop.steps)
                barrier.wait(TIMEOUT_S)
                loop.steps += 1
                if loop.steps == 20:
                    tell.set()
        finally:
            ends.append(loop.steps)

    configs = [
        TerminationConfig(termination_watcher_fn=tell.is_set if worker == noticed else None, signals=())
        for worker in range(2)
    ]
    outcomes = run_two(tmp_path, body, configs=configs)
    assert [type(outcome) for outcome in outcomes] == [SystemExit, SystemExit]
    assert len(set(ends)) == 1
    manifest = newest(tmp_path)
    assert (manifest.step, manifest.workers) == (ends[0], 2)
    assert manifest.reason.endswith(f"on worker {noticed}")
    assert sum(".workers/" in record.name for record in manifest.files) == 4
    assert manifests.problem_with(str(tmp_path), manifest) is None


@pytest.mark.usefixtures("as_two_processes")
@pytest.mark.parametrize("worker", [0, 1])
def test_damage_to_one_workers_part_makes_all_go_back_to_the_checkpoint_before(
    tmp_path: pathlib.Path, worker: int
) -> None:
    configs = [TerminationConfig(signals=())] * 2
    restored: list[tuple[int, float]] = []
    assert run_two(tmp_path, lambda loop: commit_large(loop, 2), configs=configs, large=True) == [None, None]
    flip_a_bit(tmp_path / f"ckpt-2.workers/{worker:05d}-of-00002.data-00000-of-00001")

    def note(loop: Loop) -> None:
        restored.append((loop.steps, float(loop.large.numpy().max())))

    assert run_two(tmp_path, note, configs=configs, large=True) == [None, None]
    assert restored == [(1, 1.0)] * 2
    assert committed(tmp_path) == [1]


@pytest.mark.usefixtures("as_two_processes")
def test_who_cannot_read_its_part_leaves_nobody_alone_in_what_all_do_together(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a strategy's scope `tf.train.Checkpoint` makes its counter by a collective, while it restores."""
    configs = [TerminationConfig(signals=())] * 2
    assert run_two(tmp_path, lambda loop: commit_large(loop, 2), configs=configs, large=True) == [None, None]
    flip_a_bit(tmp_path / "ckpt-2.workers/00001-of-00002.data-00000-of-00001")
    collective, restore = threading.Barrier(2), Committer.restore_variables

    def restore_together(committer: Committer, checkpoint: Any, prefix: str) -> None:
        collective.wait(TIMEOUT_S / 2)
        restore(committer, checkpoint, prefix)

    monkeypatch.setattr(Committer, "restore_variables", restore_together)
    restored: list[int] = []
    outcomes = run_two(tmp_path, lambda loop: restored.append(loop.steps), configs=configs, large=True)
    assert (outcomes, restored) == ([None, None], [1, 1])


@pytest.mark.usefixtures("as_two_processes")
@pytest.mark.parametrize("worker", [0, 1])
def test_damage_to_one_workers_part_of_the_only_checkpoint_makes_all_leave_and_begin_afresh(
    tmp_path: pathlib.Path, worker: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker may have assigned what it read: only a new process is sure to have nothing of it."""
    configs = [TerminationConfig(signals=())] * 2
    begun: list[tuple[int, float]] = []
    assert run_two(tmp_path, lambda loop: commit_large(loop, 1), configs=configs, large=True) == [None, None]
    flip_a_bit(tmp_path / f"ckpt-1.workers/{worker:05d}-of-00002.data-00000-of-00001")

    def note(loop: Loop) -> None:
        begun.append((loop.steps, float(loop.large.numpy().max())))

    with caplog.at_level(logging.WARNING, logger="tf_preempt"):
        outcomes = run_two(tmp_path, note, configs=configs, large=True)
    assert [getattr(outcome, "code", outcome) for outcome in outcomes] == [42, 42]
    assert begun == []
    assert caplog.text.count("The only checkpoint was damaged and is set aside") == 2
    assert "ckpt-1.index" in os.listdir(tmp_path / "set-aside")

    assert run_two(tmp_path, note, configs=configs, large=True) == [None, None]
    assert begun == [(0, 0.0)] * 2


class LosingStore(LocalStore):
    """Loses a worker when somebody asks for a key: from then on all who wait hear of it."""

    def __init__(self, lost_at: str) -> None:
        super().__init__()
        self._lost_at = lost_at
        self._lost = threading.Event()

    def get(self, key: str, timeout_s: float) -> str:
        if key.endswith(self._lost_at):
            self._lost.set()
        deadline = time.monotonic() + timeout_s
        while not self._lost.is_set():
            try:
                return super().get(key, 0.02)
            except TimeoutError:
                if time.monotonic() > deadline:
                    raise
        raise errors.WorkerLostError("Another worker's process is gone.")


@pytest.mark.usefixtures("as_two_processes")
@pytest.mark.parametrize("lost_at", ["/plan", "/ready/1", "/problem/1"])
def test_a_worker_that_is_lost_during_the_start_makes_the_others_leave_for_a_restart(
    tmp_path: pathlib.Path, lost_at: str
) -> None:
    configs = [TerminationConfig(signals=())] * 2
    assert run_two(tmp_path, lambda loop: loop.session.finish(loop.capture), configs=configs) == [None, None]
    files = sorted(path.name for path in tmp_path.iterdir())
    begun: list[Loop] = []
    outcomes = run_two(tmp_path, begun.append, configs=configs, store=LosingStore(lost_at))
    assert [getattr(outcome, "code", outcome) for outcome in outcomes] == [42, 42]
    assert begun == []
    assert sorted(path.name for path in tmp_path.iterdir()) == files
    assert committed(tmp_path) == [1]


@pytest.mark.usefixtures("as_two_processes")
def test_a_save_fn_whose_checkpoint_only_the_chief_can_name_is_committed_with_all_parts(
    tmp_path: pathlib.Path,
) -> None:
    chiefs: list[Loop] = []
    barrier, tell = threading.Barrier(2), threading.Event()

    def save_on_chief() -> str:
        return str(chiefs[0].checkpoint.write(str(tmp_path / "mine-1")))

    def body(loop: Loop) -> None:
        if loop.cluster.is_chief:
            chiefs.append(loop)
        for _ in range(100_000):
            loop.session.boundary(loop.capture, step=loop.steps)
            barrier.wait(TIMEOUT_S)
            loop.steps += 1
            loop.variable.assign(float(loop.steps))
            if loop.steps == 20:
                tell.set()

    configs = [
        TerminationConfig(termination_watcher_fn=tell.is_set, save_fn=save_on_chief, signals=()),
        TerminationConfig(save_fn=lambda: None, signals=()),
    ]
    outcomes = run_two(tmp_path, body, configs=configs)
    assert [getattr(outcome, "code", outcome) for outcome in outcomes] == [42, 42]
    manifest = newest(tmp_path)
    assert manifest.prefix == "mine-1"
    assert sum(".workers/" in record.name for record in manifest.files) == 4

    restored: list[tuple[int, float]] = []

    def note(loop: Loop) -> None:
        restored.append((loop.steps, float(loop.variable.numpy())))

    assert run_two(tmp_path, note, configs=[TerminationConfig(signals=())] * 2) == [None, None]
    assert restored == [(manifest.step, float(manifest.step))] * 2
    assert manifest.step >= 20


@pytest.mark.usefixtures("as_two_processes")
@pytest.mark.parametrize(("verbose", "printed"), [(1, True), (0, False)])
def test_one_of_two_workers_says_with_what_training_begins(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], verbose: int, printed: bool
) -> None:
    options: dict[str, Any] = {
        "configs": [TerminationConfig(signals=())] * 2,
        "verbose": verbose,
        "opening": "Here we go.",
    }
    assert run_two(tmp_path, lambda loop: loop.session.finish(loop.capture), **options) == [None, None]
    capsys.readouterr()
    assert run_two(tmp_path, lambda loop: None, **options) == [None, None]
    expected = ["tf_preempt: Here we go.", f"tf_preempt: Restored step 0 from {tmp_path}/ckpt-1."]
    assert capsys.readouterr().out.splitlines() == (expected if printed else [])


@pytest.mark.usefixtures("as_two_processes")
def test_two_workers_finish_together_with_one_commit(tmp_path: pathlib.Path) -> None:
    def body(loop: Loop) -> None:
        for _ in range(3):
            loop.step()
        loop.session.finish(loop.capture)

    assert run_two(tmp_path, body, configs=[TerminationConfig(signals=())] * 2) == [None, None]
    manifest = newest(tmp_path)
    assert (manifest.number, manifest.step, manifest.reason, manifest.workers) == (1, 3, "finished", 2)
    story = {(event["worker"], kind) for kind, _, event in events(tmp_path)}
    assert {(0, "finish"), (1, "finish"), (0, "commit")} <= story
    assert (1, "commit") not in story


@pytest.mark.usefixtures("as_two_processes")
def test_the_chief_closes_after_the_others_have_read_of_the_last_commit(tmp_path: pathlib.Path) -> None:
    order: list[str] = []
    chief_waits_or_has_closed = threading.Event()

    class SlowReader(LocalStore):
        def get(self, key: str, timeout_s: float) -> str:
            if "/seen/" in key:
                chief_waits_or_has_closed.set()
            return super().get(key, timeout_s)

        def set(self, key: str, value: str) -> None:
            if "/seen/" in key:
                chief_waits_or_has_closed.wait(TIMEOUT_S)
                order.append("worker 1 has seen it")
            super().set(key, value)

    def body(loop: Loop) -> None:
        loop.session.finish(loop.capture)
        if loop.cluster.is_chief:
            order.append("the chief has closed")
            chief_waits_or_has_closed.set()

    store = SlowReader()
    configs = [TerminationConfig(signals=())] * 2
    assert run_two(tmp_path, body, configs=configs, store=store) == [None, None]
    assert order == ["worker 1 has seen it", "the chief has closed"]


@pytest.mark.parametrize(
    "error",
    [
        errors.CoordinationError("Worker 1 did not say where it is."),
        tf.errors.UnavailableError(None, None, "Socket closed"),
        tf.errors.AbortedError(None, None, "Peer restarted"),
    ],
)
def test_a_lost_worker_makes_the_others_leave_for_a_restart(tmp_path: pathlib.Path, error: Exception) -> None:
    loop = Loop(tmp_path, cluster=Cluster(worker=1, workers=2), store=LocalStore())
    with pytest.raises(SystemExit) as raised, loop.session.guard():
        raise error
    assert raised.value.code == 42
    assert loop.session.is_closed


def test_one_worker_alone_has_nobody_to_lose(tmp_path: pathlib.Path) -> None:
    loop = Loop(tmp_path)
    with pytest.raises(tf.errors.UnavailableError), loop.session.guard():
        raise tf.errors.UnavailableError(None, None, "a file system is away")
    loop.session.close()


def test_other_errors_pass_through(tmp_path: pathlib.Path) -> None:
    loop = Loop(tmp_path, cluster=Cluster(worker=1, workers=2), store=LocalStore())
    with pytest.raises(ZeroDivisionError), loop.session.guard():
        raise ZeroDivisionError
    loop.session.close()
