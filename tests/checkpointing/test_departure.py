"""Settling with Slurm for all workers; `scontrol` is a small program of the test, started for real."""

from __future__ import annotations

import json
import pathlib
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.checkpointing.conftest import CALM, PREEMPTED
from tf_preempt.checkpointing.departure import Departure
from tf_preempt.checkpointing.key_value import LocalStore
from tf_preempt.checkpointing.startup import Cluster
from tf_preempt.termination.auto import Platform
from tf_preempt.termination.notice import TerminationNotice
from tf_preempt.termination.slurm import Action, Cause, Verdict
from tf_preempt.termination.slurm_options import SlurmOptions


def departure(
    directory: pathlib.Path,
    environ: Mapping[str, str],
    *,
    worker: int = 0,
    workers: int = 1,
    store: LocalStore | None = None,
    platform: Platform = Platform.SLURM,
    options: SlurmOptions | None = None,
    program_goes_on: bool = False,
) -> Departure:
    return Departure(
        platform,
        environ,
        options or SlurmOptions(),
        Cluster(worker=worker, workers=workers),
        store or LocalStore(),
        prefix="t",
        directory=str(directory),
        program_goes_on=program_goes_on,
    )


def notice(source: str) -> TerminationNotice:
    return TerminationNotice(source=source, reason="for a test")


def test_the_chief_has_the_job_requeued_and_the_others_hear_of_it(tmp_path: pathlib.Path, slurm: Any) -> None:
    environ, store = slurm(PREEMPTED), LocalStore()
    with ThreadPoolExecutor(3) as pool:
        futures = [
            pool.submit(
                departure(tmp_path, environ, worker=worker, workers=3, store=store).after_commit,
                4,
                source="SIGTERM",
                incarnation=0,
            )
            for worker in (2, 1, 0)
        ]
        verdicts = [future.result(30) for future in futures]
    assert (
        verdicts
        == [Verdict(action=Action.REQUEUE, cause=Cause.PREEMPTED, reason="the job is requeued", exit_code=42)]
        * 3
    )
    assert slurm.asked() == ["show job -o 7", "requeue 7"]


@pytest.mark.parametrize(
    "changes",
    [
        {"platform": Platform.LOCAL},
        {"options": SlurmOptions(requeue="never")},
        {"program_goes_on": True},
    ],
    ids=["elsewhere", "never", "exception"],
)
def test_nothing_is_settled_where_the_job_is_not_ours(
    tmp_path: pathlib.Path, slurm: Any, changes: dict[str, Any]
) -> None:
    one = departure(tmp_path, slurm(PREEMPTED), **changes)
    assert not one.is_needed
    assert one.after_commit(1, source="SIGTERM", incarnation=0) is None
    assert one.after_loss(incarnation=0) is None
    assert slurm.asked() == []


def test_a_program_that_goes_on_is_told_that_its_job_is_its_own(
    tmp_path: pathlib.Path, slurm: Any, caplog: pytest.LogCaptureFixture
) -> None:
    departure(tmp_path, slurm(PREEMPTED), program_goes_on=True).after_commit(
        1, source="SIGTERM", incarnation=0
    )
    assert caplog.text.count("The Slurm job is not requeued, because the program is told, and goes on") == 1


def test_a_refused_requeue_makes_a_preempted_program_stay_until_it_is_ended(
    tmp_path: pathlib.Path, slurm: Any
) -> None:
    environ = slurm(PREEMPTED, refusal="Requested operation is presently disabled")
    one = departure(tmp_path, environ, options=SlurmOptions(stay_s=0.05))
    verdict = one.after_commit(1, source="SIGTERM", incarnation=0)
    assert verdict is not None
    assert verdict.action is Action.STAY
    assert "presently disabled" in verdict.reason
    before = time.monotonic()
    one.wait_if_told_to_stay(verdict)
    assert time.monotonic() - before >= 0.05
    assert json.loads((tmp_path / "requeues.json").read_bytes())["requeues"] == 0


def test_a_notice_before_the_first_step_is_no_lack_of_progress(tmp_path: pathlib.Path, slurm: Any) -> None:
    environ = slurm(PREEMPTED)
    for incarnation in range(4):
        verdict = departure(tmp_path, environ).after_commit(
            0, source="SIGTERM", incarnation=incarnation, had_a_chance=False
        )
        assert verdict is not None
        assert verdict.action is Action.REQUEUE


def test_two_runs_in_a_row_that_commit_nothing_end_the_requeueing(tmp_path: pathlib.Path, slurm: Any) -> None:
    environ = slurm(CALM)
    verdicts = [departure(tmp_path, environ).after_loss(incarnation=life) for life in range(2)]
    assert [verdict.action for verdict in verdicts if verdict] == [Action.REQUEUE, Action.LEAVE]
    assert verdicts[1] is not None
    assert (verdicts[1].exit_code, verdicts[1].reason) == (
        1,
        "not requeued, as 2 runs in a row saved nothing new; a smaller save_every may help",
    )
    assert slurm.asked().count("requeue 7") == 1


def test_two_losses_before_a_life_has_a_number_end_the_requeueing(tmp_path: pathlib.Path, slurm: Any) -> None:
    environ = slurm(CALM)
    runs = [environ, {**environ, "SLURM_RESTART_COUNT": "1"}]
    verdicts = [departure(tmp_path, run).after_loss(incarnation=None) for run in runs]
    assert [verdict.action for verdict in verdicts if verdict] == [Action.REQUEUE, Action.LEAVE]


def test_a_supervisor_restarts_after_a_loss_but_a_notice_needs_the_requeue(
    tmp_path: pathlib.Path, slurm: Any
) -> None:
    environ = {**slurm(CALM), "TF_PREEMPT_STATUS_FILE": str(tmp_path / "status")}
    lost = departure(tmp_path, environ).after_loss(incarnation=0)
    assert lost is not None
    assert (lost.action, lost.exit_code) == (Action.LEAVE, 42)
    noticed = departure(tmp_path, environ).after_commit(
        1, source="SIGUSR1", incarnation=1, had_a_chance=False
    )
    assert noticed is not None
    assert noticed.action is Action.REQUEUE


def test_a_survivor_that_is_not_the_chief_lets_slurm_end_it_before_it_acts(
    tmp_path: pathlib.Path, slurm: Any
) -> None:
    """The SIGTERM of a requeue that somebody else asked for cuts the wait short."""
    one = departure(tmp_path, slurm(CALM), worker=40, workers=41)
    ended = threading.Timer(0.2, one.notice_while_leaving, [notice("SIGTERM")])
    before = time.monotonic()
    ended.start()
    one.after_loss(incarnation=0)
    assert 0.2 <= time.monotonic() - before < 4.0
    ended.join()


@pytest.mark.parametrize(
    ("source", "platform", "is_slurms"),
    [
        ("SIGTERM", Platform.SLURM, True),
        ("gce-preempted", Platform.SLURM, False),
        ("SIGTERM", Platform.GCE, False),
        ("SIGTERM", Platform.LOCAL, False),
    ],
)
def test_only_slurms_sigterm_says_while_a_program_leaves_that_slurm_ends_its_job(
    tmp_path: pathlib.Path,
    slurm: Any,
    caplog: pytest.LogCaptureFixture,
    source: str,
    platform: Platform,
    is_slurms: bool,
) -> None:
    one = departure(tmp_path, slurm(CALM), platform=platform)
    with caplog.at_level("INFO", logger="tf_preempt"):
        one.notice_while_leaving(notice(source))
    assert one._told.is_set() is is_slurms
    said = [f"{source} came while the program leaves; it changes nothing."]
    assert caplog.messages == ([] if is_slurms else said)
