import datetime

import pytest

from tf_preempt.checkpointing.asking import Asking
from tf_preempt.checkpointing.cadence import FIRST_SAVE_AFTER_S, Cadence
from tf_preempt.checkpointing.startup import Cluster
from tf_preempt.termination.notice import TerminationNotice

NEVER = Cadence.parse(None)


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def make(clock, *, cadence=NEVER, grace_period=None, worker=0):
    asked = []
    cluster = Cluster(worker=worker, workers=2)
    return Asking(cluster, cadence, grace_period, asked.append, clock=clock), asked


def notice(clock, left_s=None):
    deadline = None if left_s is None else clock.now + left_s
    return TerminationNotice(source="SIGTERM", reason="test", deadline=deadline)


@pytest.mark.parametrize(
    ("grace_period", "left_s", "save_s", "kind"),
    [
        pytest.param(None, None, 1.0, "leave", id="no grace period: leave at once"),
        pytest.param(None, 3600.0, 1.0, "leave", id="a long deadline alone is not used for training"),
        pytest.param(0, None, 1.0, "leave", id="a grace period of zero is none"),
        pytest.param(30.0, None, 1.0, "notice", id="a grace period is trained in"),
        pytest.param(30.0, None, 10.1, "leave", id="less than three saves are left"),
        pytest.param(30.0, 5.0, 2.0, "leave", id="the notice's own deadline counts before the grace period"),
        pytest.param(30.0, None, None, "notice", id="what a save takes is not known yet"),
    ],
)
def test_notice_asks_to_leave_or_to_train_on(clock, grace_period, left_s, save_s, kind):
    asking, asked = make(clock, grace_period=grace_period, worker=1)
    if save_s is not None:
        asking.saved(save_s)
    asking.on_notice(notice(clock, left_s))
    assert [(request.kind, request.worker, request.reason) for request in asked] == [(kind, 1, "SIGTERM")]


def test_grace_period_shorter_than_three_saves_warns_with_the_cure(clock, caplog):
    asking, _ = make(clock, grace_period=2.0)
    asking.saved(1.0)
    asking.on_notice(notice(clock))
    assert "HINT: set grace_period only where" in caplog.text


def test_training_in_the_grace_period_ends_early_enough_for_three_saves(clock):
    asking, asked = make(clock, grace_period=30.0)
    asking.on_notice(notice(clock))
    asking.saved(2.0)
    clock.now += 22.9  # 7.1 s are left: three saves and the margin need 7
    asking.on_poll()
    assert [request.kind for request in asked] == ["notice"]
    clock.now += 0.2
    asking.on_poll()
    asking.on_poll()
    assert [request.kind for request in asked] == ["notice", "leave"]
    assert asked[1].deadline_s == pytest.approx(6.9)


def test_chief_asks_for_periodic_saves_by_the_clock(clock):
    asking, asked = make(clock, cadence=Cadence.parse(datetime.timedelta(seconds=10)))
    clock.now += 9.9
    asking.on_poll()
    assert asked == []
    clock.now += 0.1
    asking.on_poll()
    asking.on_poll()
    assert [(request.kind, request.reason) for request in asked] == [("save", "every 10 s")]
    clock.now += 6.0
    asking.saved(0.5)
    clock.now += 9.0
    asking.on_poll()
    assert len(asked) == 1


def test_auto_cadence_saves_soon_for_the_first_time_and_then_by_what_a_save_takes(clock):
    asking, asked = make(clock, cadence=Cadence.parse("auto"))
    clock.now += FIRST_SAVE_AFTER_S
    asking.on_poll()
    asking.saved(3.0)
    clock.now += 299.0
    asking.on_poll()
    assert len(asked) == 1
    clock.now += 1.0
    asking.on_poll()
    assert len(asked) == 2


def test_other_workers_leave_periodic_saves_to_the_chief(clock):
    asking, asked = make(clock, cadence=Cadence.parse("auto"), worker=1)
    clock.now += 10_000.0
    asking.on_poll()
    assert asked == []
