"""Orders of epochs: permutations, and as random as they should be."""

from __future__ import annotations

import collections
import itertools
import math

import numpy as np
import pytest
import tensorflow as tf

from tf_preempt.data.order import shuffled


@tf.function
def _orders(examples: int, seeds: tf.Tensor, epochs: tf.Tensor) -> tf.Tensor:
    positions = tf.range(tf.constant(examples, tf.int64))
    return tf.map_fn(
        lambda key: shuffled(positions, seed=key[0], epoch=key[1], examples=examples),
        tf.stack([seeds, epochs], axis=1),
    )


def orders(examples: int, *, epochs: range, seed: int = 1) -> np.ndarray:
    keys = tf.constant(list(epochs), tf.int64)
    found: np.ndarray = _orders(examples, tf.fill(tf.shape(keys), tf.constant(seed, tf.int64)), keys).numpy()
    return found


@pytest.mark.parametrize("examples", [1, 2, 3, 7, 100, 257, 65536, 65537, 65538, 131073, 262145])
def test_every_example_has_one_place(examples: int) -> None:
    """TensorFlow's own op gives some twice where the last index is a power of 4 from 65,536 on."""
    for order in orders(examples, epochs=range(3)):
        assert sorted(order.tolist()) == list(range(examples))


@pytest.mark.parametrize("examples", [3, 4, 5])
def test_all_orders_of_few_examples_are_as_frequent(examples: int) -> None:
    """Chi-squared, 5 standard deviations above its mean; fixed seeds, so that it never fails by chance."""
    draws = 2000
    counted = collections.Counter(map(tuple, orders(examples, epochs=range(draws)).tolist()))
    expected = draws / math.factorial(examples)
    chi_squared = sum(
        (counted[order] - expected) ** 2 / expected for order in itertools.permutations(range(examples))
    )
    freedom = math.factorial(examples) - 1
    assert chi_squared < freedom + 5 * math.sqrt(2 * freedom)


def test_epochs_have_nothing_in_common() -> None:
    """A random permutation leaves one example in its place, on the average, with a variance of one."""
    found = orders(1000, epochs=range(200))
    in_common = (found[1:] == found[:-1]).sum(axis=1)
    assert 0.7 < in_common.mean() < 1.3
    assert in_common.var() < 2


@pytest.mark.parametrize("other", [0, 2, 2**32 + 1, 2**40 + 1, 2**63 - 1])
def test_all_of_a_seed_counts(other: int) -> None:
    """A key of 32 bits would be the same for 1 and for 2**32 + 1."""
    assert (orders(1000, epochs=range(1), seed=1) == orders(1000, epochs=range(1), seed=other)).sum() < 20


def test_the_order_is_the_same_in_every_version() -> None:
    """Recorded with TensorFlow 2.21: a resumed run may have a newer one."""
    assert orders(10, epochs=range(2), seed=7).tolist() == RECORDED


RECORDED = [[0, 4, 6, 1, 7, 8, 2, 9, 3, 5], [7, 0, 3, 4, 8, 9, 2, 6, 1, 5]]
