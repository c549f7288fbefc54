from __future__ import annotations

import itertools
from typing import Any

import pytest
import tensorflow as tf

from tf_preempt import errors
from tf_preempt.strategies.reduction import part_shapes

SHAPES: list[tuple[int, ...]] = [(), (4,), (0,), (4, 2), (2, 4), (1, 2, 3, 4, 5, 6, 7, 8)]


@pytest.mark.parametrize("shapes", list(itertools.permutations(SHAPES, 2)))
def test_table_brings_shapes_of_all_replicas(shapes: list[tuple[int, ...]]) -> None:
    own = [[tf.TensorShape(one), tf.TensorShape([3])] for one in shapes]
    table = part_shapes.known_rows(own[0], 0, 2) + part_shapes.known_rows(own[1], 1, 2)
    assert [tuple(one) for one in part_shapes.shapes_in(table[:, 0])] == list(shapes)
    assert [tuple(one) for one in part_shapes.shapes_in(table[:, 1])] == [(3,), (3,)]


def test_table_of_a_value_with_more_axes_than_it_holds() -> None:
    rows = part_shapes.known_rows([tf.TensorShape([1] * 7 + [5, 6, 7])], 0, 1)
    (shape,) = part_shapes.shapes_in(rows[:, 0])
    assert shape.as_list() == [1, 1, 1, 1, 1, 1, 1, 5, None, None]


@pytest.mark.parametrize("shape", [*SHAPES, (1,) * 7 + (5, 6, 7)])
def test_graph_fills_the_table_as_its_shapes_do(shape: tuple[int, ...]) -> None:
    in_graph = part_shapes.rows_of([tf.zeros([3]), tf.zeros(shape)], 1, 2).numpy()
    known = part_shapes.known_rows([tf.TensorShape([3]), tf.TensorShape(shape)], 1, 2)
    assert in_graph.dtype == known.dtype
    assert in_graph.tolist() == known.tolist()


def test_replica_number_may_be_a_tensor() -> None:
    rows = part_shapes.rows_of([tf.zeros([2, 3])], tf.constant(1), 2)
    assert rows[:, 0, :3].numpy().tolist() == [[0, 0, 0], [2, 2, 3]]


@pytest.mark.parametrize(
    ("shapes", "axes"),
    [
        ([(2, 3), (2, 3)], None),
        ([(2, 3), (4, 3)], (0,)),
        ([(2, 3), (4, 5)], (0, 1)),
        ([(), ()], None),
        ([(None,), (4,)], None),
        ([None, (4,)], (-1,)),
    ],
)
def test_parts_that_may_be_added_pass(shapes: Any, axes: Any) -> None:
    given = [tf.TensorShape(one) for one in shapes]
    part_shapes.check_ranks("value", given)
    part_shapes.check_sizes("value", given, axes)


@pytest.mark.parametrize(
    ("shapes", "axes", "shown"),
    [
        ([(4,), (2,)], None, r"\(4,\) and \(2,\)\."),
        ([(4, 1), (2, 3)], (0,), r"\(1,\) and \(3,\)\."),
        ([(4, 1), (4, 1), (2, 1)], (1,), r"\(4,\) and \(4,\) and \(2,\)\."),
    ],
)
def test_unequal_sizes_are_shown_with_the_axes_that_are_left(shapes: Any, axes: Any, shown: str) -> None:
    with pytest.raises(
        errors.ConfigError, match=rf"^leaf 3 has parts of different shape(?s:.)*{shown}\nHINT: axis=0"
    ):
        part_shapes.check_sizes("leaf 3", [tf.TensorShape(one) for one in shapes], axes)


@pytest.mark.parametrize(
    ("shapes", "shown"),
    [
        ([(), (2,)], r"\(\) and \(2,\)\."),
        ([(4,), None, (2, 1)], r"\(4,\) and \(unknown\) and \(2, 1\)\."),
    ],
)
def test_unequal_ranks_are_shown(shapes: Any, shown: str) -> None:
    with pytest.raises(errors.ConfigError, match=rf"^leaf 3 has parts with(?s:.)*{shown}\nHINT: "):
        part_shapes.check_ranks("leaf 3", [tf.TensorShape(one) for one in shapes])


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
