from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tf_preempt.checkpointing.fingerprints import fingerprint

LARGE = 2**19  # elements of 4 bytes: two in each MiB are looked at


@pytest.mark.parametrize(
    ("value", "other"),
    [
        ([0.0], [-0.0]),
        (1.0, 2.0),
        (True, False),
        ("", "a"),
        (["a", "b"], ["a", "c"]),
        (tf.constant([1.0, 2.0], tf.bfloat16), tf.constant([1.0, 2.5], tf.bfloat16)),
        (tf.constant([1, 2], tf.int64), tf.constant([2, 1], tf.int64)),
        (tf.constant([1 + 2j]), tf.constant([1 - 2j])),
        (np.zeros((3, LARGE), "float32"), np.ones((3, LARGE), "float32")),
    ],
)
def test_a_change_is_seen_and_its_undoing(value: Any, other: Any) -> None:
    variable = tf.Variable(value)
    before = fingerprint(variable.read_value())
    assert fingerprint(variable.read_value()) == before
    variable.assign(other)
    assert fingerprint(variable.read_value()) != before
    variable.assign(value)
    assert fingerprint(variable.read_value()) == before


@pytest.mark.parametrize("value", [np.zeros((0, 3)), []])
def test_an_empty_value_has_one(value: Any) -> None:
    assert fingerprint(tf.constant(value)) == 0


def test_of_a_large_variable_about_one_mebibyte_is_looked_at() -> None:
    variable = tf.Variable(tf.zeros((2 * LARGE,)))  # 4 MiB, of which each fourth element counts
    before = fingerprint(variable.read_value())
    variable[1].assign(1.0)
    assert fingerprint(variable.read_value()) == before
    variable[4].assign(1.0)
    assert fingerprint(variable.read_value()) != before


def test_a_nan_is_no_change() -> None:
    variable = tf.Variable(float("nan"))
    assert fingerprint(variable.read_value()) == fingerprint(variable.read_value())


def test_what_has_no_value_has_none() -> None:
    assert fingerprint(None) is None
