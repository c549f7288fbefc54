import dataclasses
import json
import signal

import pytest

from tf_preempt.testing.drill.causes import Cause
from tf_preempt.testing.drill.comparing import Comparison
from tf_preempt.testing.drill.kill_watch import Sent
from tf_preempt.testing.drill.kills import Kill
from tf_preempt.testing.drill.options import DrillOptions
from tf_preempt.testing.drill.outcome import Outcome, Verdict

KILL = Kill(signal=signal.SIGKILL, worker=1, share=0.5)
WEIGHTS = {
    "name": "dense/kernel",
    "group": "weights",
    "differing": 3,
    "elements": 8,
    "max_abs": 0.25,
    "max_ulp": 12,
    "note": None,
}
MOMENTUM = {**WEIGHTS, "name": "adam/momentum", "group": "optimizer", "max_ulp": 2 * 10**9}
STEPS = {
    "name": "steps in all",
    "group": "place",
    "differing": 1,
    "elements": 1,
    "max_abs": 2.0,
    "max_ulp": None,
    "note": None,
}
CAUSE = Cause(name="unseeded", text="something has no seed", cure="give it one")


def outcome(verdict, *differences, **fields):
    comparison = Comparison(
        differences=differences, compared={"weights": 2, "optimizer": 4}, not_compared=1, common_steps=3
    )
    given = {
        "options": DrillOptions(command=["python", "train.py"], kills=2, seed=7),
        "steps": 60,
        "commits": 12,
        "sent": (Sent(kill=KILL, after_step=9, struck=True), Sent(kill=KILL, after_step=30, struck=True)),
        "comparison": comparison,
        "directory": "/d",
    }
    return Outcome(verdict=verdict, **{**given, **fields})


def test_identical():
    assert outcome(Verdict.IDENTICAL).lines() == [
        "identical: after 2 interruptions, 60 steps ended with the bits of the undisturbed training",
        "  compared: 4 optimizer, 2 weights",
        "  not compared: 1 position in data",
    ]


def test_difference_is_said_with_size_place_and_likely_cause():
    found = outcome(Verdict.DIFFERENT, MOMENTUM, STEPS, WEIGHTS, causes=(CAUSE,))
    comparison = dataclasses.replace(found.comparison, last_alike=5, first_unlike=10, fits_missing=(1,))
    assert dataclasses.replace(found, comparison=comparison).lines() == [
        "DIFFERENT: after 2 interruptions, the training did not end as the undisturbed one",
        "  place steps in all: by up to 2",
        "  weights dense/kernel: 3 of 8 elements, by up to 0.25 (12 ulp)",
        "  optimizer adam/momentum: 3 of 8 elements, by up to 0.25 (2e+09 ulp)",
        "  training 1 of the program is complete in one of the two only",
        "  compared: 4 optimizer, 2 weights",
        "  not compared: 1 position in data",
        "  the variables were alike at step 5 and differ at step 10",
        "  likely: something has no seed\n    HINT: give it one",
    ]


def test_log_with_the_whole_warning_is_named():
    told = dataclasses.replace(CAUSE, log="/d/x.log")
    assert outcome(Verdict.DIFFERENT, WEIGHTS, causes=(told,)).lines()[-1] == (
        "  likely: something has no seed\n    the whole warning is in /d/x.log\n    HINT: give it one"
    )


@pytest.mark.parametrize(
    ("alike", "unlike", "words"),
    [
        (None, None, "since which step is not known"),
        (None, 5, "differ at step 5 already, the first"),
        (60, None, "were alike at step 60, the last"),
        (5, 10, "were alike at step 5 and differ at step 10"),
    ],
)
def test_since_when_they_differ(alike, unlike, words):
    found = outcome(Verdict.DIFFERENT, WEIGHTS)
    comparison = dataclasses.replace(found.comparison, last_alike=alike, first_unlike=unlike)
    assert words in "\n".join(dataclasses.replace(found, comparison=comparison).lines())


def test_many_differences_are_counted():
    lines = outcome(Verdict.DIFFERENT, *[WEIGHTS] * 20).lines()
    assert sum("dense/kernel" in line for line in lines) == 12
    assert "  and 8 more; --json lists all" in lines


def test_program_that_does_not_repeat_itself_is_said_first():
    lines = outcome(Verdict.NOT_REPEATABLE, WEIGHTS, sent=(), causes=(CAUSE,)).lines()
    assert lines[0].startswith("NOT REPEATABLE: two undisturbed trainings did not end alike")
    assert lines[-1] == "  likely: something has no seed\n    HINT: give it one"


@pytest.mark.parametrize(
    ("signals", "commits", "words", "cure"),
    [
        (
            ("TERM", "KILL"),
            12,
            "1 of 2 signals took effect: the training ended before",
            "--kills 1, more steps",
        ),
        (("KILL",), 1, "it commits nothing before its end, and SIGKILL waits for a commit", "save_every=N"),
    ],
)
def test_signals_that_were_missed_are_counted_with_the_cure(signals, commits, words, cure):
    options = DrillOptions(command=["x"], kills=2, signals=signals)
    sent = (Sent(kill=KILL, after_step=9, struck=True), Sent(kill=KILL, after_step=60))
    last = outcome(Verdict.IDENTICAL, options=options, commits=commits, sent=sent, unsent=1).lines()[-1]
    assert words in last
    assert f"HINT: {cure}" in last


def test_drill_without_an_interruption_says_so():
    lines = outcome(Verdict.NOT_DISTURBED, sent=(), unsent=2).lines()
    assert lines[0].startswith("NOT DISTURBED: ")
    assert lines[-1].startswith("  0 of 2 signals took effect")


def test_json_has_all_of_it_and_a_format():
    sent = (Sent(kill=KILL, after_step=9, struck=True), Sent(kill=KILL, after_step=60))
    told = dataclasses.replace(CAUSE, found=("x", "y"), log="/d/x.log")
    given = outcome(Verdict.DIFFERENT, WEIGHTS, sent=sent, unsent=1, causes=(told,), repeatable=True)
    found = json.loads(json.dumps(given.to_json()))
    assert found == {
        "format": 1,
        "verdict": "different",
        "command": ["python", "train.py"],
        "seed": 7,
        "workers": 1,
        "signals": ["TERM", "KILL"],
        "kills": 2,
        "kills_made": 1,
        "kills_missed": 1,
        "sent": [
            {"signal": "SIGKILL", "worker": 1, "after_step": 9, "struck": True},
            {"signal": "SIGKILL", "worker": 1, "after_step": 60, "struck": False},
        ],
        "steps": 60,
        "commits": 12,
        "repeatable": True,
        "compared": {"weights": 2, "optimizer": 4},
        "not_compared": 1,
        "differences": [WEIGHTS],
        "fits_missing": [],
        "random_states_differing": [],
        "common_steps": 3,
        "last_identical_step": None,
        "first_different_step": None,
        "likely_causes": [
            {
                "name": "unseeded",
                "text": "something has no seed",
                "cure": "give it one",
                "found": ["x", "y"],
                "log": "/d/x.log",
            }
        ],
        "directory": "/d",
    }


def test_json_without_a_comparison():
    found = outcome(Verdict.NOT_DISTURBED, comparison=None).to_json()
    assert (found["compared"], found["differences"], found["common_steps"]) == ({}, [], 0)
