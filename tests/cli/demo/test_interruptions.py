import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_preempt.cli.demo.interruptions import Interruption, is_due, plan_interruptions
from tf_preempt.cli.demo.progress import TRAIN, VALIDATE, Position
from tf_preempt.errors import ConfigError

SIZES = {"workers": 2, "epochs": 3, "train_steps": 60, "validation_steps": 30}
ANY_SIZES = st.fixed_dictionaries(
    {
        "workers": st.integers(1, 4),
        "epochs": st.integers(1, 9),
        "train_steps": st.integers(12, 99),
        "validation_steps": st.integers(4, 50),
    }
)
SEEDS = st.integers(0, 2**32 - 1)


@given(SEEDS, ANY_SIZES)
def test_there_is_one_of_each_kind_for_the_right_worker(seed, sizes):
    plan = plan_interruptions(seed=seed, **sizes)
    assert sorted((one.signal.name, one.position.phase, one.worker) for one in plan) == sorted(
        [
            ("SIGTERM", TRAIN, sizes["workers"] - 1),
            ("SIGTERM", VALIDATE, 0),
            ("SIGKILL", TRAIN, sizes["workers"] - 1),
        ]
    )


@given(SEEDS, ANY_SIZES)
def test_each_point_is_later_than_the_one_before(seed, sizes):
    first, second, third = (one.position for one in plan_interruptions(seed=seed, **sizes))
    assert first < second < third


@given(SEEDS, ANY_SIZES)
def test_points_lie_inside_their_phases_away_from_the_end(seed, sizes):
    for one in plan_interruptions(seed=seed, **sizes):
        epoch, phase, step = one.position
        assert 0 <= epoch < sizes["epochs"]
        if phase == VALIDATE:
            assert 0 <= step < sizes["validation_steps"] / 4
            assert epoch < sizes["epochs"] - 1 or sizes["epochs"] == 1
        elif one.signal == signal.SIGKILL:
            assert sizes["train_steps"] // 3 < step < sizes["train_steps"] * 2 / 3
        else:
            assert 0 < step < sizes["train_steps"] / 3


def test_same_seed_gives_the_same_points_and_others_give_others():
    plans = [plan_interruptions(seed=seed, **SIZES) for seed in range(20)]
    assert plans == [plan_interruptions(seed=seed, **SIZES) for seed in range(20)]
    assert len(set(plans)) > 15
    assert len({tuple(one.signal for one in plan) for plan in plans}) > 1, "always in the same order"


@pytest.mark.parametrize(
    ("name", "value"), [("workers", 0), ("epochs", 0), ("train_steps", 11), ("validation_steps", 3)]
)
def test_too_little_room_is_an_error_that_says_where(name, value):
    with pytest.raises(ConfigError, match=f"{name}={value} "):
        plan_interruptions(seed=1, **(SIZES | {name: value}))


@pytest.mark.parametrize(
    ("done", "due"),
    [
        (Position(1, VALIDATE, 3), False),
        (Position(1, VALIDATE, 4), True),
        (Position(1, VALIDATE, 9), True),
        (Position(0, VALIDATE, 9), False),
        (Position(1, TRAIN, 59), False),
        (Position(2, TRAIN, 0), False),
        (Position(2, VALIDATE, 0), True),
    ],
)
def test_signal_is_due_at_its_point_or_later_in_the_same_phase(done, due):
    planned = Interruption(signal=signal.SIGTERM, worker=0, position=Position(1, VALIDATE, 4))
    assert is_due(planned, done) is due


def test_sigkill_gives_no_notice():
    given_notice = {
        signum: Interruption(signal=signum, worker=0, position=Position(0, TRAIN, 1)).gives_notice
        for signum in (signal.SIGTERM, signal.SIGKILL)
    }
    assert given_notice == {signal.SIGTERM: True, signal.SIGKILL: False}
