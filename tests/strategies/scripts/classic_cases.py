"""Calls the methods of TensorFlow 1.15's strategies; writes what each gave as JSON.

Usage: classic_cases.py DIRECTORY.  With ``TF_CONFIG`` it is one of several workers (``worker-<index>.json``),
else one process with two replicas on two logical CPUs (``mirrored.json``).
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_preempt.checkpointing import iterator_state
from tf_preempt.strategies import MirroredStrategy, MultiWorkerMirroredStrategy
from tf_preempt.strategies.classic_api import ClassicApiMixin

IN_CLUSTER = "TF_CONFIG" in os.environ


def make_strategy() -> Any:
    if IN_CLUSTER:
        return MultiWorkerMirroredStrategy()
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    return MirroredStrategy(["CPU:0", "CPU:1"])


class Records(logging.Handler):
    """The log lines of this package, with the name of the file that caused them."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[str, str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((record.levelname, record.filename, record.getMessage()))


RECORDS = Records()
STRATEGY = make_strategy()


def batches() -> tf.data.Dataset:
    return tf.data.Dataset.range(16).batch(8)


def local(value: Any) -> list[Any]:
    return [np.asarray(part).tolist() for part in STRATEGY.experimental_local_results(value)]


def error_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def drawn_until_end(draw: Callable[[], Any]) -> list[Any]:
    found = []
    while True:
        try:
            found.append(local(draw()))
        except tf.errors.OutOfRangeError:
            return found


def scaled(x: tf.Tensor, scale: int = 1) -> tf.Tensor:
    if tf.reduce_max(x) > 3:  # of a tensor: inside a tf.function this takes AutoGraph
        return -x * scale
    return x * scale


def run_v2() -> Any:
    iterator = iter(STRATEGY.experimental_distribute_dataset(batches()))
    first = next(iterator)
    old = tf.function(lambda x: STRATEGY.experimental_run_v2(scaled, args=(x,), kwargs={"scale": 2}))
    return {
        "eager": local(STRATEGY.experimental_run_v2(scaled, (first,), {"scale": 2})),
        "function": local(old(first)),
        "without arguments": local(STRATEGY.experimental_run_v2(replica_id)),
        "args of another type": error_of(lambda: STRATEGY.experimental_run_v2(scaled, first)),
    }


def replica_id() -> Any:
    return tf.distribute.get_replica_context().replica_id_in_sync_group


def doubled_with_id(x: tf.Tensor) -> tuple[tf.Tensor, Any]:
    return 2 * x, replica_id()


def run_with_iterator() -> Any:
    iterator = STRATEGY.make_dataset_iterator(batches())
    assert iterator.initialize() == []
    steps = []
    for _ in range(2):
        double, number = STRATEGY.experimental_run(doubled_with_id, iterator)
        steps.append([local(double), local(number)])
    end = error_of(lambda: STRATEGY.experimental_run(doubled_with_id, iterator))
    return {
        "steps": steps,
        "end": end.split(":")[0],
        "no iterator": local(STRATEGY.experimental_run(replica_id)),
    }


def iterator_in_function() -> Any:
    with STRATEGY.scope():
        iterator = STRATEGY.make_dataset_iterator(batches())
    step = tf.function(lambda: STRATEGY.experimental_run(scaled, iterator))
    first = drawn_until_end(step)
    assert iterator.initializer == []
    again = drawn_until_end(step)
    iterator.initialize()
    step()
    iterator.initialize()
    return {"first": first, "again": again, "from the middle": drawn_until_end(iterator.get_next)}


def initialize_in_function() -> Any:
    iterator = STRATEGY.make_dataset_iterator(batches())

    @tf.function
    def first_of_epoch() -> Any:
        iterator.initialize()
        return STRATEGY.experimental_run(scaled, iterator)

    @tf.function
    def first_of(argument: Any) -> Any:
        argument.initialize()
        return STRATEGY.experimental_run(scaled, argument)

    return [local(first_of_epoch()) for _ in range(2)] + [local(first_of(iterator)) for _ in range(2)]


def partial_end() -> Any:
    iterator = STRATEGY.make_dataset_iterator(tf.data.Dataset.range(17).batch(8))
    eager = drawn_until_end(iterator.get_next)
    iterator.initialize()
    return {"eager": eager, "function": drawn_until_end(tf.function(lambda: iterator.get_next()))}


def loops() -> Any:
    iterator = STRATEGY.make_dataset_iterator(batches())

    @tf.function
    def total() -> tf.Tensor:
        found = tf.constant(0, tf.int64)
        for x in iterator:
            found += STRATEGY.reduce("SUM", STRATEGY.run(tf.reduce_sum, (x,)), axis=None)
        return found

    in_function = int(total())
    iterator.initialize()
    in_python = [local(x) for x in iterator]
    iterator.initialize()
    optional = [bool(iterator.get_next_as_optional().has_value()) for _ in range(3)]
    iterator.initialize()
    argument = tf.function(lambda one: one.get_next())
    other = iter(STRATEGY.experimental_distribute_dataset(batches()))
    return {
        "in function": in_function,
        "in python": in_python,
        "optional": optional,
        "as argument": [local(argument(iterator)) for _ in range(2)],
        "traces": argument.experimental_get_tracing_count(),
        "same spec": iterator.element_spec == other.element_spec,
        "is one of TensorFlow's": isinstance(iterator, tf.distribute.DistributedIterator),
    }


def reshuffled() -> Any:
    shuffled = tf.data.Dataset.range(16).shuffle(16, seed=1).batch(8)
    iterator = STRATEGY.make_dataset_iterator(shuffled)
    first = drawn_until_end(iterator.get_next)
    iterator.initialize()
    return [first, drawn_until_end(iterator.get_next)]


def position() -> Any:
    shuffled = tf.data.Dataset.range(32).shuffle(32, seed=1).batch(8)
    one = STRATEGY.make_dataset_iterator(shuffled)
    for _ in range(2):
        one.get_next()
    taken = iterator_state.take_position(one, "x")
    rest = drawn_until_end(one.get_next)
    other = STRATEGY.make_dataset_iterator(shuffled)
    other.get_next()
    assert iterator_state.set_position(other, "x", taken)
    return {"rest": rest, "restored": drawn_until_end(other.get_next)}


def input_fn_iterator() -> Any:
    contexts = []

    def input_fn(context: tf.distribute.InputContext) -> tf.data.Dataset:
        contexts.append(
            [context.num_input_pipelines, context.input_pipeline_id, context.num_replicas_in_sync]
        )
        data = tf.data.Dataset.range(12).shard(context.num_input_pipelines, context.input_pipeline_id)
        return data.batch(context.get_per_replica_batch_size(4))

    iterator = STRATEGY.make_input_fn_iterator(input_fn)
    first = drawn_until_end(iterator.get_next)
    iterator.initialize()
    in_function = drawn_until_end(tf.function(lambda: STRATEGY.experimental_run(scaled, iterator)))
    named = STRATEGY.make_input_fn_iterator(
        input_fn, replication_mode=tf.distribute.InputReplicationMode.PER_WORKER
    )
    old = STRATEGY.experimental_distribute_datasets_from_function(input_fn)
    return {
        "first": first,
        "in function": in_function,
        "named": local(named.get_next()),
        "old name": [local(x) for x in old],
        "contexts": contexts,
    }


def refused() -> Any:
    def scalars() -> Any:
        yield from range(3)

    unknown = tf.data.Dataset.from_generator(scalars, output_types=tf.int32)
    not_divisible = STRATEGY.make_dataset_iterator(unknown)
    per_replica = tf.distribute.InputReplicationMode.PER_REPLICA
    calls: dict[str, Callable[[], Any]] = {
        "not batched": lambda: STRATEGY.make_dataset_iterator(tf.data.Dataset.range(4)),
        "not batched, seen late": not_divisible.get_next,
        "no data set": lambda: STRATEGY.make_dataset_iterator([1, 2]),
        "function for data set": lambda: STRATEGY.make_input_fn_iterator(batches()),
        "function gives none": lambda: STRATEGY.make_input_fn_iterator(lambda context: [1, 2]),
        "per replica": lambda: STRATEGY.make_input_fn_iterator(lambda context: batches(), per_replica),
        "plain iterator": lambda: STRATEGY.experimental_run(scaled, iter(batches())),
        "data set for iterator": lambda: STRATEGY.experimental_run(
            scaled, STRATEGY.experimental_distribute_dataset(batches())
        ),
        "plain iterator in a function": tf.function(
            lambda: STRATEGY.experimental_run(scaled, iter(batches()))
        ),
        "no data set in a function": tf.function(lambda: STRATEGY.make_dataset_iterator([1, 2])),
        "no array in a function": tf.function(lambda: STRATEGY.experimental_make_numpy_dataset(None)),
        "session": lambda: STRATEGY.experimental_make_numpy_dataset(np.ones(3), session="a session"),
        "config": lambda: STRATEGY.update_config_proto({"isolate_session_state": True}),
    }
    found = {name: error_of(call) for name, call in calls.items()}
    with tf.Graph().as_default():
        old = (STRATEGY.make_dataset_iterator, STRATEGY.make_input_fn_iterator)
        for make in (*old, STRATEGY.experimental_make_numpy_dataset):
            found[f"graph: {make.__name__}"] = error_of(lambda make=make: make(None))
    return found


def numpy_arrays() -> Any:
    rows = np.arange(16, dtype=np.float32).reshape(16, 1)
    many = np.ones(10_000, np.float32)
    dataset = STRATEGY.experimental_make_numpy_dataset({"x": rows, "y": (rows[:, 0], rows[:, 0] > 3)})
    iterator = iter(STRATEGY.experimental_distribute_dataset(dataset.batch(8)))
    first = next(iterator)

    @tf.function
    def total() -> tf.Tensor:
        found = tf.constant(0.0)
        for row in STRATEGY.experimental_make_numpy_dataset((many,)):
            found += row[0]
        return found

    return {
        "x": [np.asarray(part).ravel().tolist() for part in STRATEGY.experimental_local_results(first["x"])],
        "more than 3": local(first["y"][1]),
        "sum in function": float(total()),
        "bytes of graph": total.get_concrete_function().graph.as_graph_def().ByteSize(),
    }


def config() -> Any:
    given = tf.compat.v1.ConfigProto(allow_soft_placement=True, device_filters=["/job:ps"])
    before = given.SerializeToString()
    found = STRATEGY.update_config_proto(given)
    return {
        "unchanged": given.SerializeToString() == before and found is not given,
        "kept": found.allow_soft_placement,
        "isolated": found.isolate_session_state,
        "filters": list(found.device_filters),
        "leader": found.experimental.collective_group_leader,
        "collectives": list(found.graph_options.rewrite_options.scoped_allocator_opts.enable_op),
    }


def current_names() -> Any:
    with STRATEGY.scope():
        inside = tf.distribute.get_strategy() is STRATEGY
        variable = tf.Variable(1.0)
    first = next(iter(STRATEGY.experimental_distribute_dataset(batches())))
    return {
        "scope": [
            inside,
            tf.distribute.in_cross_replica_context(),
            isinstance(variable, tf.distribute.DistributedValues),
        ],
        "reduce": [
            int(STRATEGY.reduce("SUM", first, axis=0)),
            np.asarray(STRATEGY.reduce("SUM", first)).tolist(),
        ],
        "local results": type(STRATEGY.experimental_local_results(first)).__name__,
    }


class StockInput(ClassicApiMixin, tf.distribute.MirroredStrategy):
    """On input that TensorFlow copies to its devices ahead of time, as ours is on accelerators."""


def restart_of_prefetching_input() -> Any:
    if IN_CLUSTER:
        return None
    strategy = StockInput(["CPU:0", "CPU:1"])
    iterator = strategy.make_dataset_iterator(batches())
    first = drawn_until_end(iterator.get_next)
    iterator.initialize()
    again = drawn_until_end(iterator.get_next)
    tf.function(lambda: iterator.get_next_as_optional().has_value())()
    return {
        "first": first,
        "again": again,
        "captured": error_of(iterator.initialize),
        "in function": error_of(tf.function(lambda: iterator.initialize())),
    }


CASES = [
    run_v2,
    run_with_iterator,
    iterator_in_function,
    initialize_in_function,
    partial_end,
    loops,
    reshuffled,
    position,
    input_fn_iterator,
    numpy_arrays,
    refused,
    config,
    current_names,
    restart_of_prefetching_input,
]


def main() -> None:
    logging.getLogger("tf_preempt").addHandler(RECORDS)
    found = {case.__name__: case() for case in CASES}
    found["log"] = [line for line in RECORDS.lines if "1.15" in line[2]]
    name = f"worker-{STRATEGY.cluster_resolver.task_id}" if IN_CLUSTER else "mirrored"
    with open(os.path.join(sys.argv[1], f"{name}.json"), "w", encoding="utf-8") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()
