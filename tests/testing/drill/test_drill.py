import io
import os
import sys
import tempfile

import pytest

from tests.testing.drill.fake_program import PROGRAM
from tf_preempt.errors import LaunchError
from tf_preempt.testing.drill.drill import perform
from tf_preempt.testing.drill.options import DrillOptions
from tf_preempt.testing.drill.outcome import Verdict
from tf_preempt.testing.story import Story


@pytest.fixture
def drill(tmp_path, monkeypatch):
    """Drills a program that is the given source; gives the outcome and what was told."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))

    def run(source, **options):
        path = tmp_path / "program.py"
        path.write_text(PROGRAM + source)
        told = io.StringIO()
        given = DrillOptions(command=[sys.executable, str(path)], trust_deterministic=True, **options)
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        return perform(given, directory=str(tmp_path), story=Story(told), environ=environ), told.getvalue()

    return run


def test_program_that_commits_only_at_its_end_cannot_be_killed_and_nothing_is_compared(drill, tmp_path):
    # In this order: between its commit and its end it could be killed.
    source = "steps.write(3)\ntime.sleep(0.2)\nlog.write('finish', step=5)\ncommit(1, 5)\n"
    outcome, told = drill(source, kills=2, signals=("KILL",), seed=4)
    assert outcome.verdict is Verdict.NOT_DISTURBED
    assert (outcome.steps, outcome.commits, outcome.unsent, outcome.comparison) == (5, 1, 2, None)
    assert "0 of 2 signals took effect: it commits nothing before its end" in outcome.lines()[-1]
    assert "training with 2 interruption(s), seed 4" in told
    assert os.path.dirname(outcome.directory) == str(tmp_path)
    assert sorted(os.listdir(outcome.directory)) == ["disturbed", "undisturbed"]
    assert list((tmp_path / "temporary").iterdir()) == []


def test_second_drill_in_a_directory_does_not_mind_the_first(drill, tmp_path):
    source = "log.write('finish', step=5)\ncommit(1, 5)\n"
    first, second = (drill(source, signals=("KILL",))[0].directory for _ in range(2))
    assert first != second


def test_life_that_fails_after_a_signal_is_told_with_it(drill):
    source = (
        "if lives: raise ValueError('cannot come back')\n"
        "commit(1, 5)\n"
        "for step in range(5, 100):\n"
        "    steps.write(step)\n"
        "    time.sleep(0.005)\n"
        "commit(2, 100)\n"
        "log.write('finish', step=100)\n"
    )
    with pytest.raises(LaunchError) as caught:
        drill(source, kills=1, signals=("KILL",))
    for words in (
        "the disturbed training failed, after SIGKILL to worker 0 at step ",
        "It ended with ValueError, raised in the program (program.py, ",
        "ValueError: cannot come back",
    ):
        assert words in str(caught.value)
