from __future__ import annotations

import itertools
from typing import Any

import pytest
import tensorflow as tf

from tf_preempt import errors
from tf_preempt.strategies.reduction import part_shapes

KNOWN, UNKNOWN, SCALAR, NO_RANK = (tf.TensorShape(one) for one in ([4], [None], [], None))


@pytest.mark.parametrize(
    ("shapes", "eagerly", "one_process", "expected"),
    [
        ([SCALAR], True, False, False),
        ([SCALAR], False, False, False),
        ([KNOWN], True, False, True),
        ([KNOWN], False, False, False),
        ([UNKNOWN], False, False, True),
        ([NO_RANK], False, False, True),
        ([KNOWN, KNOWN], True, True, False),
        ([KNOWN, KNOWN], False, True, False),
        ([KNOWN, UNKNOWN], False, True, True),
    ],
)
def test_who_has_to_ask(shapes: Any, eagerly: bool, one_process: bool, expected: bool) -> None:
    assert part_shapes.must_ask(shapes, eagerly=eagerly, one_process=one_process) is expected


SHAPES: list[tuple[int, ...]] = [(), (4,), (0,), (4, 2), (2, 4), (1, 2, 3, 4, 5, 6, 7, 8)]


@pytest.mark.parametrize("shapes", list(itertools.permutations(SHAPES, 2)))
def test_table_brings_shapes_of_all_replicas(shapes: list[tuple[int, ...]]) -> None:
    own = [part_shapes.rows_of([tf.zeros(one), tf.zeros([3])], index, 2) for index, one in enumerate(shapes)]
    table = (own[0] + own[1]).numpy()
    assert part_shapes.shapes_in(table[:, 0]) == list(shapes)
    assert part_shapes.shapes_in(table[:, 1]) == [(3,), (3,)]


def test_table_of_a_value_with_more_axes_than_it_holds() -> None:
    rows = part_shapes.rows_of([tf.zeros([1] * 7 + [5, 6, 7])], 0, 1)
    assert rows.shape == (1, 1, 9)
    assert part_shapes.shapes_in(rows[:, 0].numpy()) == [(1, 1, 1, 1, 1, 1, 1, 5)]


def test_replica_number_may_be_a_tensor() -> None:
    rows = part_shapes.rows_of([tf.zeros([2, 3])], tf.constant(1), 2)
    assert rows[:, 0, :3].numpy().tolist() == [[0, 0, 0], [2, 2, 3]]


def test_equal_shapes_pass() -> None:
    part_shapes.check_equal("value", [tf.TensorShape([2, 3]), (2, 3), [2, 3]])


def test_unequal_shapes_are_shown() -> None:
    with pytest.raises(
        errors.ConfigError, match=r"^leaf 3 has parts(?s:.)*\(4,\) and \(2, 1\)\.\nHINT: axis=0"
    ):
        part_shapes.check_equal("leaf 3", [(4,), (2, 1)])


@tf.function
def gated(rows: tf.Tensor) -> tf.Tensor:
    return part_shapes.assert_equal("leaf 3", rows)


@pytest.mark.parametrize("shape", SHAPES)
def test_gate_opens_for_equal_shapes(shape: tuple[int, ...]) -> None:
    rows = [part_shapes.rows_of([tf.zeros(shape)], index, 3) for index in range(3)]
    assert bool(gated(tf.add_n(rows)[:, 0]))


@pytest.mark.parametrize(
    ("shapes", "shown"), [([(4,), (2,)], r"\(4\) and \(2\)"), ([(), (2, 0)], r"\(\) and \(2, 0\)")]
)
def test_gate_shows_unequal_shapes(shapes: list[tuple[int, ...]], shown: str) -> None:
    rows = [part_shapes.rows_of([tf.zeros(one)], index, 2) for index, one in enumerate(shapes)]
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"leaf 3 has(?s:.)*{shown}(?s:.)*HINT: axis=0"):
        gated(tf.add_n(rows)[:, 0])
