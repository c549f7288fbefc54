from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tf_preempt.strategies._tf_internals import dataset_graphs, serialize_iterator
from tf_preempt.strategies.sharding import graph_nodes
from tf_preempt.strategies.sharding.graph_arrays import dataset_with_arrays
from tf_preempt.strategies.sharding.graph_seeds import Seeded, repeating, seed_everything, unseeded_nodes

NUMBERS = tf.data.Dataset.range(24)


@pytest.fixture(autouse=True)
def _no_global_seed() -> None:
    """What an earlier test has set for the whole process would be a seed here."""
    tf.random.set_seed(None)


@tf.function
def shuffled_inside(some: tf.Tensor) -> tf.Tensor:
    return tf.random.shuffle(some)


def one() -> tf.data.Dataset:
    return tf.data.Dataset.range(1)


def listed(directory: Path) -> tf.data.Dataset:
    for name in "abcdef":
        (directory / name).write_text(f"{name}\n")
    files = tf.data.Dataset.list_files(str(directory / "*"))
    return files.interleave(tf.data.TextLineDataset).map(
        lambda text: tf.strings.unicode_decode(text, "UTF-8")[0]
    )


CAPTURED = tf.constant([5, 6, 7, 8, 9, 10])

# What orders by chance; how many orders are then new in each iteration, and how many repeat themselves.
BY_CHANCE: dict[str, tuple[Callable[[Path], tf.data.Dataset], int, int]] = {
    "shuffle": (lambda _: NUMBERS.shuffle(24).batch(2), 1, 0),
    "two shuffles": (lambda _: NUMBERS.shuffle(24).cache().shuffle(3), 2, 0),
    "shuffle and repeat": (
        lambda _: NUMBERS.apply(tf.data.experimental.shuffle_and_repeat(24, 2)),
        1,
        0,
    ),
    "files": (listed, 1, 0),
    "random numbers": (lambda _: tf.data.Dataset.random(rerandomize_each_iteration=True).take(6), 1, 0),
    "shuffle in map": (lambda _: one().map(lambda _: tf.random.shuffle(tf.range(24))), 1, 0),
    "two in one map": (
        lambda _: one().map(lambda _: (tf.random.shuffle(tf.range(24)), tf.random.shuffle(tf.range(24)))),
        2,
        0,
    ),
    "shuffle in map of slices": (
        lambda _: tf.data.Dataset.from_tensor_slices([[1, 2, 3, 4, 5, 6, 7]]).map(tf.random.shuffle),
        1,
        0,
    ),
    "shuffle in parallel map": (
        lambda _: NUMBERS.map(lambda x: tf.random.shuffle(tf.range(5)), num_parallel_calls=2),
        1,
        0,
    ),
    "shuffle in flat_map": (
        lambda _: one().flat_map(
            lambda _: tf.data.Dataset.from_tensor_slices(tf.random.shuffle(tf.range(24)))
        ),
        1,
        0,
    ),
    "shuffle of what was captured": (
        lambda _: one().map(lambda x: tf.random.shuffle(CAPTURED) + tf.cast(x, tf.int32)),
        1,
        0,
    ),
    "shuffle of strings": (
        lambda _: one().map(lambda _: tf.strings.to_number(tf.random.shuffle(list("12345678")))),
        1,
        0,
    ),
    "shuffle in a called function": (lambda _: one().map(lambda _: shuffled_inside(tf.range(24))), 0, 1),
    "shuffle of what flat_map builds": (
        lambda _: one().flat_map(lambda _: tf.data.Dataset.range(24).shuffle(24)),
        0,
        1,
    ),
    "filter": (lambda _: NUMBERS.filter(lambda _: tf.random.uniform([]) < 0.5), 0, 1),
}


def seeded(dataset: tf.data.Dataset, seed: int = 77) -> tuple[tf.data.Dataset, Seeded]:
    graph = dataset_graphs.dataset_graph(dataset)
    of_nodes = [(seed, number + 2) for number in range(len(unseeded_nodes(graph)))]
    done = seed_everything(graph, of_nodes, (seed, 1))
    rebuilt = dataset_with_arrays(graph, {}, dataset.element_spec)
    return dataset_graphs.standing_in_for(dataset, rebuilt), done


def elements(dataset: Any) -> list[Any]:
    return [np.asarray(leaf).tolist() for element in dataset for leaf in tf.nest.flatten(element)]


@pytest.mark.parametrize("case", BY_CHANCE)
def test_two_built_alike_give_the_same_in_every_iteration(case: str, tmp_path: Path) -> None:
    make, anew, repeated = BY_CHANCE[case]
    dataset = make(tmp_path)
    (first, done), (second, _) = seeded(dataset), seeded(dataset)
    found = [[elements(built) for _ in range(3)] for built in (first, second)]
    assert found[0] == found[1]
    assert done == Seeded(anew=anew, repeated=repeated)
    assert (found[0][0] == found[0][1]) == bool(repeated)


@pytest.mark.parametrize("case", BY_CHANCE)
def test_what_will_repeat_itself_is_known_before(case: str, tmp_path: Path) -> None:
    make, _, repeated = BY_CHANCE[case]
    graph = dataset_graphs.dataset_graph(make(tmp_path))
    before = graph_nodes.copy_of(graph)
    assert repeating(graph) == repeated
    assert graph == before


def test_arrays_are_not_copied_to_look_at_a_graph() -> None:
    captured = tf.zeros(10_000)
    slices = tf.data.Dataset.from_tensor_slices(np.zeros(10_000))
    graph = dataset_graphs.dataset_graph(slices.map(lambda x: (x, captured, np.zeros(10_000))))
    light = graph_nodes.without_arrays(graph)
    assert graph.ByteSize() > 160_000
    assert light.ByteSize() < 10_000
    assert [node.name for node in light.node] == [node.name for node in graph.node]


def test_a_node_that_two_read_is_listed_once() -> None:
    graph = dataset_graphs.dataset_graph(tf.data.Dataset.zip((NUMBERS, NUMBERS)))
    both = next(node for node in graph.node if node.op == "ZipDataset")
    both.input[1] = both.input[0]
    assert [node.op for node in graph_nodes.dataset_nodes(graph)] == ["ZipDataset", "RangeDataset"]


@pytest.mark.parametrize("case", BY_CHANCE)
def test_other_seeds_give_another_order(case: str, tmp_path: Path) -> None:
    dataset = BY_CHANCE[case][0](tmp_path)
    found = [elements(seeded(dataset, seed)[0]) for seed in (77, 78, 79)]
    assert not found[0] == found[1] == found[2]


@pytest.mark.parametrize("case", [name for name in BY_CHANCE if name not in ("filter", "random numbers")])
def test_nothing_is_lost(case: str, tmp_path: Path) -> None:
    dataset = BY_CHANCE[case][0](tmp_path)
    before, after = (
        np.sort(np.concatenate([np.ravel(x) for x in elements(d)])) for d in (dataset, seeded(dataset)[0])
    )
    np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("case", BY_CHANCE)
def test_spec_cardinality_and_options_are_kept(case: str, tmp_path: Path) -> None:
    options = tf.data.Options()
    options.threading.private_threadpool_size = 3
    dataset = BY_CHANCE[case][0](tmp_path).with_options(options)
    built, _ = seeded(dataset)
    assert built.element_spec == dataset.element_spec
    assert int(built.cardinality()) == int(dataset.cardinality())
    assert built.options() == dataset.options()


def can_be_saved(dataset: tf.data.Dataset) -> bool:
    try:
        serialize_iterator(iter(dataset))
    except tf.errors.FailedPreconditionError:
        return False
    return True


@pytest.mark.parametrize("case", BY_CHANCE)
def test_positions_can_be_saved_where_they_could_before(case: str, tmp_path: Path) -> None:
    dataset = BY_CHANCE[case][0](tmp_path)
    assert can_be_saved(seeded(dataset)[0]) or not can_be_saved(dataset)


def test_two_shuffles_in_one_function_differ() -> None:
    built, _ = seeded(BY_CHANCE["two in one map"][0](Path()))
    first, second = elements(built)
    assert first != second


@pytest.mark.parametrize(
    "make",
    [
        lambda: NUMBERS.shuffle(24, seed=3).batch(2),
        lambda: one().map(lambda _: tf.random.shuffle(tf.range(24), seed=3)),
        lambda: NUMBERS.filter(lambda _: tf.random.uniform([], seed=3) < 0.5),
        lambda: NUMBERS.map(lambda x: tf.random.uniform([], seed=4)),
    ],
)
def test_given_seeds_stay(make: Callable[[], tf.data.Dataset]) -> None:
    dataset = make()
    built, done = seeded(dataset)
    assert done == Seeded(anew=0, repeated=0)
    assert elements(built) == elements(make())


def test_augmentation_is_left_to_chance() -> None:
    _, done = seeded(NUMBERS.map(lambda x: tf.random.uniform([])))
    assert done == Seeded(anew=0, repeated=0)


def test_parallel_steps_are_put_in_order() -> None:
    dataset = NUMBERS.map(lambda x: x, num_parallel_calls=2, deterministic=False)
    graph = dataset_graphs.dataset_graph(dataset)
    graph_nodes.give_in_order(graph)
    found = [node.attr["deterministic"].s for node in graph.node if "deterministic" in node.attr]
    assert found == [b"true"]


def test_python_generator_stays_alive() -> None:
    def numbers() -> Any:
        yield from range(6)

    def build() -> tf.data.Dataset:
        spec = tf.TensorSpec((), tf.int64)
        return seeded(tf.data.Dataset.from_generator(numbers, output_signature=spec).shuffle(6))[0]

    assert sorted(elements(build())) == list(range(6))
