"""When the notice of an announced event is due."""

from __future__ import annotations

import math

import pytest

from tf_preempt.termination.appointments import Appointments, Verdict


def verdicts(*looks, lead_s=120.0):
    """The verdict at each look, of which the first is the first of the watch."""
    appointments = Appointments()
    return [
        appointments.verdict("event", left_s, lead_s, is_first=number == 0).value
        for number, left_s in enumerate(looks)
        if left_s != "absent"
    ]


@pytest.mark.parametrize(
    ("looks", "said"),
    [
        (("absent", 900, 121, 120, 60, 0, None), ["later", "later", "due", "told", "told", "told"]),
        (("absent", 60, 30), ["due", "told"]),
        (("absent", 0), ["due"]),
        (("absent", -5), ["due"]),
        (("absent", None, None), ["due", "told"]),
        ((900, 121, 120, 119), ["later", "later", "due", "told"]),
        ((120, 60, 31, 30, 29), ["later", "later", "later", "due", "told"]),
        ((30, 29), ["due", "told"]),
        ((100, None), ["later", "due"]),
        ((0, None), ["under way", "told"]),
        ((-60, -61), ["under way", "told"]),
        ((None, None), ["under way", "told"]),
    ],
)
def test_a_notice_is_due(looks, said):
    assert verdicts(*looks) == said


def test_one_that_is_told_at_once_while_watched_is_put_off_at_first_too():
    assert verdicts("absent", 1e6, lead_s=math.inf) == ["due"]
    assert verdicts(110.0, 31.0, 30.0, lead_s=math.inf) == ["later", "later", "due"]


def test_a_lead_that_is_shorter_stays():
    assert verdicts(9.0, 5.0, lead_s=10.0) == ["due", "told"]


def test_events_are_told_apart():
    appointments = Appointments()
    assert appointments.verdict("one", 60, 120, is_first=True) is Verdict.LATER
    assert appointments.verdict("two", 60, 120, is_first=False) is Verdict.DUE


def test_the_time_until_a_notice_is_due():
    appointments = Appointments()
    appointments.verdict("old", 60, 120, is_first=True)
    assert appointments.due_in_s("old", 50, 120) == 20
    assert appointments.due_in_s("old", 30, 120) == appointments.due_in_s("old", -1, 120) == 0
    assert appointments.due_in_s("new", 150, 120) == 30
    appointments.verdict("new", 120, 120, is_first=False)
    assert appointments.due_in_s("new", 119, 120) is None


def test_one_that_comes_back_is_told_again():
    appointments = Appointments()
    assert appointments.verdict("one", 60, 120, is_first=False) is Verdict.DUE
    appointments.keep(["one", "two"])
    assert appointments.verdict("one", 60, 120, is_first=False) is Verdict.TOLD
    appointments.keep(())
    assert appointments.verdict("one", 60, 120, is_first=False) is Verdict.DUE
