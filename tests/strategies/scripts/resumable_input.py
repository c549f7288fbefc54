"""Reads distributed data sets, saving every position, and goes on from each; writes what came out as JSON.

Usage: resumable_input.py DIRECTORY.  With ``TF_CONFIG`` one of several workers with a replica each, else two
replicas in one process.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_preempt.strategies import MirroredStrategy, MultiWorkerMirroredStrategy, _tf_internals

if os.environ.get("TF_CONFIG"):
    STRATEGY = MultiWorkerMirroredStrategy()
    NAME = f"worker-{STRATEGY.cluster_resolver.task_id}"
else:
    CPU = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(CPU, [tf.config.LogicalDeviceConfiguration()] * 2)
    STRATEGY, NAME = MirroredStrategy(["CPU:0", "CPU:1"]), "replicas"


def distributed(dataset: tf.data.Dataset) -> Any:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return STRATEGY.experimental_distribute_dataset(dataset.with_options(options))


def shuffled(rows: int = 22) -> tf.data.Dataset:
    return tf.data.Dataset.range(rows).shuffle(10, seed=3).map(lambda x: x * 10).batch(4).prefetch(2)


def endless(context: tf.distribute.InputContext) -> tf.data.Dataset:
    """Data sets without end that differ between workers in their seed only."""
    seed = 100 + context.input_pipeline_id
    size = context.get_per_replica_batch_size(4)
    return tf.data.Dataset.range(12).shuffle(12, seed=seed).repeat().batch(size).prefetch(1)


def finite(context: tf.distribute.InputContext) -> tf.data.Dataset:
    rows = tf.data.Dataset.range(11).shard(context.num_input_pipelines, context.input_pipeline_id)
    return rows.shuffle(5, seed=7).batch(context.get_per_replica_batch_size(4))


DATA_SETS: dict[str, Callable[[], Any]] = {
    "even": lambda: distributed(shuffled(24)),
    "uneven tail": lambda: distributed(shuffled(22)),
    "tail for one replica": lambda: distributed(shuffled(9)),
    "odd batches": lambda: distributed(tf.data.Dataset.range(14).shuffle(14, seed=1).batch(3)),
    "nested": lambda: distributed(tf.data.Dataset.range(10).map(lambda x: ({"a": x}, -x)).batch(4)),
    "ragged": lambda: distributed(tf.data.Dataset.range(10).map(tf.range).ragged_batch(4)),
    "without end": lambda: distributed(shuffled(9).repeat()),
    "dropped remainder": lambda: distributed(tf.data.Dataset.range(10).batch(4, drop_remainder=True)),
    "from a function": lambda: STRATEGY.distribute_datasets_from_function(finite),
    "from a function, without end": lambda: STRATEGY.distribute_datasets_from_function(endless),
}
STEPS = 7


def local(batch: Any) -> list[Any]:
    parts = [STRATEGY.experimental_local_results(leaf) for leaf in tf.nest.flatten(batch)]
    return [
        [x.to_list() if isinstance(x, tf.RaggedTensor) else x.numpy().tolist() for x in leaf]
        for leaf in parts
    ]


def read(iterator: Any, steps: int) -> list[Any]:
    """At most so many batches."""
    found = []
    for _ in range(steps):
        try:
            found.append(local(next(iterator)))
        except StopIteration:
            break
    return found


def saved_and_read(iterator: Any) -> tuple[list[Any], list[Any]]:
    states, batches = [], []
    for _ in range(STEPS):
        (owned,) = _tf_internals.owned_iterators(iterator)
        states.append(_tf_internals.serialize_iterator(owned))
        one = read(iterator, 1)
        if not one:
            break
        batches += one
    return states, batches


def gone_on(make: Callable[[], Any], state: Any, steps: int) -> list[Any]:
    iterator = iter(make())
    (owned,) = _tf_internals.owned_iterators(iterator)
    _tf_internals.deserialize_iterator(owned, state)
    return read(iterator, steps)


def case(make: Callable[[], Any]) -> Any:
    states, batches = saved_and_read(iter(make()))
    rest = [gone_on(make, state, STEPS - step) for step, state in enumerate(states)]
    in_graph = in_a_graph(iter(make()), len(batches))
    return {"batches": batches, "rest": rest, "sums in a graph": in_graph}


def in_a_graph(iterator: Any, steps: int) -> list[int]:
    """Sums over all replicas of the first value, in a loop that calls another function."""

    @tf.function
    def total(batch: Any) -> tf.Tensor:
        first = tf.nest.flatten(batch)[0]
        return STRATEGY.reduce("SUM", STRATEGY.run(tf.reduce_sum, args=(first,)), axis=None)

    @tf.function
    def loop(iterator: Any) -> tf.Tensor:
        sums = tf.TensorArray(tf.int64, size=steps)
        for step in tf.range(steps):
            sums = sums.write(step, total(iterator.get_next()))
        return sums.stack()

    return loop(iterator).numpy().tolist()


def main() -> None:
    found = {}
    for name, make in DATA_SETS.items():
        print("case", name, flush=True)
        found[name] = case(make)
    with open(os.path.join(sys.argv[1], f"{NAME}.json"), "w", encoding="utf-8") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()
