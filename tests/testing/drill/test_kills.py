import collections
import signal

import pytest

from tf_preempt.testing.drill.kills import Kill, aim, next_possible, plan_kills
from tf_preempt.testing.drill.options import DrillOptions

TERM = Kill(signal=signal.SIGTERM, worker=0, share=0.5)
KILL = Kill(signal=signal.SIGKILL, worker=0, share=0.5)


def plan(**options):
    return plan_kills(DrillOptions(command=["x"], **options))


def test_same_seed_gives_the_same_plan_and_another_one_another():
    plans = [plan(kills=5, seed=seed, workers=4) for seed in (7, 7, 8)]
    assert plans[0] == plans[1] != plans[2]


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        (("TERM", "KILL"), {signal.SIGTERM: 3, signal.SIGKILL: 2}),
        (("KILL",), {signal.SIGKILL: 5}),
    ],
)
def test_each_signal_comes_about_equally_often(signals, expected):
    for seed in range(20):
        assert (
            collections.Counter(kill.signal for kill in plan(kills=5, seed=seed, signals=signals)) == expected
        )


def test_order_of_the_signals_depends_on_the_seed():
    assert {plan(kills=2, seed=seed)[0].signal for seed in range(20)} == {signal.SIGTERM, signal.SIGKILL}


def test_every_worker_is_hit_by_some_seed():
    assert {kill.worker for seed in range(50) for kill in plan(kills=1, seed=seed, workers=3)} == {0, 1, 2}


def test_given_steps_are_taken_in_their_order():
    assert [kill.step for kill in plan(kills=3, at_steps=(30, 5, 10))] == [5, 10, 30]


@pytest.mark.parametrize(
    ("kills", "committed", "position"),
    [
        ([KILL, TERM], True, 0),
        ([KILL, TERM], False, 1),
        ([TERM, KILL], False, 0),
        ([KILL, KILL], False, None),
        ([], True, None),
    ],
)
def test_kill_lets_a_notice_go_first_until_there_is_a_commit(kills, committed, position):
    assert next_possible(kills, committed=committed) == position


@pytest.mark.parametrize("total", [10, 1000])
@pytest.mark.parametrize("left", [1, 2, 5])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.999])
def test_place_is_within_what_is_left_and_not_near_its_end(share, left, total):
    kill = Kill(signal=signal.SIGTERM, worker=0, share=share)
    begun_at = total // 2
    assert begun_at <= aim(kill, begun_at=begun_at, total=total, left=left) <= begun_at + 0.8 * total / 2


def test_places_leave_room_for_the_signals_that_are_still_to_come():
    middle = Kill(signal=signal.SIGTERM, worker=0, share=0.5)
    assert [aim(middle, begun_at=0, total=120, left=left) for left in (1, 2, 5)] == [60, 40, 20]


@pytest.mark.parametrize(("begun_at", "step"), [(0, 7), (7, 7), (9, 9)])
def test_given_step_counts_and_one_that_is_past_is_due_at_once(begun_at, step):
    kill = Kill(signal=signal.SIGTERM, worker=0, share=0.5, step=7)
    assert aim(kill, begun_at=begun_at, total=100, left=3) == step
