from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from tf_preempt import errors
from tf_preempt.strategies.refusals import RefuseTransformations
from tf_preempt.strategies.sharding.batches import check_divisible

NUMBERS = tf.data.Dataset.range(4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NUMBERS, r"hold scalars \(TensorSpec\(shape=\(\)"),
        (lambda: NUMBERS.batch(2).map(lambda x: (x, 1.0)), "hold scalars"),
        (lambda: NUMBERS.window(2), r"hold data sets \(DatasetSpec"),
        (lambda: NUMBERS.map(tf.experimental.Optional.from_value), "hold optional values"),
        (lambda: tf.data.Dataset.from_tensors((np.arange(4), np.zeros((6, 2)))), "different numbers of rows"),
    ],
)
def test_what_is_no_batch_is_refused_with_the_cure(make: Callable[[], tf.data.Dataset], message: str) -> None:
    with pytest.raises(errors.ConfigError, match=f"(?s){message}.*HINT: "):
        check_divisible(make().element_spec)


def test_empty_elements_are_refused() -> None:
    with pytest.raises(errors.ConfigError, match=r"elements are empty \(\(\)\)"):
        check_divisible(())


@pytest.mark.parametrize(
    "make",
    [
        lambda: NUMBERS.batch(2),
        lambda: NUMBERS.batch(2).map(lambda x: (x, None)),
        lambda: NUMBERS.batch(2).map(lambda x: {"a": x, "b": (x, tf.stack([x, x], axis=1))}),
        lambda: NUMBERS.map(tf.range).padded_batch(2),
        lambda: NUMBERS.batch(2).map(lambda x: tf.py_function(lambda y: y, [x], tf.int64)),
        lambda: tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[1], [2, 3]])).batch(2),
        lambda: tf.data.Dataset.from_tensors(tf.sparse.from_dense([[1, 0], [0, 2]])),
        lambda: NUMBERS.batch(2, drop_remainder=True).map(lambda x: (x, x)),
    ],
)
def test_batches_are_let_through(make: Callable[[], tf.data.Dataset]) -> None:
    check_divisible(make().element_spec)


class Distributed(RefuseTransformations):
    """Stands for a distributed data set."""

    cardinality = 3


@pytest.mark.parametrize("name", ["map", "batch", "shuffle", "take", "with_options", "prefetch"])
def test_transformation_after_distribution_is_refused_with_the_cure(name: str) -> None:
    with pytest.raises(
        errors.ConfigError, match=rf"(?s){name}\(\) was called .*HINT: call dataset.{name}\("
    ) as raised:
        getattr(Distributed(), name)
    assert isinstance(raised.value, AttributeError)
    assert not hasattr(Distributed(), name)


def test_what_it_has_is_given() -> None:
    assert Distributed().cardinality == 3


@pytest.mark.parametrize("name", ["no_such", "_inputs", "__len__"])
def test_other_names_are_missing_as_always(name: str) -> None:
    with pytest.raises(AttributeError, match=name) as raised:
        getattr(Distributed(), name)
    assert not isinstance(raised.value, errors.ConfigError)
