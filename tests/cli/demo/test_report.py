import io
import json
import signal

import pytest

from tf_preempt.cli.demo.comparison import Comparison, Cost
from tf_preempt.cli.demo.interruptions import Interruption
from tf_preempt.cli.demo.progress import TRAIN, VALIDATE, Position
from tf_preempt.cli.demo.report import Interrupted, Report, versions
from tf_preempt.cli.demo.settings import DemoSettings


def interrupted(signum, phase, *, repeated=0, batches=0):
    return Interrupted(
        interruption=Interruption(signal=signum, worker=1, position=Position(0, phase, 3)),
        done=Position(0, phase, 4),
        cost=Cost(steps_run=25, steps_repeated=repeated, batches_repeated=batches, restart_seconds=7.256),
    )


def report(*, differing=(), kinds=None):
    return Report(
        settings=DemoSettings(seed=5),
        comparison=Comparison(differing=differing),
        interrupted=kinds
        or [
            interrupted(signal.SIGTERM, TRAIN),
            interrupted(signal.SIGTERM, VALIDATE),
            interrupted(signal.SIGKILL, TRAIN, repeated=5, batches=2),
        ],
        steps_total=185,
        steps_undisturbed=180,
        accuracy=0.98,
        versions={"python": "3.11.7"},
    )


def test_identical_bits_and_nothing_repeated_after_notice_is_success():
    assert report().success


@pytest.mark.parametrize(
    "failed",
    [
        report(differing=("history/loss",)),
        report(kinds=[interrupted(signal.SIGTERM, TRAIN, repeated=1)]),
        report(kinds=[interrupted(signal.SIGTERM, VALIDATE, batches=1)]),
    ],
)
def test_anything_else_is_no_success(failed):
    assert not failed.success


def test_json_has_what_a_program_asks_for():
    found = json.loads(json.dumps(report().to_json()))
    assert found["bit_identical"] is True
    assert found["steps_total"] == 185
    assert found["steps_repeated"] == [0, 0, 5]
    assert found["validation_batches_repeated"] == [0, 0, 2]
    assert found["restart_seconds"] == [7.26] * 3
    assert found["test_accuracy"] == 0.98
    assert (found["seed"], found["workers"], found["epochs"]) == (5, 2, 3)
    assert found["versions"] == {"python": "3.11.7"}
    assert found["interruptions"][1] == {
        "signal": "SIGTERM",
        "worker": 1,
        "epoch": 0,
        "phase": "validate",
        "step": 4,
    }


def test_plain_table_is_aligned_and_ends_with_the_verdict():
    output = io.StringIO()
    report().print(output)
    assert output.getvalue().splitlines() == [
        "",
        "what                 after                        steps run  steps repeated  seconds lost",
        "SIGTERM to worker 1  epoch 1, step 5                     25               0           7.3",
        "SIGTERM to worker 1  epoch 1, validation batch 5         25               0           7.3",
        "SIGKILL to worker 1  epoch 1, step 5                     25               5           7.3",
        "",
        "185 training steps, 180 of them needed",
        "bit-identical to the undisturbed training: weights yes, optimizer yes, history yes",
        "test accuracy: 0.980",
    ]


def test_verdict_names_what_differs():
    lines = report(differing=("history/loss", "weights/00/kernel")).verdict()
    assert "weights NO, optimizer yes, history NO" in lines[1]
    assert lines[2] == "differing: history/loss, weights/00/kernel"


def test_terminal_gets_a_table(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    output = Terminal()
    report().print(output)
    assert "─" in output.getvalue() or "━" in output.getvalue()
    for words in ("SIGKILL to worker 1", "epoch 1, validation batch 5", "bit-identical", "0.980"):
        assert words in output.getvalue()


def test_versions_are_asked_for_by_the_packages_names():
    found = versions(lambda name: f"version of {name}")
    assert found["tensorflow"] == "version of tensorflow"
    assert found["keras"] == "version of keras"
    assert {"tf_preempt", "python"} < found.keys()
