"""Programs written for TensorFlow's handler run with the import changed, also on what it has left behind."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import logging
import os
import random
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tests.checkpointing.test_session import heard, sigterm_and_wait
from tf_preempt.checkpointing.given_checkpoint import directory_of_chief
from tf_preempt.checkpointing.handler import PreemptionCheckpointHandler
from tf_preempt.checkpointing.key_value import LocalStore
from tf_preempt.checkpointing.startup import Cluster
from tf_preempt.launch.local_cluster import LocalCluster
from tf_preempt.termination.config import TerminationConfig
from tf_preempt.testing.watched_program import environment_of_its_own

SCRIPT = Path(__file__).parent / "scripts" / "drop_in.py"
TIMEOUT_S = 200.0
RESTART = 42
# TensorFlow's handler asks Google's metadata server where it runs; through this proxy it learns that at once.
NO_GOOGLE = {"http_proxy": "http://127.0.0.1:9", "no_proxy": "127.0.0.1"}


@dataclasses.dataclass(frozen=True)
class Life:
    """How one life of the program ended on each worker, and what all of them printed."""

    returncodes: list[int | None]
    output: str

    def steps(self, worker: int) -> list[int]:
        return [int(step) for step in re.findall(rf"^\[worker {worker}\] did (\d+)$", self.output, re.M)]


def live(handler: str, program: str, directory: Path, *arguments: str, workers: int) -> Life:
    output = io.BytesIO()
    cluster = LocalCluster(
        [sys.executable, str(SCRIPT), handler, program, str(directory), *arguments],
        workers=workers,
        environ=environment_of_its_own(
            os.environ,
            PYTHONPATH=str(SCRIPT.parents[3]),
            TF_CPP_MIN_LOG_LEVEL="2",
            CUDA_VISIBLE_DEVICES="-1",
            **NO_GOOGLE,
        ),
        output=output,
    )
    with cluster:
        assert cluster.wait(TIMEOUT_S), output.getvalue().decode()
    return Life(cluster.returncodes, output.getvalue().decode())


def assert_all_steps_were_done_once(lives: list[Life], *, workers: int, total: int) -> None:
    last = lives[-1]
    assert last.returncodes == [0] * workers, last.output
    assert last.output.count(f"counted {workers * total} of {workers * total}\n") == workers, last.output
    for worker in range(workers):
        assert [step for life in lives for step in life.steps(worker)] == list(range(total))


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("program", "workers"),
    [
        ("counters_in_the_checkpoint", 1),
        ("total_run_calls", 2),
        ("save_checkpoint_if_preempted", 1),
        pytest.param("scope_in_each_epoch", 1, marks=pytest.mark.exhaustive),
        pytest.param("counters_in_the_checkpoint", 2, marks=pytest.mark.exhaustive),
        pytest.param("save_checkpoint_if_preempted", 2, marks=pytest.mark.exhaustive),
    ],
)
def test_a_run_that_tensorflows_handler_has_left_goes_on(tmp_path: Path, program: str, workers: int) -> None:
    directory = tmp_path / "runs" / "ckpt"
    told = f"6:{workers - 1}"
    theirs = live("tensorflow", program, directory, "--told", told, workers=workers)
    assert theirs.returncodes == [RESTART] * workers, theirs.output
    assert not list(directory.glob("*.manifest.json"))
    ours = live("tf_preempt", program, directory, workers=workers)
    assert "ckpt-1 is adopted. Steps count from" in ours.output
    assert_all_steps_were_done_once([theirs, ours], workers=workers, total=20)


@pytest.mark.timeout(600)
def test_what_a_program_has_saved_itself_is_gone_on_from(tmp_path: Path) -> None:
    """Nobody was told, so that steps 5 to 7 are lost."""
    killed = live("tensorflow", "saves_of_its_own", tmp_path, "--killed", "8:0", workers=1)
    assert killed.steps(0) == list(range(8))
    ours = live("tf_preempt", "saves_of_its_own", tmp_path, workers=1)
    assert ours.steps(0) == list(range(5, 20))
    assert "counted 20 of 20" in ours.output


@pytest.mark.timeout(600)
def test_a_scope_can_be_entered_in_each_epoch(tmp_path: Path) -> None:
    told = live("tf_preempt", "scope_in_each_epoch", tmp_path, "--told", "12:0", workers=1)
    assert told.returncodes == [RESTART], told.output
    assert told.steps(0)[-1] < 15
    rest = live("tf_preempt", "scope_in_each_epoch", tmp_path, workers=1)
    assert_all_steps_were_done_once([told, rest], workers=1, total=20)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("program", "seed"),
    [
        ("counters_in_the_checkpoint", 0),
        *(
            pytest.param(program, seed, marks=pytest.mark.exhaustive)
            for program in ("counters_in_the_checkpoint", "total_run_calls")
            for seed in range(1, 4)
        ),
    ],
)
def test_the_count_is_exact_after_notices_to_one_worker_of_four_after_another(
    tmp_path: Path, program: str, seed: int
) -> None:
    """First without a grace period, then with one, in which training goes on."""
    chance = random.Random(seed)
    first, second = chance.sample(range(4), 2)
    long = ("--epochs", "4", "--steps", "15")
    at_once = f"{chance.randrange(1, 15)}:{first}"
    in_grace = f"{chance.randrange(20, 26)}:{second}"
    grace = ("--grace-period", "6", "--step-takes", "0.2")
    lives = [
        live("tf_preempt", program, tmp_path, *long, *arguments, workers=4)
        for arguments in (("--told", at_once), ("--told", in_grace, *grace), ())
    ]
    for life in lives[:2]:
        assert life.returncodes == [RESTART] * 4, life.output
    trains_on = "Training goes on after a save" in lives[1].output
    assert trains_on or "Saving and leaving at once." in lives[1].output  # where saves are very slow
    assert [len(saved_steps(tmp_path, incarnation)) for incarnation in (0, 1)] == [1, 1 + trains_on]
    assert_all_steps_were_done_once(lives, workers=4, total=60)


def saved_steps(directory: Path, incarnation: int) -> set[int]:
    """The steps that the chief has committed in a life on notice."""
    lines = (directory / "events" / f"{incarnation:05}-00000.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    return {event["step"] for event in events if "notice" in event.get("reason", "") and "step" in event}


@pytest.mark.timeout(600)
def test_an_error_on_one_worker_ends_all_four(tmp_path: Path) -> None:
    life = live("tf_preempt", "total_run_calls", tmp_path, "--fails", "7:2", workers=4)
    assert life.returncodes == [1] * 4, life.output
    said = (
        "The training ends, because worker 2 ended with ResourceExhaustedError: no room for the activations"
    )
    assert life.output.count(said) == 3, life.output


def test_each_other_workers_manager_may_have_a_directory_of_its_own() -> None:
    store = LocalStore()
    given = ["runs/ckpt", "workertemp_1/ckpt", "workertemp_2/ckpt"]

    def one(worker: int) -> str:
        return directory_of_chief(
            given[worker], Cluster(worker=worker, workers=3), store, timeout_s=TIMEOUT_S, key="k"
        )

    with ThreadPoolExecutor(3) as pool:
        assert set(pool.map(one, range(3))) == {"runs/ckpt"}


def handler_of(manager: Any, config: Any = None) -> PreemptionCheckpointHandler:
    return PreemptionCheckpointHandler(None, manager, termination_config=config, save_every=None, verbose=0)


def test_a_manager_that_the_program_saves_with_too_deletes_nothing_of_the_handlers(tmp_path: Path) -> None:
    variable = tf.Variable(0)
    checkpoint = tf.train.Checkpoint(variable=variable)
    manager = tf.train.CheckpointManager(checkpoint, str(tmp_path), max_to_keep=1)
    handler = handler_of(manager)
    for save in (manager.save, handler.save, manager.save, handler.save):
        handler.run(variable.assign_add, 1)
        save()
    theirs = tf.train.load_checkpoint(manager.latest_checkpoint)
    assert theirs.get_tensor("variable/.ATTRIBUTES/VARIABLE_VALUE") == 3
    manager.save()
    handler.close()
    variable.assign(0)
    again = handler_of(manager)
    again.close()
    assert (int(variable), again.total_run_calls) == (4, 4)
    assert not (tmp_path / "set-aside").exists()


def test_save_fn_gets_what_the_program_gives_for_the_save(tmp_path: Path) -> None:
    checkpoint = tf.train.Checkpoint(variable=tf.Variable(0))
    manager = tf.train.CheckpointManager(checkpoint, str(tmp_path), max_to_keep=1)
    seen: list[tuple[Any, ...]] = []

    def save(step: int, *, check_interval: bool) -> str:
        seen.append((step, check_interval))
        return str(manager.save(check_interval=check_interval))

    handler = handler_of(manager, TerminationConfig(save_fn=save))
    handler.save_checkpoint_if_preempted(1, check_interval=True)
    with told_to_leave():
        handler.save_checkpoint_if_preempted(2, check_interval=False)
    assert seen == [(2, False)]


def test_a_managers_interval_keeps_nothing_from_being_saved(tmp_path: Path) -> None:
    step = tf.Variable(0)
    checkpoint = tf.train.Checkpoint(step=step)
    manager = tf.train.CheckpointManager(
        checkpoint, str(tmp_path), max_to_keep=1, step_counter=step, checkpoint_interval=100
    )
    manager.save()
    handler = handler_of(manager)
    handler.run(step.assign_add, 1)
    with told_to_leave():
        handler.run(step.assign_add, 1)
    step.assign(0)
    again = handler_of(manager)
    again.close()
    assert int(step) == again.total_run_calls == 1


def test_a_notice_before_the_first_step_leaves_what_was_adopted_as_it_is(tmp_path: Path) -> None:
    """Variables that the program makes in its first step are in TensorFlow's checkpoint, and not here yet."""
    made_early, made_late = tf.Variable(1), tf.Variable(2)
    theirs = tf.train.Checkpoint(early=made_early, late=made_late)
    tf.train.CheckpointManager(theirs, str(tmp_path), max_to_keep=1).save()
    ours = tf.train.Checkpoint(early=tf.Variable(0))
    handler = PreemptionCheckpointHandler(None, ours, tmp_path, verbose=0)
    with told_to_leave():
        handler.run(made_early.assign_add, 1)
    assert int(made_early) == 1
    assert not list(tmp_path.glob("*.manifest.json"))


@contextlib.contextmanager
def told_to_leave() -> Iterator[None]:
    """A block that has to leave: SIGTERM came before it, and the handler's threads have heard of it."""
    log = logging.getLogger("tf_preempt")
    level = log.level
    log.setLevel(logging.INFO)
    try:
        with heard("The workers agree where to save", 1) as agreed:
            sigterm_and_wait(agreed)
        with pytest.raises(SystemExit):
            yield
    finally:
        log.setLevel(level)
