"""One of two workers: reads distributed data sets; writes what came out as JSON.

Usage: two_workers.py DIRECTORY PHASE.  PHASE ``save`` reads, saves every position and tries everything else;
``restore``, in new processes, goes on from each saved position.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_preempt import strategies
from tf_preempt.strategies import _tf_internals, multi_worker_mirrored

DIRECTORY, PHASE = sys.argv[1:]
COLLECTIVES_BEFORE = _tf_internals.collectives_configured()
RESOLVER = tf.distribute.cluster_resolver.TFConfigClusterResolver()
STRATEGY = strategies.auto(RESOLVER)
ME = RESOLVER.task_id
Policy = tf.data.experimental.AutoShardPolicy


def sharded(dataset: tf.data.Dataset, policy: Policy) -> tf.data.Dataset:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    return dataset.with_options(options)


def record_files(count: int, rows: int) -> list[str]:
    """TFRecord files, named alike on both workers, holding the numbers from 0 on."""
    paths = [os.path.join(DIRECTORY, f"worker-{ME}", f"{count}-{index}.tfrecord") for index in range(count)]
    os.makedirs(os.path.dirname(paths[0]), exist_ok=True)
    for index, path in enumerate(paths):
        with tf.io.TFRecordWriter(path) as writer:
            for row in range(index, rows, count):
                writer.write(str(row).encode())
    return paths


def records(count: int, rows: int = 16) -> tf.data.Dataset:
    return tf.data.TFRecordDataset(record_files(count, rows)).map(lambda x: tf.strings.to_number(x, tf.int64))


def resumable() -> tf.data.Dataset:
    dataset = tf.data.Dataset.range(24).shuffle(10, seed=3).map(lambda x: x * 10).batch(4).prefetch(2)
    return sharded(dataset, Policy.DATA)


def local(value: Any) -> list[Any]:
    return [part.numpy().tolist() for part in STRATEGY.experimental_local_results(value)]


def batches(distributed: Any) -> list[Any]:
    return [[local(leaf) for leaf in tf.nest.flatten(batch)] for batch in distributed]


DATA_SETS: dict[str, Callable[[], tf.data.Dataset]] = {
    "batched": lambda: tf.data.Dataset.range(16).batch(4),
    "uneven tail": lambda: tf.data.Dataset.range(17).batch(4),
    "empty tail on one worker": lambda: tf.data.Dataset.range(9).batch(4),
    "odd batch": lambda: tf.data.Dataset.range(9).batch(3),
    "drop remainder": lambda: tf.data.Dataset.range(18).batch(4, drop_remainder=True),
    "batch under other steps": lambda: tf.data.Dataset.range(16).batch(4).map(lambda x: x + 1).prefetch(1),
    "padded batch": lambda: tf.data.Dataset.range(1, 8).map(tf.range).padded_batch(4),
    "nested": lambda: tf.data.Dataset.range(8).map(lambda x: ({"a": x, "b": -x}, x)).batch(4),
    "unknown cardinality": lambda: tf.data.Dataset.range(16).filter(lambda x: x % 3 > 0).batch(4),
    "policy OFF": lambda: sharded(tf.data.Dataset.range(16).batch(4), Policy.OFF),
    "policy DATA, seeded shuffle": lambda: sharded(
        tf.data.Dataset.range(16).shuffle(16, seed=5).batch(4), Policy.DATA
    ),
    "policy FILE": lambda: sharded(records(4).batch(4), Policy.FILE),
    "files, AUTO": lambda: records(2).batch(4),
    "files, interleaved": lambda: (
        tf.data.Dataset.from_tensor_slices(record_files(2, 16)).interleave(tf.data.TFRecordDataset).batch(4)
    ),
}


def read(distribute: Callable[[tf.data.Dataset], Any], make: Callable[[], tf.data.Dataset]) -> Any:
    distributed = distribute(make())
    return {
        "batches": batches(distributed),
        "cardinality": int(distributed.cardinality),
        "spec": str(distributed.element_spec).replace("CountedPerReplicaSpec", "PerReplicaSpec"),
    }


def compare_data_sets() -> Any:
    def tensorflow_s_own(dataset: tf.data.Dataset) -> Any:
        return tf.distribute.Strategy.experimental_distribute_dataset(STRATEGY, dataset)

    ours = STRATEGY.experimental_distribute_dataset
    return {
        name: {"ours": read(ours, make), "tensorflow": read(tensorflow_s_own, make)}
        for name, make in DATA_SETS.items()
    }


def bad_input() -> Any:
    """Fewer files than workers, twice: what is done about them must not depend on having been warned."""
    both = [batches(STRATEGY.experimental_distribute_dataset(records(1).batch(4))) for _ in range(2)]
    try:
        STRATEGY.experimental_distribute_dataset(tf.data.Dataset.range(8))
    except ValueError as error:
        not_batched = f"{type(error).__name__}: {error}"
    return {"batches": both, "not batched": not_batched}


def explicit_options() -> str:
    per_worker = tf.distribute.InputOptions(experimental_per_replica_buffer_size=2)
    iterator = iter(STRATEGY.experimental_distribute_dataset(resumable(), per_worker))
    try:
        _tf_internals.owned_iterators(iterator)
    except TypeError as error:
        return f"{type(error).__name__}: {error}"
    return "saveable"


def state(iterator: Any) -> list[bytes]:
    (owned,) = _tf_internals.owned_iterators(iterator)
    return [tf.io.serialize_tensor(part).numpy() for part in _tf_internals.serialize_iterator(owned)]


def set_state(iterator: Any, saved: list[bytes]) -> None:
    (owned,) = _tf_internals.owned_iterators(iterator)
    variant = tf.stack([tf.io.parse_tensor(part, tf.variant) for part in saved])
    _tf_internals.deserialize_iterator(owned, variant)


def save_every_position() -> Any:
    """Reads all of a data set, saving before each step and at the end."""
    iterator = iter(STRATEGY.experimental_distribute_dataset(resumable()))
    saved, seen = [[part.hex() for part in state(iterator)]], []
    for batch in iterator:
        seen.append(local(batch))
        saved.append([part.hex() for part in state(iterator)])
    with open(os.path.join(DIRECTORY, f"positions-{ME}.json"), "w", encoding="ascii") as file:
        json.dump(saved, file)
    return seen


def go_on_from_every_position() -> Any:
    """Alternates between an iterator that has just begun and one that is at its end."""
    with open(os.path.join(DIRECTORY, f"positions-{ME}.json"), encoding="ascii") as file:
        saved = json.load(file)
    remaining = []
    for position in saved:
        iterator = iter(STRATEGY.experimental_distribute_dataset(resumable()))
        set_state(iterator, [bytes.fromhex(part) for part in position])
        remaining.append(batches(iterator))
    return remaining


def sum_in_graph() -> int:
    """A loop over the iterator inside tf.function, from a restored position on."""
    iterator = iter(STRATEGY.experimental_distribute_dataset(resumable()))
    at_start = state(iterator)
    next(iterator)
    set_state(iterator, at_start)

    @tf.function
    def total(iterator: Any) -> tf.Tensor:
        found = tf.constant(0, tf.int64)
        for _ in tf.range(6):
            batch = next(iterator)
            found += STRATEGY.reduce("SUM", STRATEGY.run(tf.reduce_sum, args=(batch,)), axis=None)
        return found

    return int(total(iterator))


def variables() -> Any:
    """Worker 1 alone looks at and sets its parts: a collective would wait for worker 0."""
    with STRATEGY.scope():
        on_read = tf.Variable(
            1.0, synchronization=tf.VariableSynchronization.ON_READ, aggregation=tf.VariableAggregation.SUM
        )
        mirrored = tf.Variable(2.0)
    alone = None
    if ME == 1:
        (part,) = _tf_internals.local_values(on_read)
        part.assign(10.0)
        alone = [float(part), float(_tf_internals.local_values(mirrored)[0])]
    return {
        "sync on read": [_tf_internals.is_sync_on_read(x) for x in (on_read, mirrored)],
        "alone": alone,
        "together": float(on_read.read_value()),
    }


def coordination() -> Any:
    _tf_internals.coordination_set(f"test/{ME}", f"from {ME}")
    got = [_tf_internals.coordination_get(f"test/{index}", 20) for index in range(2)]
    again = late = None
    try:
        _tf_internals.coordination_set(f"test/{ME}", "again")
    except tf.errors.AlreadyExistsError as error:
        again = type(error).__name__
    try:
        _tf_internals.coordination_get("test/never", 0)
    except TimeoutError as error:
        late = str(error)
    return {
        "collectives": {"before": COLLECTIVES_BEFORE, "after": _tf_internals.collectives_configured()},
        "got": got,
        "again": again,
        "late": late,
        "stock suspected": multi_worker_mirrored.stock_strategy_suspected(),
        "strategy": type(STRATEGY).__module__,
    }


def more_strategies() -> Any:
    """The chief makes one for itself between two of the cluster; each reduces values of another shape."""
    found = []
    for rows in (3, 5):
        if ME == 0:
            alone = strategies.MirroredStrategy(["CPU:0"])
            found.append(alone.reduce("SUM", tf.ones([rows + 1]), axis=None).numpy().tolist())
        together = strategies.MultiWorkerMirroredStrategy(RESOLVER)
        found.append(together.reduce("SUM", tf.ones([rows]), axis=None).numpy().tolist())
    return found


PHASES: dict[str, list[Callable[[], Any]]] = {
    "save": [
        coordination,
        compare_data_sets,
        bad_input,
        explicit_options,
        save_every_position,
        sum_in_graph,
        variables,
        more_strategies,
    ],
    "restore": [go_on_from_every_position],
}


def main() -> None:
    found = {}
    for case in PHASES[PHASE]:
        print("case", case.__name__, flush=True)
        found[case.__name__] = case()
    with open(os.path.join(DIRECTORY, f"{PHASE}-{ME}.json"), "w", encoding="utf-8") as file:
        json.dump(found, file, default=bytes.decode)


if __name__ == "__main__":
    main()
