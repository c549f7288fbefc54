"""What SIGTERM does after a training; `scontrol` is a small program of the test, started for real."""

from __future__ import annotations

import json
import pathlib
import signal
from typing import Any

import pytest

from tests.checkpointing.conftest import CALM, PREEMPTED

PROGRAM = """
import json, os, signal, sys
from tf_preempt.checkpointing import aftermath
from tf_preempt.checkpointing.departure import Departure
from tf_preempt.checkpointing.key_value import LocalStore
from tf_preempt.checkpointing.startup import Cluster
from tf_preempt.termination.auto import Platform
from tf_preempt.termination.slurm_options import SlurmOptions

environ, directory = json.loads({environ!r}), {directory!r}
departure = Departure(Platform.SLURM, environ, SlurmOptions(), Cluster(), LocalStore(), prefix="t",
                      directory=directory, program_goes_on=False)
{before}
aftermath.begin(departure)
{after}
os.kill(os.getpid(), signal.SIGTERM)
while True:
    signal.pause()
"""


@pytest.fixture
def run_after_training(run_script: Any, tmp_path: pathlib.Path) -> Any:
    def run(environ: dict[str, str], *, before: str = "", after: str = "") -> int:
        source = PROGRAM.format(
            environ=json.dumps(environ), directory=str(tmp_path), before=before, after=after
        )
        return int(run_script(source).rc)

    return run


def test_a_preempted_job_is_requeued_before_sigterm_ends_the_program(
    run_after_training: Any, slurm: Any
) -> None:
    assert run_after_training(slurm(PREEMPTED)) == -signal.SIGTERM
    assert slurm.asked() == ["show job -o 7", "requeue 7"]


def test_another_sigterm_ends_the_program_and_nothing_more(run_after_training: Any, slurm: Any) -> None:
    assert run_after_training(slurm(CALM)) == -signal.SIGTERM
    assert slurm.asked() == ["show job -o 7"]


def test_when_the_next_training_has_begun_the_signal_is_not_ours(run_after_training: Any, slurm: Any) -> None:
    assert run_after_training(slurm(PREEMPTED), after="aftermath.end()") == -signal.SIGTERM
    assert slurm.asked() == []


def test_a_handler_of_the_program_is_left_alone(run_after_training: Any, slurm: Any) -> None:
    handler = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))"
    assert run_after_training(slurm(PREEMPTED), before=handler) == 5
    assert slurm.asked() == []
