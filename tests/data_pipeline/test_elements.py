"""What elements look like, and what is read for them."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.data_pipeline.sources import Batched, Counted, Pairs
from tf_preempt.data import from_arrays, from_source

Point = collections.namedtuple("Point", ["x", "y"])


@pytest.mark.parametrize(
    ("options", "length", "rows"),
    [
        ({"batch_size": 3}, 3, None),
        ({"batch_size": 3, "drop_remainder": True}, 2, 3),
        ({"batch_size": 4}, 2, 4),
        ({"batch_size": 100}, 1, None),
        ({"batch_size": np.int64(8)}, 1, 8),
    ],
)
@pytest.mark.parametrize(
    "make", [lambda **o: from_source(Counted(8), **o), lambda **o: from_arrays(range(8), **o)]
)
def test_length_and_rows_are_known(make: Any, options: dict[str, Any], length: int, rows: int | None) -> None:
    dataset = make(seed=1, **options)
    assert int(dataset.cardinality()) == length == len(list(dataset))
    assert dataset.element_spec.shape.as_list() == [rows]


def test_items_keep_their_structure_and_dtypes() -> None:
    dataset = from_source(Pairs(3), batch_size=2, shuffle=False)
    assert dataset.element_spec == (
        {"image": tf.TensorSpec([None, 2, 2], tf.float32), "name": tf.TensorSpec([None], tf.string)},
        tf.TensorSpec([None], tf.int32),
    )
    (image, label), _ = list(dataset)
    assert image["name"].numpy().tolist() == [b"n0", b"n1"]
    np.testing.assert_array_equal(image["image"][1], np.full((2, 2), 1, "float32"))
    assert label.numpy().tolist() == [0, 1]


@pytest.mark.parametrize(
    ("item", "dtype", "value"),
    [
        (1.5, tf.float32, 1.5),
        (True, tf.bool, True),
        (np.float64(2), tf.float64, 2.0),
        ([1, 2], tf.int32, [1, 2]),
        (tf.constant([1.0]), tf.float32, [1.0]),
        ("é", tf.string, "é".encode()),
        (b"\x00a\x00", tf.string, b"\x00a\x00"),
        (["a", "bc"], tf.string, [b"a", b"bc"]),
        (np.array(["a", "b"]), tf.string, [b"a", b"b"]),
    ],
)
def test_items_become_what_tensorflow_makes_of_them(item: Any, dtype: tf.DType, value: Any) -> None:
    (batch,) = from_source([item, item], batch_size=2, seed=1)
    assert batch.dtype == dtype
    assert batch.numpy().tolist() == [value, value]


@pytest.mark.parametrize(
    ("arrays", "structure"),
    [
        ((np.arange(4),), tf.TensorSpec([2], tf.int64)),
        (([[1.0]] * 4, range(4)), (tf.TensorSpec([2, 1], tf.float32), tf.TensorSpec([2], tf.int32))),
        (
            ({"b": np.zeros((4, 3)), "a": ["x"] * 4},),
            {"a": tf.TensorSpec([2], tf.string), "b": tf.TensorSpec([2, 3], tf.float64)},
        ),
        ((Point(np.zeros(4), np.ones(4)),), Point(*[tf.TensorSpec([2], tf.float64)] * 2)),
    ],
)
def test_arrays_keep_their_structure(arrays: tuple[Any, ...], structure: Any) -> None:
    assert from_arrays(*arrays, batch_size=2, seed=1).element_spec == structure


def test_rows_that_belong_together_stay_together() -> None:
    x = np.arange(10)
    for batch_x, batch_y, weight in from_arrays(x, -x, sample_weight=x * 0.5, batch_size=3, seed=1):
        np.testing.assert_array_equal(batch_x, -batch_y)
        np.testing.assert_array_equal(batch_x.numpy() * 0.5, weight)


def test_later_changes_of_an_array_are_not_seen() -> None:
    room = np.zeros(1024 + 8)
    x = room[-room.ctypes.data % 64 // 8 :][:1024]
    assert x.ctypes.data % 64 == 0  # else TensorFlow would have to copy it anyway
    dataset = from_arrays(x, batch_size=1024, seed=1)
    x[:] = 1
    assert not next(iter(dataset)).numpy().any()


def test_each_item_is_read_once_when_its_batch_is_asked_for() -> None:
    source = Counted(6)
    dataset = from_source(source, batch_size=2, shuffle=False)
    assert source.read == [0]
    iterator = iter(dataset)
    assert source.read == [0]
    next(iterator)
    assert source.read == [0, 0, 1]
    next(iterator)
    assert source.read == [0, 0, 1, 2, 3]


def test_a_source_that_reads_batches_is_asked_once_per_batch() -> None:
    source = Batched(5)
    batches = [batch.numpy().tolist() for batch in from_source(source, batch_size=2, seed=1)]
    assert source.read == [0]
    assert source.batches == batches


def test_errors_of_the_source_are_not_hidden() -> None:
    class Broken(Counted):
        def item(self, index: int) -> Any:
            if index == 3:
                raise RuntimeError("file 3 is gone")
            return index

    with pytest.raises(tf.errors.OpError, match="file 3 is gone"):
        list(from_source(Broken(5), batch_size=2, seed=1))
