import logging
import os
import pathlib
import signal

import pytest

import tf_preempt
from tf_preempt.errors import ConfigError
from tf_preempt.testing import assert_resume_equivalent, resume_equivalence
from tf_preempt.testing.drill.kill_watch import Sent
from tf_preempt.testing.drill.kills import Kill
from tf_preempt.testing.drill.outcome import Outcome, Verdict


def train(directory):
    """Is called in other processes only."""


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """Lets a drill come out as the test wants; gives what it was asked for.  Real ones: tests/cli/drill."""
    asked = {"verdict": Verdict.IDENTICAL, "unsent": 0}
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(resume_equivalence.tempfile, "tempdir", str(tmp_path / "temporary"))

    def perform(options, *, directory, story, environ):
        asked.update(options=options, directory=directory, environ=environ)
        asked["files"] = os.listdir(directory)
        kill = Kill(signal=signal.SIGTERM, worker=0, share=0.0)
        return Outcome(
            options=options,
            verdict=asked["verdict"],
            steps=6,
            commits=2,
            sent=(Sent(kill=kill, after_step=1, struck=True),),
            unsent=asked["unsent"],
            directory=f"{directory}/seed-0",
        )

    monkeypatch.setattr(resume_equivalence, "perform", perform)
    return asked


def test_is_public():
    assert tf_preempt.testing.assert_resume_equivalent is assert_resume_equivalent


def test_arguments_reach_the_drill(asked):
    outcome = assert_resume_equivalent(
        train,
        kills=2,
        seed=7,
        signals=["KILL"],
        at_steps=[3, 5],
        workers=4,
        trust_deterministic=True,
        stall_timeout_s=9.0,
        environ={"A": "b"},
    )
    options = asked["options"]
    assert (options.kills, options.seed, options.signals, options.at_steps) == (2, 7, ("KILL",), (3, 5))
    assert (options.workers, options.trust_deterministic, options.stall_timeout_s) == (4, True, 9.0)
    assert options.command[1:3] == ["-m", "tf_preempt.testing.children.call_train_function"]
    assert asked["environ"] == {"A": "b"}
    assert asked["files"] == ["train_function.json"]
    assert outcome.verdict is Verdict.IDENTICAL


@pytest.mark.parametrize("verdict", [Verdict.DIFFERENT, Verdict.NOT_REPEATABLE, Verdict.NOT_DISTURBED])
def test_all_else_than_identical_fails_with_the_report_and_keeps_the_files(verdict, asked):
    asked["verdict"] = verdict
    with pytest.raises(AssertionError) as caught:
        assert_resume_equivalent(train)
    first = verdict.name.replace("_", " ")
    assert str(caught.value).startswith(f"{first}: ")
    assert f"checkpoints and logs are in {asked['directory']}/seed-0" in str(caught.value)
    assert os.path.isdir(asked["directory"])


@pytest.mark.parametrize("named", [True, False])
def test_files_stay_after_success_only_where_the_caller_has_named_the_place(named, asked, tmp_path):
    assert_resume_equivalent(train, directory=tmp_path / "mine" if named else None)
    assert pathlib.Path(asked["directory"]).exists() is named
    assert (asked["directory"] == str(tmp_path / "mine")) is named


def test_directory_that_was_removed_is_not_named(asked, tmp_path):
    assert assert_resume_equivalent(train).directory is None
    assert assert_resume_equivalent(train, directory=tmp_path / "mine").directory is not None


@pytest.mark.parametrize(
    ("options", "kills"), [({}, 2), ({"at_steps": [3]}, 1), ({"at_steps": range(3)}, 3), ({"kills": 4}, 4)]
)
def test_number_of_signals_follows_from_their_places(options, kills, asked):
    assert_resume_equivalent(train, **options)
    assert asked["options"].kills == kills


def test_pytest_shows_the_line_of_the_test_and_none_of_ours(asked):
    asked["verdict"] = Verdict.DIFFERENT
    with pytest.raises(AssertionError) as caught:
        assert_resume_equivalent(train)
    shown = caught.traceback.filter(caught)
    assert {str(entry.path) for entry in shown} == {__file__}


def test_signals_that_were_missed_are_warned_of(asked, caplog):
    asked["unsent"] = 1
    with caplog.at_level(logging.WARNING, logger="tf_preempt"):
        assert_resume_equivalent(train)
    assert "1 of 2 signals took effect: the training ended before" in caplog.text


@pytest.mark.parametrize(
    ("function", "options", "words"),
    [
        (lambda directory: None, {}, "train_fn=<function"),
        (train, {"kills": 0}, "kills=0"),
        (train, {"signals": "TERM"}, r"signals='TERM' of assert_.*\nHINT: signals=\[\"TERM\", "),
        (train, {"at_steps": "12"}, r"at_steps='12' of assert_.* a list.*\nHINT: at_steps=\[12, 40\]"),
        (train, {"at_steps": 12}, r"at_steps=12 of assert_.*\nHINT: at_steps=\["),
        (train, {"at_steps": []}, r"at_steps=\[\] of assert_.* one or more.*\nHINT: at_steps=\["),
        (train, {"at_steps": ["12"]}, r"at_steps=\('12',\) .*\nHINT: at_steps=\["),
        (train, {"at_steps": [12], "kills": 2}, r"at_steps=\(12,\) .* 2 steps \(kills\).*\nHINT: "),
    ],
)
def test_wrong_argument_is_named_and_leaves_nothing(function, options, words, asked, tmp_path):
    with pytest.raises(ConfigError, match=words):
        assert_resume_equivalent(function, **options)
    assert list((tmp_path / "temporary").iterdir()) == []
