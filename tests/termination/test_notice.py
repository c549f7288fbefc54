from __future__ import annotations

import dataclasses
import time

import pytest

from tf_preempt.errors import ConfigError
from tf_preempt.termination import TerminationNotice


@pytest.mark.parametrize(
    ("deadline", "now", "left"),
    [(130.0, 100.0, 30.0), (130.0, 130.0, 0.0), (130.0, 131.0, 0.0), (None, 100.0, None)],
    ids=["before", "at", "after is not negative", "none"],
)
def test_remaining_seconds(deadline, now, left):
    notice = TerminationNotice(source="test", reason="because", deadline=deadline)
    assert notice.remaining_s(clock=lambda: now) == left


def test_default_clock_is_the_monotonic_one():
    left = TerminationNotice(source="test", reason="r", deadline=time.monotonic() + 1000).remaining_s()
    assert left is not None
    assert 900 < left <= 1000


@pytest.mark.parametrize("deadline", [float("nan"), float("inf")])
def test_deadline_that_is_no_time_is_refused(deadline):
    with pytest.raises(ConfigError, match=r"(?s)deadline=.*HINT") as caught:
        TerminationNotice(source="test", reason="r", deadline=deadline)
    assert "None" in str(caught.value)


def test_empty_source_is_refused():
    with pytest.raises(ConfigError, match="source is empty"):
        TerminationNotice(source="", reason="r")


def test_notice_cannot_be_changed():
    notice = TerminationNotice(source="test", reason="r")
    with pytest.raises(dataclasses.FrozenInstanceError):
        notice.deadline = 1.0
