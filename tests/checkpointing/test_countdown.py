"""How long saves and steps take, on a clock that is set by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tf_preempt.checkpointing.countdown import SaveTimes, StepTimes


class Saves:
    def __init__(self) -> None:
        self.now = 100.0
        self.times = SaveTimes(lambda: self.now)


def test_a_save_lasts_until_its_commit() -> None:
    saves = Saves()
    assert saves.times.seconds is None
    saves.times.written(1, 2.0)
    saves.now += 3.0
    assert (saves.times.seconds, saves.times.rest_s()) == (5.0, 0.0)
    saves.times.ended(1, committed=True)
    saves.now += 50.0
    assert saves.times.seconds == 5.0


def test_the_longest_of_the_last_three_counts() -> None:
    saves = Saves()
    seen = []
    for number, seconds in enumerate([9.0, 1.0, 2.0, 3.0, 1.0]):
        saves.times.written(number, seconds)
        saves.times.ended(number, committed=True)
        seen.append(saves.times.seconds)
    assert seen == [9.0, 9.0, 9.0, 3.0, 3.0]


def test_a_save_that_failed_tells_nothing() -> None:
    saves = Saves()
    saves.times.written(1, 2.0)
    saves.times.ended(1, committed=False)
    assert (saves.times.seconds, saves.times.rest_s()) == (None, 0.0)
    saves.times.ended(7, committed=True)
    assert saves.times.seconds is None


def test_commits_under_way_have_their_rest_before_them() -> None:
    saves = Saves()
    saves.times.expect(10.0)
    saves.times.written(1, 1.0)
    assert saves.times.rest_s() == 9.0
    saves.now += 4.0
    saves.times.written(2, 1.0)
    assert saves.times.rest_s() == 5.0 + 9.0
    saves.now += 20.0  # longer than ever before: how much longer is not known
    assert (saves.times.seconds, saves.times.rest_s()) == (25.0, 4.0)


def test_an_earlier_life_counts_until_this_one_has_saved() -> None:
    saves = Saves()
    saves.times.expect(10.0)
    assert saves.times.seconds == 10.0
    saves.times.written(1, 2.0)
    saves.times.ended(1, committed=True)
    assert saves.times.seconds == 2.0


@pytest.mark.parametrize("seconds", [None, "7", True, -1.0, float("nan"), float("inf"), [1]], ids=repr)
def test_what_is_no_time_in_a_manifest_is_ignored(seconds: Any) -> None:
    saves = Saves()
    saves.times.expect(seconds)
    assert saves.times.seconds is None


def bound_of(boundary_at: Callable[[float], int], *, until: float, poll_s: float = 0.5) -> float:
    """What is known of the longest step after looking twice a second."""
    steps, now = StepTimes(), 0.0
    while now <= until:
        steps.look(boundary_at(now), now)
        now += poll_s
    return steps.longest_s(until)


@pytest.mark.parametrize("step_s", [0.001, 0.01, 0.1, 0.3, 0.5, 0.7, 1.0, 1.3, 5.0, 42.0])
@pytest.mark.parametrize("phase", [0.0, 0.31])
def test_steps_are_never_thought_shorter_than_they_are_nor_much_longer(step_s: float, phase: float) -> None:
    bound = bound_of(lambda now: int((now + phase) / step_s), until=max(60.0, 5 * step_s))
    assert step_s - 1e-6 <= bound <= 1.5 * step_s + 1.0


def test_a_pause_between_quick_steps_is_found() -> None:
    def boundary_at(now: float) -> int:
        trained_s = min(now, 10.2) + max(0.0, now - 40.2)
        return int(trained_s / 0.01)

    assert 30.0 <= bound_of(boundary_at, until=60.0) <= 31.5


def test_the_running_step_counts_as_far_as_it_is() -> None:
    assert bound_of(lambda now: min(int(now), 10), until=25.0) == pytest.approx(15.0, abs=1.0)


def test_the_first_step_with_its_tracing_does_not_count() -> None:
    for first in (0, 1):  # a custom loop's and Keras's first boundary
        bound = bound_of(lambda now, first=first: first if now < 30.0 else int(now), until=60.0)  # type: ignore[misc]
        assert bound <= 2.0


def test_a_save_at_a_boundary_is_no_part_of_its_step() -> None:
    steps = StepTimes()
    for now in range(0, 20):
        steps.look(1 + now // 2, float(now))
    steps.look(11, 20.0)
    steps.saved(30.0)
    for now in range(50, 53):
        steps.look(11, float(now))
    assert steps.longest_s(52.0) <= 5.0
    steps.look(12, 53.0)
    assert steps.longest_s(53.0) <= 5.0
