"""The same in new processes, ended by real signals: what `lives` simulates in one process is fair."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.exactness import matrix
from tests.integration import cluster

pytestmark = pytest.mark.timeout(600)

SCRIPT = Path(__file__).with_name("process.py")
RESTART = 42


class Case(NamedTuple):
    """A program that is ended at a moment by a signal, and with which status."""

    strategy: str
    program: str
    moment: str
    signal: str
    status: int

    def __str__(self) -> str:
        return f"{self.signal}-{self.strategy}-{self.program}-{self.moment}"


def long_only(*values: Any) -> Any:
    return pytest.param(Case(*values), marks=pytest.mark.exhaustive)


CASES = [
    Case("default", "fine-tuning", "fit 1 epoch 0 train_batch_end 1", "SIGTERM", RESTART),
    long_only("default", "fine-tuning", "fit 1 epoch 1 train_batch_begin 1", "SIGKILL", -signal.SIGKILL),
    Case("default", "evaluate and predict between", "outside evaluate 1", "SIGTERM", -signal.SIGTERM),
    long_only("default", "evaluate and predict between", "outside predict 1", "SIGKILL", -signal.SIGKILL),
    Case("mirrored", "known length", "fit 0 epoch 1 test_batch_begin 1", "SIGKILL", -signal.SIGKILL),
    long_only("default", "steps of repeat", "step 5 begin", "SIGTERM", RESTART),
    Case("default", "steps of repeat", "step 5 end", "SIGKILL", -signal.SIGKILL),
]


class Left(NamedTuple):
    """What the lives of a program left."""

    seen: list[str]
    outcome: dict[str, Any]


def left(directory: Path) -> Left:
    outcome = json.loads((directory / "outcome.json").read_text())
    return Left((directory / "seen").read_text().splitlines(), outcome)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All undisturbed lives of a strategy, in one process: each after others, as in the matrix."""
    root = tmp_path_factory.mktemp("undisturbed")
    cases = [one if isinstance(one, Case) else one.values[0] for one in CASES]
    for strategy in dict.fromkeys(case.strategy for case in cases):
        programs = dict.fromkeys(case.program for case in cases if case.strategy == strategy)
        arguments = [str(root / strategy), strategy, "all", *programs]
        cluster.run_workers(SCRIPT, arguments, directory=root, workers=0, timeout_s=200)
    return root


@pytest.mark.parametrize("case", CASES, ids=str)
def test_new_process_goes_on(undisturbed: Path, tmp_path: Path, run_script: Any, case: Case) -> None:
    arguments = [str(tmp_path / "lives"), case.strategy, case.program]
    environ = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2", "TF_CONFIG": None}
    first = run_script(SCRIPT, *arguments, case.moment, case.signal, env=environ, timeout=200)
    assert first.rc == case.status, first.stderr[-4000:]
    second = run_script(SCRIPT, *arguments, env=environ, timeout=200)
    assert second.rc == 0, second.stderr[-4000:]
    whole, found = left(undisturbed / case.strategy / case.program), left(tmp_path / "lives")
    way = f"{'told' if case.status == RESTART else 'killed'} at {case.moment}"
    outcomes = {"undisturbed": whole, way: found}
    assert matrix.problems({name: {**one.outcome, "seen": one.seen} for name, one in outcomes.items()}) == []
