from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from tf_preempt.checkpointing.merging import Component, Way, merge_parts
from tf_preempt.checkpointing.worker_part import WorkerPart

FAMILIES = ("metric/", "replica/")


def part(number: int, **tensors: Any) -> WorkerPart:
    named = {name.replace("_", "/"): tf.constant(value) for name, value in tensors.items()}
    return WorkerPart(tensors=named, values={"random": number, "replica_checksums": {"big": 1}})


def component(name: str, way: Way, like: Any = 0.0) -> Component:
    return Component(name=name, variable=tf.Variable(like), way=way)


def merged(parts: list[WorkerPart], worker: int, *components: Component) -> dict[str, Any]:
    found = merge_parts(parts, components, worker=worker, families=FAMILIES)
    return {name: tensor.numpy().tolist() for name, tensor in found.tensors.items()}


PARTS = [part(0, metric_0_0=1.0, metric_0_1=2.0), part(1, metric_0_0=4.0, metric_0_1=9.0)]


@pytest.mark.parametrize(
    ("way", "worker", "values"),
    [
        ("sum", 0, [16.0, 0.0]),
        ("sum", 1, [0.0, 0.0]),
        ("sum", 2, [0.0, 0.0]),
        ("mean", 0, [4.0, 4.0]),
        ("mean", 2, [4.0, 4.0]),
        ("first", 0, [1.0, 1.0]),
        ("first", 1, [1.0, 1.0]),
        ("own", 0, [1.0, 2.0]),
        ("own", 1, [4.0, 9.0]),
        ("own", 2, [1.0, 2.0]),
    ],
)
def test_each_way_gives_the_replicas_of_three_workers_their_values(
    way: Way, worker: int, values: list[float]
) -> None:
    components = [component(f"metric/0/{replica}", way) for replica in range(2)]
    found = merged(PARTS, worker, *components)
    assert found == {"metric/0/0": values[0], "metric/0/1": values[1]}


def test_more_replicas_than_before_begin_again_with_the_first_one_s_own() -> None:
    components = [component(f"metric/0/{replica}", "own") for replica in range(3)]
    found = merged(PARTS, 1, *components)
    assert [found[f"metric/0/{replica}"] for replica in range(3)] == [4.0, 9.0, 4.0]


def test_integers_are_added_as_integers_in_the_order_of_replicas() -> None:
    parts = [part(0, **{f"metric_0_{replica}": replica for replica in range(11)})]
    assert merged(parts, 0, component("metric/0/0", "sum", 0)) == {"metric/0/0": 55}
    assert merged(parts, 0, component("metric/0/0", "first", 0)) == {"metric/0/0": 0}


@pytest.mark.parametrize(
    ("worker", "replica", "expected"),
    [(0, 0, {}), (0, 1, {"replica/0/1": [0.0, 0.0]}), (1, 0, {"replica/0/0": [0.0, 0.0]})],
)
def test_a_share_that_one_replica_had_alone_is_not_added_again(
    worker: int, replica: int, expected: dict[str, Any]
) -> None:
    own = component(f"replica/0/{replica}", "sum", [3.0, 5.0])  # as the checkpoint has restored it
    assert merged([part(0)], worker, own) == expected


def test_other_state_than_a_share_stays_as_the_checkpoint_has_restored_it() -> None:
    assert merged([part(0)], 1, component("replica/0/0", "first", 7.0)) == {}


def test_variables_that_the_program_lacks_are_not_forgotten() -> None:
    assert merged(PARTS, 1) == {"metric/0/0": 1.0}


@pytest.mark.parametrize(("worker", "whose"), [(0, 0), (1, 1), (2, 0), (3, 1)])
def test_what_belongs_to_a_process_is_taken_from_one_that_there_was(worker: int, whose: int) -> None:
    parts = [part(number, callback_a=number) for number in range(2)]
    found = merge_parts(parts, [], worker=worker, families=FAMILIES)
    assert found.values == {"random": whose, "replica_checksums": {}}
    assert {name: int(tensor) for name, tensor in found.tensors.items()} == {"callback/a": whose}


def test_positions_of_iterators_are_left_out_and_numbers_of_epochs_kept() -> None:
    variant = tf.raw_ops.OptionalNone()
    own = WorkerPart(tensors={"train_data/0": variant, "train_data/epochs": tf.constant([[3]])})
    found = merge_parts([own, own], [], worker=2, families=FAMILIES)
    assert list(found.tensors) == ["train_data/epochs"]
