import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tf_preempt.cli.demo.comparison import compare, count_costs, count_steps, progress_of_lives
from tf_preempt.cli.demo.progress import TRAIN, VALIDATE, Position, Record
from tf_preempt.errors import LaunchError

RESULT = {
    "weights/00/kernel": np.array([0.0, 1.5], np.float32),
    "optimizer/00/iteration": np.array(180),
    "history/loss": np.array([0.5, np.nan]),
}


def test_copy_is_bit_identical():
    comparison = compare(RESULT, {name: array.copy() for name, array in RESULT.items()})
    assert comparison.bit_identical
    assert [comparison.same(group) for group in ("weights", "optimizer", "history")] == [True] * 3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("weights/00/kernel", np.array([0.0, np.nextafter(np.float32(1.5), np.float32(2))], np.float32)),
        ("weights/00/kernel", np.array([-0.0, 1.5], np.float32)),
        ("weights/00/kernel", np.array([0.0, 1.5], np.float64)),
        ("weights/00/kernel", np.array([[0.0, 1.5]], np.float32)),
        ("optimizer/00/iteration", np.array(181)),
        ("history/loss", np.array([0.5])),
        ("history/val_loss", np.array([0.5])),
    ],
)
def test_smallest_difference_is_found_and_blamed_on_its_group(name, value):
    group = name.partition("/")[0]
    for pair in ((RESULT, RESULT | {name: value}), (RESULT | {name: value}, RESULT)):
        comparison = compare(*pair)
        assert comparison.differing == (name,)
        assert not comparison.bit_identical
        assert [one for one in ("weights", "optimizer", "history") if not comparison.same(one)] == [group]


@given(hnp.arrays(np.float32, 7), st.integers(0, 7 * 32 - 1))
def test_every_flipped_bit_is_found(array, bit):
    flipped = bytearray(array.tobytes())
    flipped[bit // 8] ^= 1 << bit % 8
    other = np.frombuffer(bytes(flipped), np.float32)
    one = RESULT | {"weights/01/bias": array}
    assert compare(one, one | {"weights/01/bias": other}).differing == ("weights/01/bias",)


@pytest.mark.parametrize("group", ["weights", "optimizer", "history"])
def test_result_without_a_group_is_no_success(group):
    poor = {name: array for name, array in RESULT.items() if not name.startswith(group)}
    with pytest.raises(LaunchError, match=f"no {group}"):
        compare(poor, poor)


def record(pid, t, step, phase=TRAIN, epoch=0, worker=0):
    return Record(worker=worker, pid=pid, t=t, position=Position(epoch, phase, step))


def test_a_batch_counts_once_when_several_workers_have_finished_it():
    records = [record(7, 2.0, 0), record(8, 1.0, 0, worker=1), record(8, 3.0, 1, worker=1)]
    assert progress_of_lives(records, {7: 0, 8: 0}) == [
        {Position(0, TRAIN, 0): 1.0, Position(0, TRAIN, 1): 3.0}
    ]


def test_incarnation_without_a_batch_is_there_too():
    assert progress_of_lives([record(9, 1.0, 0)], {7: 0, 8: 1, 9: 2})[:2] == [{}, {}]


def test_record_of_an_unknown_process_is_an_error():
    with pytest.raises(LaunchError, match="process 9"):
        progress_of_lives([record(9, 1.0, 0)], {7: 0})


def life(steps, *, start, phase=TRAIN, epoch=0):
    return {Position(epoch, phase, step): start + number for number, step in enumerate(steps)}


def test_nothing_is_repeated_after_a_notice():
    (cost,) = count_costs([life(range(10), start=0), life(range(10, 20), start=30)], {0: 9.5})
    assert (cost.steps_run, cost.steps_repeated, cost.batches_repeated) == (10, 0, 0)
    assert cost.restart_seconds == 20.5


def test_steps_after_the_last_commit_are_repeated_after_a_kill_and_count_as_lost_time():
    (cost,) = count_costs([life(range(10), start=0), life(range(7, 20), start=30)], {0: 9.5})
    assert cost.steps_repeated == 3
    assert cost.restart_seconds == 33 - 9.5


def test_steps_and_batches_of_validations_are_counted_apart():
    first = life(range(5), start=0) | life(range(3), start=5, phase=VALIDATE)
    second = life([4], start=20) | life(range(1, 6), start=21, phase=VALIDATE)
    (cost,) = count_costs([first, second], {0: 8.0})
    assert (cost.steps_repeated, cost.batches_repeated) == (1, 2)


def test_each_interruption_is_charged_with_its_own_repetitions():
    lives = [life(range(10), start=0), life(range(8, 15), start=30), life(range(11, 20), start=60)]
    costs = count_costs(lives, {0: 9.5, 1: 37.0})
    assert [cost.steps_repeated for cost in costs] == [2, 4]
    assert count_steps(lives) == 20 + 2 + 4


def test_repetitions_are_charged_to_the_last_interruption_before_them():
    """The third life begins further back than the second: its checkpoint was damaged."""
    lives = [life(range(10), start=0), life(range(8, 12), start=30), life(range(6, 20), start=60)]
    assert [cost.steps_repeated for cost in count_costs(lives, {0: 9.5, 1: 34.0})] == [2, 6]


def test_a_life_that_was_never_interrupted_by_us_costs_nothing():
    lives = [life(range(3), start=0), {}, life(range(3, 6), start=50)]
    (cost,) = count_costs(lives, {0: 3.0})
    assert cost.restart_seconds == 47.0


def test_nothing_new_after_an_interruption_is_an_error():
    with pytest.raises(LaunchError, match="incarnation 0"):
        count_costs([life(range(3), start=0), life(range(3), start=9)], {0: 3.0})
