"""Data sets that hand out the program's arrays, and what becomes of those."""

from __future__ import annotations

import collections
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.integration import cluster
from tests.strategies.aligned import aligned
from tf_preempt.strategies import MirroredStrategy, copies

SCRIPT = Path(__file__).parent / "scripts" / "kept_arrays.py"
ROWS = aligned(np.arange(96 * 16, dtype=np.float32).reshape(96, 16))
SIGNATURE = tf.TensorSpec((None, 16), tf.float32)

Named = collections.namedtuple("Named", ["x", "y"])


def from_generator() -> tf.data.Dataset:
    return tf.data.Dataset.from_generator(lambda: iter([ROWS[:32], ROWS[32:64]]), output_signature=SIGNATURE)


def single_rows() -> tf.data.Dataset:
    return tf.data.Dataset.from_generator(
        lambda: iter(ROWS), output_signature=tf.TensorSpec((16,), tf.float32)
    )


def numpy_function(index: tf.Tensor, *, stateful: bool = True) -> tf.Tensor:
    def view(index: int) -> np.ndarray:
        return ROWS[index * 32 : index * 32 + 32]

    return tf.ensure_shape(tf.numpy_function(view, [index], tf.float32, stateful=stateful), (None, 16))


def stateless_numpy_function() -> tf.data.Dataset:
    return tf.data.Dataset.range(3).map(lambda index: numpy_function(index, stateful=False))


def in_a_function_of_a_function() -> tf.data.Dataset:
    def inner(index: tf.Tensor) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensors(index).map(
            lambda one: tf.cond(one > 5, lambda: tf.zeros([32, 16]), lambda: numpy_function(one))
        )

    return tf.data.Dataset.range(3).interleave(inner)


def lies_in_rows(dataset: Any) -> bool:
    return np.shares_memory(np.from_dlpack(next(iter(dataset))), ROWS)


@pytest.mark.parametrize(
    "make",
    [
        from_generator,
        lambda: tf.data.Dataset.range(3).map(numpy_function),
        stateless_numpy_function,
        in_a_function_of_a_function,
        lambda: tf.data.Dataset.range(3).map(numpy_function, num_parallel_calls=2).prefetch(1),
    ],
    ids=["from_generator", "numpy_function", "stateless", "nested", "parallel, prefetched"],
)
def test_elements_that_lie_in_the_program_s_arrays_become_copies(make: Callable[[], Any]) -> None:
    dataset = make()
    assert lies_in_rows(dataset)  # else the case shows nothing
    unshared = copies.unshared(dataset)
    assert not lies_in_rows(unshared)
    assert unshared.element_spec == dataset.element_spec
    for found, wanted in zip(unshared, dataset, strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    "make",
    [
        lambda: single_rows().batch(4),
        lambda: single_rows().batch(1),
        lambda: from_generator().batch(1),
        lambda: from_generator().padded_batch(1).prefetch(2),
        lambda: tf.data.Dataset.from_tensor_slices(ROWS.reshape(3, 32, 16)),
        lambda: tf.data.Dataset.from_tensors(ROWS),
        lambda: tf.data.Dataset.from_tensors(tf.constant(ROWS)).map(tf.identity),
        lambda: tf.data.Dataset.range(3).map(
            lambda index: tf.py_function(lambda one: ROWS[int(one) * 32 :], [index], tf.float32)
        ),
    ],
    ids=[
        "batch",
        "batch(1)",
        "batch(1) of batches",
        "padded_batch",
        "slices",
        "tensors",
        "map",
        "py_function",
    ],
)
def test_data_sets_that_copy_by_themselves_stay_as_they_are(make: Callable[[], Any]) -> None:
    dataset = make()
    assert copies.unshared(dataset) is dataset
    assert not lies_in_rows(dataset)


def test_what_is_no_data_set_is_given_back() -> None:
    assert copies.unshared("other") == "other"


def given_by_numpy(values: Callable[[tf.Tensor], Any]) -> tf.data.Dataset:
    """A data set of one element, behind a function of NumPy's."""
    return tf.data.Dataset.range(1).map(
        lambda index: values(tf.ensure_shape(tf.numpy_function(lambda one: one, [index], tf.int64), []))
    )


@pytest.mark.parametrize(
    "values",
    [
        lambda zero: (tf.zeros([2, 3]), tf.ones([2])),
        lambda zero: (tf.zeros([2, 3]),),
        lambda zero: {"b": tf.zeros([2]), "a": (tf.ones([2]), tf.constant(["x", "y"]))},
        lambda zero: Named(tf.zeros([2]), tf.ones([2])),
        lambda zero: (tf.zeros([2]), None),
        lambda zero: tf.ragged.constant([[1, 2], [], [3]]),
        lambda zero: (tf.sparse.from_dense([[0, 1], [2, 0]]), tf.constant([True, False])),
        lambda zero: zero,
        lambda zero: tf.zeros([0, 4]),
        lambda zero: tf.numpy_function(lambda: np.float64(3.0), [], tf.float64),
        lambda zero: (tf.zeros([2]), tf.data.Dataset.range(2)),
    ],
    ids=[
        "tuple",
        "tuple of one",
        "dict",
        "named tuple",
        "None",
        "ragged",
        "sparse",
        "scalar",
        "no rows",
        "unknown rank",
        "data set",
    ],
)
def test_elements_of_any_structure_keep_it(values: Callable[[tf.Tensor], Any]) -> None:
    dataset = given_by_numpy(values)
    unshared = copies.unshared(dataset)
    assert unshared is not dataset
    assert unshared.element_spec == dataset.element_spec
    (found,), (wanted,) = list(unshared), list(dataset)
    tf.nest.assert_same_structure(found, wanted)
    for one, other in zip(tf.nest.flatten(found), tf.nest.flatten(wanted), strict=True):
        assert str(one.numpy() if hasattr(one, "numpy") else type(one)) == str(
            other.numpy() if hasattr(other, "numpy") else type(other)
        )


def test_positions_can_still_be_saved(tmp_path: Path) -> None:
    def begun(steps: int) -> Any:
        iterator = iter(copies.unshared(stateless_numpy_function()))
        for _ in range(steps):
            next(iterator)
        return iterator

    path = tf.train.Checkpoint(iterator=begun(1)).write(str(tmp_path / "position"))
    iterator = begun(0)
    tf.train.Checkpoint(iterator=iterator).read(path)
    np.testing.assert_array_equal(next(iterator), ROWS[32:64])


@pytest.mark.parametrize(
    "distribute",
    [
        lambda strategy: strategy.experimental_distribute_dataset(from_generator()),
        lambda strategy: strategy.distribute_datasets_from_function(lambda _: from_generator()),
        lambda strategy: strategy.distribute_datasets_from_function(
            lambda _: from_generator(),
            tf.distribute.InputOptions(
                experimental_fetch_to_device=False,
                experimental_replication_mode=tf.distribute.InputReplicationMode.PER_REPLICA,
            ),
        ),
    ],
    ids=["data set", "from a function", "from a function, per replica"],
)
def test_every_way_to_distribute_gives_copies(distribute: Callable[[Any], Any]) -> None:
    assert not lies_in_rows(distribute(MirroredStrategy(["CPU:0"])))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    directory = tmp_path_factory.mktemp("kept-arrays")
    for workers in (0, 2):
        cluster.run_workers(SCRIPT, [str(directory)], directory=directory, workers=workers, timeout_s=120)
    return {path.stem: json.loads(path.read_text("utf-8")) for path in directory.glob("*.json")}


@pytest.mark.parametrize("way", ["Batches", "from_generator", "numpy_function"])
@pytest.mark.parametrize("process", ["replicas", "worker-0", "worker-1"])
def test_training_leaves_the_program_s_arrays_alone(found: dict[str, Any], process: str, way: str) -> None:
    assert found[process][way]["changed"] == 0
    assert found[process][way]["losses"] == pytest.approx(found["replicas"]["Batches"]["losses"], rel=1e-5)
