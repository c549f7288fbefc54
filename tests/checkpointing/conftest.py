"""What tests of this folder share: a job of Slurm whose `scontrol` says what they want, and less noise."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests import logical_cpus  # noqa: F401 - it acts when it is imported
from tf_preempt.checkpointing import determinism
from tf_preempt.termination import standby

PREEMPTED = (
    "JobId=7 JobName=j JobState=RUNNING Reason=None Requeue=1 Restarts=0 BatchFlag=1 TimeLimit=01:00:00 "
    "StartTime=2026-11-30T08:00:00 EndTime=2026-11-30T08:10:10 PreemptTime=2026-11-30T08:10:00"
)
CALM = PREEMPTED.replace("PreemptTime=2026-11-30T08:10:00", "PreemptTime=None").replace("2026", "2096")


@pytest.fixture
def slurm(tmp_path: pathlib.Path) -> Any:
    """Makes the environment of a job whose `scontrol` says what is given, and notes what it is asked."""
    asked = tmp_path / "asked"

    def make(record: str, *, refusal: str = "") -> Mapping[str, str]:
        programs = tmp_path / "bin"
        programs.mkdir()
        refuse = f"echo '{refusal}' >&2; exit 1" if refusal else "exit 0"
        script = (
            f'#!/bin/sh\necho "$*" >> {asked}\n'
            f"case \"$1\" in show) echo '{record}';; requeue) {refuse};; esac\n"
        )
        (programs / "scontrol").write_text(script, encoding="utf-8")
        (programs / "scontrol").chmod(0o755)
        return {"SLURM_JOB_ID": "7", "PATH": f"{programs}:/usr/bin:/bin"}

    make.asked = lambda: asked.read_text(encoding="utf-8").splitlines() if asked.exists() else []
    return make


@pytest.fixture(autouse=True)
def _determinism_was_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    # It comes once in a process; only its own tests hear it.
    monkeypatch.setattr(determinism, "_warned", True)


@pytest.fixture(autouse=True)
def _nobody_stands_by() -> Iterator[None]:
    yield
    standby.end()
