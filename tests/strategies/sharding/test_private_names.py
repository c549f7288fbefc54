"""A private name that is asked for with a default is not missed: where it is gone, tests must say so."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tf_preempt.strategies import _tf_internals
from tf_preempt.strategies._tf_internals import dataset_graphs, datasets, orders

STRATEGIES = Path(_tf_internals.__file__).parents[1]
FILES = [
    *(STRATEGIES / "_tf_internals" / f"{name}.py" for name in ("dataset_graphs", "datasets", "orders")),
    *sorted((STRATEGIES / "sharding").glob("*.py")),
]

NUMBERS = tf.data.Dataset.range(8)
HINT = tf.data.experimental.SHARD_HINT


def in_any_order() -> dict[str, Any]:
    return {"num_parallel_calls": 2, "deterministic": False}


def distributed() -> Any:
    return tf.distribute.MirroredStrategy(["CPU:0"]).experimental_distribute_dataset(NUMBERS.batch(2))


# By name: data sets that must have it, and what it must hold.
SAMPLES: dict[str, tuple[list[Callable[[], Any]], Callable[[Any], bool]]] = {
    "_seed": (
        [
            lambda: NUMBERS.shuffle(8),
            lambda: NUMBERS.apply(tf.data.experimental.shuffle_and_repeat(8)),
            tf.data.Dataset.random,
        ],
        lambda held: isinstance(held, tf.Tensor) and int(held) == 0,
    ),
    "_deterministic": (
        [
            lambda: NUMBERS.map(lambda x: x, **in_any_order()),
            lambda: NUMBERS.batch(2, **in_any_order()),
        ],
        lambda held: held == "false",
    ),
    "_num_parallel_calls": (
        [lambda: NUMBERS.interleave(tf.data.Dataset.from_tensors, **in_any_order())],
        lambda held: held is not None,
    ),
    "_predicate": (
        [lambda: NUMBERS.filter(lambda x: x > 2), lambda: NUMBERS.take_while(lambda x: x < 2)],
        lambda held: held is not None,
    ),
    "_num_shards": (
        [lambda: NUMBERS.shard(HINT, HINT)],
        lambda held: isinstance(held, tf.Tensor) and int(held) == HINT,
    ),
    "_tensors": (
        [
            lambda: tf.data.Dataset.from_tensors([1, 2]),
            lambda: tf.data.Dataset.from_tensor_slices([1, 2]),
        ],
        lambda held: [one.shape for one in held] == [(2,)],
    ),
    "_filenames": (
        [
            lambda: tf.data.TFRecordDataset(["a"]),
            lambda: tf.data.TextLineDataset(["a"]),
            lambda: tf.data.FixedLengthRecordDataset(["a"], 1),
        ],
        lambda held: isinstance(held, tf.data.Dataset),
    ),
    "_reshuffle_each_iteration": ([lambda: NUMBERS.shuffle(8)], lambda held: held is True),
    "_original_dataset": ([distributed], lambda held: isinstance(held, tf.data.Dataset)),
}
SAMPLES["_seed2"] = SAMPLES["_seed"]


@pytest.fixture(autouse=True)
def _no_global_seed() -> None:
    """What an earlier test has set for the whole process would be a seed here."""
    tf.random.set_seed(None)


@pytest.mark.parametrize("name", SAMPLES)
def test_this_tensorflow_has_the_name(name: str) -> None:
    makes, is_expected = SAMPLES[name]
    assert [is_expected(getattr(make(), name)) for make in makes] == [True] * len(makes)


def asked_with_default(path: Path) -> set[str]:
    calls = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call)]
    named = [
        call.args[1]
        for call in calls
        if isinstance(call.func, ast.Name)
        and (call.func.id == "hasattr" or (call.func.id == "getattr" and len(call.args) == 3))
    ]
    return {one.value for one in named if isinstance(one, ast.Constant) and str(one.value).startswith("_")}


def test_every_name_that_is_asked_for_with_a_default_has_samples() -> None:
    assert set().union(*map(asked_with_default, FILES)) == set(SAMPLES)


@pytest.mark.parametrize("path", sorted((STRATEGIES / "sharding").glob("*.py")), ids=lambda path: path.name)
def test_sharding_asks_tensorflow_for_no_private_name(path: Path) -> None:
    assert not asked_with_default(path)


def test_names_are_read_as_they_are_meant() -> None:
    shuffled = NUMBERS.shuffle(8)
    assert orders.has_unseeded_shuffle(shuffled)
    assert orders.is_unordered(NUMBERS.map(lambda x: x, **in_any_order()))
    assert datasets.is_shard_hint(NUMBERS.shard(HINT, HINT))
    assert datasets.reshuffles(shuffled) == [shuffled]
    assert datasets.dataset_file_names(tf.data.TFRecordDataset(["a"])) is not None
    assert datasets.undistributed(distributed()) is not None
    assert len(dataset_graphs.held_arrays(tf.data.Dataset.from_tensors([1, 2]))) == 1
