from __future__ import annotations

import datetime
import logging
from typing import Any

import pytest

from tf_preempt.checkpointing.asking import Asking
from tf_preempt.checkpointing.cadence import Cadence
from tf_preempt.checkpointing.rounds import Request
from tf_preempt.checkpointing.startup import Cluster
from tf_preempt.termination.notice import TerminationNotice
from tf_preempt.termination.shortest_notice import ShortestNotice

NEVER = Cadence(kind="never")
TEN_SECONDS = Cadence.parse(datetime.timedelta(seconds=10))


class Asked:
    """An `Asking` with a clock that is set by hand, and what it has asked for."""

    def __init__(
        self,
        *,
        worker: int = 0,
        cadence: Cadence = NEVER,
        grace_period: float | None = None,
        shortest: ShortestNotice | None = None,
    ) -> None:
        self.now = 1000.0
        self.at = 0
        self.saves = 0
        self.requests: list[Request] = []
        self.asking = Asking(
            Cluster(worker=worker, workers=2),
            cadence,
            grace_period,
            self.requests.append,
            at=lambda: self.at,
            shortest=shortest,
            clock=lambda: self.now,
        )

    def notice(self, left_s: float | None = None, *, trains_on: bool = False) -> None:
        deadline = None if left_s is None else self.now + left_s
        self.asking.on_notice(
            TerminationNotice(source="SIGTERM", reason="for a test", deadline=deadline, trains_on=trains_on)
        )

    def save(self, held_s: float, *, whole_s: float | None = None) -> None:
        """A save that holds training up for a time up to now, and whose commit has come when it is over."""
        self.saves += 1
        self.asking.saved(self.saves, held_s)
        self.now += (held_s if whole_s is None else whole_s) - held_s
        self.asking.committed(self.saves)

    def poll_until(self, end: float, *, every_s: float = 0.5) -> None:
        while self.now < end:
            self.now += every_s
            self.asking.on_poll()

    @property
    def kinds(self) -> list[str]:
        return [request.kind for request in self.requests]


@pytest.mark.parametrize("grace_period", [None, 0, 0.0])
@pytest.mark.parametrize("left_s", [None, 3.0, 1000.0])
def test_without_a_grace_period_a_notice_asks_to_leave_at_once(
    grace_period: float | None, left_s: float | None
) -> None:
    asked = Asked(worker=1, grace_period=grace_period)
    asked.notice(left_s)
    assert asked.requests == [Request(kind="leave", worker=1, reason="SIGTERM", deadline_s=left_s)]
    asked.poll_until(5000.0)
    assert len(asked.requests) == 1


@pytest.mark.parametrize(
    ("left_s", "save_s", "leaves_after_s"),
    [
        (None, None, 119.0),
        (None, 10.0, 89.0),
        (60.0, 10.0, 29.0),
        (300.0, 10.0, 89.0),  # the user says 120
        (31.5, 10.0, 0.5),
    ],
)
def test_a_grace_period_is_trained_in_until_the_time_for_the_last_save_has_come(
    left_s: float | None, save_s: float | None, leaves_after_s: float
) -> None:
    asked = Asked(grace_period=120.0)
    if save_s is not None:
        asked.save(save_s)
    asked.notice(left_s)
    assert asked.kinds == ["notice"]
    asked.poll_until(1000.0 + leaves_after_s - 0.5)
    assert asked.kinds == ["notice"]
    asked.poll_until(2000.0)
    assert asked.kinds == ["notice", "leave"]
    assert asked.requests[1].deadline_s == pytest.approx(min(left_s or 120.0, 120.0) - leaves_after_s)


@pytest.mark.parametrize(("left_s", "save_s"), [(29.0, 10.0), (None, 50.0)])
def test_a_grace_period_that_holds_no_three_saves_is_not_trained_in_and_that_is_said(
    left_s: float | None, save_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    asked = Asked(grace_period=120.0)
    asked.save(save_s)
    with caplog.at_level(logging.WARNING, logger="tf_preempt"):
        asked.notice(left_s)
        asked.notice(left_s)
    assert asked.kinds == ["leave", "leave"]
    assert caplog.text.count("HINT: set grace_period") == 1


def test_a_save_in_the_grace_period_moves_the_moment_to_leave() -> None:
    asked = Asked(grace_period=120.0)
    asked.notice()
    asked.save(20.0)
    asked.poll_until(1000.0 + 58.5)
    assert asked.kinds == ["notice"]
    asked.poll_until(1000.0 + 59.0)
    assert asked.kinds == ["notice", "leave"]


def test_saves_by_the_clock_come_an_interval_after_the_last_save_and_are_asked_for_once() -> None:
    asked = Asked(cadence=TEN_SECONDS)
    asked.poll_until(1009.5)
    assert asked.kinds == []
    asked.poll_until(1010.0)
    assert asked.requests == [Request(kind="save", worker=0, reason="every 10 s")]
    asked.poll_until(1019.5)
    assert len(asked.requests) == 1
    asked.save(1.0)
    asked.poll_until(1029.0)
    assert len(asked.requests) == 1
    asked.poll_until(1029.5)
    assert len(asked.requests) == 2


def test_auto_follows_what_the_last_save_cost() -> None:
    asked = Asked(cadence=Cadence(kind="auto"))
    asked.poll_until(1059.5)
    assert asked.kinds == []
    asked.poll_until(1060.0)
    asked.save(2.0)
    asked.poll_until(1259.5)
    assert asked.kinds == ["save"]
    asked.poll_until(1260.0)
    assert asked.kinds == ["save", "save"]


@pytest.mark.parametrize(
    ("worker", "cadence"),
    [(1, TEN_SECONDS), (0, NEVER), (0, Cadence(kind="steps", steps=1)), (0, Cadence(kind="epoch"))],
)
def test_only_the_chiefs_clock_asks_and_only_where_the_clock_decides(worker: int, cadence: Cadence) -> None:
    asked = Asked(worker=worker, cadence=cadence)
    asked.poll_until(9000.0, every_s=60.0)
    assert asked.requests == []


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (Request(kind="leave", worker=1, reason="SIGTERM"), True),
        (Request(kind="notice", worker=1, reason="gce"), True),
        (Request(kind="save", worker=1, reason="every 10 s"), False),
        (Request(kind="leave", worker=0, reason="SIGTERM"), False),  # said when it came
    ],
)
def test_what_another_worker_was_told_is_said(
    request_: Request, said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    asked: Any = Asked(worker=0)
    with caplog.at_level(logging.WARNING, logger="tf_preempt"):
        asked.asking.on_claim(request_)
    assert bool(caplog.messages) is said
    assert (f"Worker 1 was given notice: {request_.reason}." in caplog.messages) is said


def test_each_report_is_told_to_who_listens(caplog: pytest.LogCaptureFixture) -> None:
    asked: Any = Asked(worker=0)
    with caplog.at_level(logging.INFO, logger="tf_preempt"):
        asked.asking.on_claim(Request(kind="leave", worker=0, reason="SIGTERM"))
    assert caplog.messages == ["The workers agree where to save (SIGTERM)."]


def test_second_notice_does_not_lengthen_the_grace_period() -> None:
    asked = Asked(grace_period=120.0)
    asked.save(1.0)
    asked.notice()
    asked.now += 100.0
    asked.notice()
    asked.poll_until(1116.5)  # 3.5 s are left of the first notice's 120
    assert asked.kinds == ["notice", "notice", "leave"]


def test_a_second_notice_with_an_earlier_deadline_shortens_the_countdown() -> None:
    asked = Asked(grace_period=600.0)
    asked.save(1.0)
    asked.notice()
    asked.now += 100.0
    asked.notice(50.0)
    asked.poll_until(1100.0 + 45.5)
    assert asked.kinds == ["notice", "notice"]
    asked.poll_until(1100.0 + 46.0)  # 1 s to ask, and three saves
    assert asked.kinds == ["notice", "notice", "leave"]


def test_a_notice_to_train_on_after_is_trained_in_without_a_grace_period() -> None:
    asked = Asked()
    asked.save(10.0)
    asked.notice(3600.0, trains_on=True)
    asked.poll_until(1000.0 + 3568.5)
    assert asked.kinds == ["notice"]
    asked.poll_until(1000.0 + 3569.0)
    assert asked.kinds == ["notice", "leave"]


@pytest.mark.parametrize(("grace_period", "leaves_after_s"), [(0, None), (120.0, 89.0)])
def test_the_users_grace_period_counts_more_than_the_platforms_custom(
    grace_period: float, leaves_after_s: float | None
) -> None:
    asked = Asked(grace_period=grace_period)
    asked.save(10.0)
    asked.notice(3600.0, trains_on=True)
    if leaves_after_s is not None:
        asked.poll_until(1000.0 + leaves_after_s - 0.5)
        assert asked.kinds.pop(0) == "notice"
        asked.poll_until(1000.0 + leaves_after_s)
    assert asked.kinds[-1] == "leave"


def test_a_notice_to_leave_after_ends_a_countdown_at_once() -> None:
    asked = Asked()
    asked.notice(3600.0, trains_on=True)
    asked.poll_until(1060.0)
    asked.notice(30.0)
    assert asked.kinds == ["notice", "leave"]


def test_the_countdown_ends_so_early_that_a_long_step_and_the_commit_fit() -> None:
    asked = Asked(grace_period=300.0)

    def train_until(end: float, *, kinds: int) -> None:
        """Steps of 20 s, seen to half a second."""
        while asked.now < end and len(asked.kinds) < kinds:
            asked.at = 2 + int((asked.now - 1000.0) / 20.0)
            asked.poll_until(asked.now + 0.5)

    train_until(1100.0, kinds=1)
    asked.asking.saved(1, 0.1)
    train_until(1110.0, kinds=1)
    asked.asking.committed(1)  # 10 s after the save began
    began = asked.now
    asked.notice()
    train_until(2000.0, kinds=2)
    assert asked.kinds == ["notice", "leave"]
    longest = 300.0 - 1.0 - 20.0 - 30.0
    assert longest - 2.0 <= asked.now - began <= longest


def test_a_save_in_an_earlier_life_tells_how_long_one_takes() -> None:
    asked = Asked(grace_period=120.0)
    asked.asking.expect(10.0)
    assert asked.asking.save_seconds == 10.0
    asked.notice(25.0)
    assert asked.kinds == ["leave"]


SHORT = ShortestNotice(seconds=30.0, origin="what X gives", cure="buy time")


@pytest.mark.parametrize("life", ["this", "earlier"])
@pytest.mark.parametrize("kind", ["auto", "never"])
def test_a_save_that_fits_into_no_notice_is_said_beforehand_and_once(
    life: str, kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    asked = Asked(shortest=SHORT, cadence=Cadence(kind=kind))
    with caplog.at_level(logging.WARNING, logger="tf_preempt"):
        asked.save(1.0, whole_s=29.0)
        assert not caplog.messages
        asked.asking.expect(40.0) if life == "earlier" else asked.save(1.0, whole_s=40.0)
        asked.save(1.0, whole_s=40.0)
    (said,) = caplog.messages
    assert said.startswith("A save takes 40.0 s, and the notice is 30 s (what X gives)")
    assert said.endswith("HINT: buy time")
    assert ("Periodic saves come more often." in said) is (kind == "auto")


@pytest.mark.parametrize(("whole_s", "interval_s"), [(29.0, 400.0), (40.0, 80.0)])
def test_where_no_save_fits_into_a_notice_periodic_ones_come_more_often(
    whole_s: float, interval_s: float
) -> None:
    asked = Asked(shortest=SHORT, cadence=Cadence(kind="auto"))
    asked.save(4.0, whole_s=whole_s)
    began = 1000.0
    asked.poll_until(began + interval_s - 0.5)
    assert asked.kinds == []
    asked.poll_until(began + interval_s)
    assert asked.kinds == ["save"]


def test_one_worker_says_for_all_that_no_save_fits(caplog: pytest.LogCaptureFixture) -> None:
    asked = Asked(worker=1, shortest=SHORT)
    asked.asking.expect(40.0)
    assert not caplog.messages


def test_the_commit_that_is_under_way_has_its_time_in_the_countdown() -> None:
    asked = Asked(grace_period=50.0)
    asked.save(10.0)
    asked.asking.saved(99, 1.0)  # 9 s are left of it, and three times 19 s do not fit
    asked.notice()
    asked.asking.committed(99)
    asked.notice()
    assert asked.kinds == ["leave", "notice"]
