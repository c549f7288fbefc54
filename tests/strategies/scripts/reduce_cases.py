"""Reduces values over two replicas, and writes what came out as JSON.

Usage: reduce_cases.py FILE_STEM.  With ``TF_CONFIG`` it is one of two workers; without, one process with two
logical devices.  Either way replica i has the i-th of the values that are named in a case.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_preempt import strategies

RESOLVER = tf.distribute.cluster_resolver.TFConfigClusterResolver()


def make_strategy() -> tf.distribute.Strategy:
    if RESOLVER.cluster_spec().as_dict():
        return strategies.MultiWorkerMirroredStrategy(RESOLVER)
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    return strategies.MirroredStrategy(["CPU:0", "CPU:1"])


STRATEGY = make_strategy()
REDUCE = STRATEGY.reduce
DYNAMIC = tf.TensorSpec([None], tf.float32)


def on_replicas(*parts: Any) -> Any:
    def own(context: tf.distribute.InputContext) -> Any:
        return parts[context.replica_id_in_sync_group]

    return STRATEGY.experimental_distribute_values_from_function(own)


def value(*values: Any, dtype: Any = tf.float32) -> Any:
    return on_replicas(*(tf.constant(one, dtype) for one in values))


def described(nest: Any) -> Any:
    def describe(leaf: Any) -> Any:
        if isinstance(leaf, tf.IndexedSlices):
            leaf = tf.convert_to_tensor(leaf)
        content = np.asarray(leaf.numpy())
        plain = content.astype(str) if content.dtype.kind == "c" else content.astype(object)
        return [
            leaf.dtype.name,
            plain.tolist() if leaf.dtype != tf.bfloat16 else content.astype(float).tolist(),
        ]

    return tf.nest.map_structure(describe, nest)


def outcome(case: Callable[[], Any]) -> Any:
    try:
        return described(case())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


ROWS = value([0, 1, 2, 3], [4, 5, 6, 7])
LAST = value([0, 1, 2, 3], [4, 5])
NONE_LEFT = value([1, 2], [])
SCALAR = value(1, 3)
MATRIX = value([[1, 2], [3, 4]], [[5, 6]])
CUBE = value([[[1, 2]], [[3, 4]]], [[[5, 6]]])


def sent_to_all(given: Any) -> Any:
    """The sum over replicas, on each of them."""
    return STRATEGY.extended.reduce_to("SUM", given, destinations=given)


def in_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Runs a case's reduction in a tf.function, with shapes as they are."""
    return lambda: tf.function(function)()


def unknown_length(*lengths: int) -> Any:
    """Per-replica values of which the graph that is being built does not know the shape."""
    numbers = value(*([float(length)] * length for length in lengths))
    return STRATEGY.extended.call_for_each_replica(
        lambda part: tf.boolean_mask(part, part > 0), args=(numbers,)
    )


def as_slices(part: tf.Tensor) -> tf.IndexedSlices:
    return tf.IndexedSlices(tf.reshape(part, [1, 1]), tf.constant([0]), tf.constant([2, 1]))


def no_rank() -> Any:
    return STRATEGY.extended.call_for_each_replica(
        lambda part: tf.py_function(lambda x: x, [part], tf.float32), args=(SCALAR,)
    )


def last_batch_in_function() -> Any:
    """Seven rows of a global batch of eight, in a function with the data set's own specification."""
    dataset = tf.data.Dataset.from_tensor_slices(tf.range(7.0)).batch(8)
    distributed = STRATEGY.experimental_distribute_dataset(dataset)

    @tf.function(input_signature=[distributed.element_spec])
    def step(rows: Any) -> Any:
        return REDUCE("SUM", STRATEGY.run(tf.square, args=(rows,)))

    return step(next(iter(distributed)))


with STRATEGY.scope():
    MIRRORED = tf.Variable(3.0)
    MIRRORED_INTS = tf.Variable([3, 4])
    SUMMED = tf.Variable(
        0.0, synchronization=tf.VariableSynchronization.ON_READ, aggregation=tf.VariableAggregation.SUM
    )
    KERAS_VARIABLE = keras.Variable([1.0, 2.0], dtype="float32")
PLAIN = tf.Variable(5.0)
ANY_LENGTH = tf.Variable([1.0, 2.0], shape=[None])


def fill(part: tf.Tensor) -> None:
    SUMMED.assign(part)


STRATEGY.run(tf.function(fill), args=(SCALAR,))

DTYPES = [
    ("bfloat16", [1.5, 2], [3, 4]),
    ("float16", [1.5, 2], [3, 4]),
    ("float32", [1.5, 2], [3, 4]),
    ("float64", [1.5, 2], [3, 4]),
    ("complex64", [1 + 1j, 2 + 0j], [3 + 0j, 4 - 1j]),
    ("complex128", [1 + 1j, 2 + 0j], [3 + 0j, 4 - 1j]),
    ("int8", [-1, 2], [4, 5]),
    ("int16", [-1, 2], [4, 5]),
    ("int32", [-1, 2], [4, 5]),
    ("int64", [-1, 2], [4, 5]),
    ("uint8", [1, 2], [4, 5]),
    ("uint16", [1, 2], [4, 5]),
    ("uint32", [1, 2], [4, 5]),
    ("uint64", [1, 2**63], [4, 5]),
]
NO_NUMBERS = [("bool", [True], [False]), ("string", ["a"], ["b"])]


def dtype_cases() -> dict[str, Callable[[], Any]]:
    cases = {}
    for name, *values in [*DTYPES, *NO_NUMBERS]:
        for op in ("SUM", "MEAN"):
            for axis in (None, 0):

                def case(name: str = name, values: Any = values, op: str = op, axis: Any = axis) -> Any:
                    return REDUCE(op, value(*values, dtype=name), axis=axis)

                cases[f"{op} of {name}, axis={axis}"] = case
                cases[f"{op} of {name}, axis={axis}, in a function"] = in_function(case)
    return cases


def many_axes(*ranks: int) -> list[tf.Tensor]:
    return [tf.ones([1] * rank) for rank in ranks]


def ragged(rows: list[list[float]]) -> tf.RaggedTensor:
    return tf.ragged.constant(rows)


CASES: dict[str, Callable[[], Any]] = {
    "sum": lambda: REDUCE("SUM", ROWS, axis=None),
    "sum, no axis given": lambda: REDUCE("SUM", ROWS),
    "sum, axis 0": lambda: REDUCE("SUM", ROWS, axis=0),
    "sum, axis -1": lambda: REDUCE("SUM", ROWS, axis=-1),
    "sum, op of TensorFlow": lambda: REDUCE(tf.distribute.ReduceOp.SUM, ROWS, axis=0),
    "mean, op in lower case": lambda: REDUCE("mean", ROWS, axis=0),
    "mean": lambda: REDUCE("MEAN", ROWS, axis=None),
    "last batch, sum": lambda: REDUCE("SUM", LAST, axis=0),
    "last batch, mean": lambda: REDUCE("MEAN", LAST, axis=0),
    "last batch, mean of means": lambda: REDUCE(
        "MEAN", STRATEGY.run(tf.function(tf.reduce_mean), args=(LAST,)), axis=None
    ),
    "a replica without rows, sum": lambda: REDUCE("SUM", NONE_LEFT, axis=0),
    "a replica without rows, mean": lambda: REDUCE("MEAN", NONE_LEFT, axis=0),
    "scalar, axis 0": lambda: REDUCE("MEAN", SCALAR, axis=0),
    "scalar, axis (-1,)": lambda: REDUCE("SUM", SCALAR, axis=(-1,)),
    "matrix, axis 0": lambda: REDUCE("MEAN", MATRIX, axis=0),
    "matrix, axes (0, 1)": lambda: REDUCE("MEAN", MATRIX, axis=(0, 1)),
    "matrix, axes [0, -1]": lambda: REDUCE("SUM", MATRIX, axis=[0, -1]),
    "cube, axes (-3, 2)": lambda: REDUCE("MEAN", CUBE, axis=(-3, 2)),
    "no axes": lambda: REDUCE("SUM", SCALAR, axis=()),
    "axis of NumPy": lambda: REDUCE("SUM", ROWS, axis=np.int64(0)),
    "number": lambda: REDUCE("SUM", 2.0),
    "number, mean, axis 0": lambda: REDUCE("MEAN", 2.0, axis=0),
    "zero": lambda: REDUCE("SUM", 0.0),
    "integer number, mean": lambda: REDUCE("MEAN", 2),
    "list of numbers": lambda: REDUCE("SUM", [2.0, 3.0]),
    "list of numbers, axis 0": lambda: REDUCE("MEAN", (2.0, 3.0), axis=0),
    "array": lambda: REDUCE("SUM", np.array([1.0, 2.0], np.float32), axis=0),
    "tensor": lambda: REDUCE("SUM", tf.constant([1.0, 2.0])),
    "tensor, mean": lambda: REDUCE("MEAN", tf.constant([1.0, 2.0])),
    "variable": lambda: REDUCE("SUM", PLAIN),
    "mirrored variable": lambda: REDUCE("SUM", MIRRORED),
    "mirrored variable, mean": lambda: REDUCE("MEAN", MIRRORED),
    "mirrored variable, mean, axis 0": lambda: REDUCE("MEAN", MIRRORED_INTS, axis=0),
    "mirrored variable, mean of integers": lambda: REDUCE("MEAN", MIRRORED_INTS),
    "variable of any length": lambda: REDUCE("SUM", ANY_LENGTH),
    "sync-on-read variable": lambda: REDUCE("SUM", SUMMED),
    "sync-on-read variable, mean": lambda: REDUCE("MEAN", SUMMED),
    "mirrored value": lambda: REDUCE("SUM", sent_to_all(SCALAR)),
    "mirrored value, mean": lambda: REDUCE("MEAN", sent_to_all(SCALAR)),
    "mirrored value again": lambda: REDUCE("SUM", sent_to_all(value(2, 3))),
    "Keras variable": lambda: REDUCE("SUM", KERAS_VARIABLE, axis=0),
    "nest": lambda: REDUCE("SUM", {"a": (ROWS, SCALAR), "b": [MATRIX]}, axis=0),
    "nest, means": lambda: REDUCE("MEAN", (ROWS, {"n": value(1, 4, dtype=tf.int32)})),
    "nest of numbers": lambda: REDUCE("SUM", {"a": 1.0, "b": 2}),
    "empty nest": lambda: REDUCE("SUM", []),
    "slices": lambda: REDUCE(
        "SUM",
        STRATEGY.run(tf.function(as_slices), args=(SCALAR,)),
    ),
    "slices, axis 0": lambda: REDUCE(
        "MEAN",
        STRATEGY.run(tf.function(as_slices), args=(SCALAR,)),
        axis=0,
    ),
    "many of float16, sum too large for float16": lambda: REDUCE(
        "MEAN", value([60000.0] * 4, [60000.0] * 4, dtype=tf.float16), axis=0
    ),
    "more than bfloat16 counts": lambda: REDUCE(
        "MEAN", value([1.0] * 257, [1.0] * 2, dtype=tf.bfloat16), axis=0
    ),
    "uint8, sum too large": lambda: REDUCE("SUM", value([200, 1], [100, 2], dtype=tf.uint8)),
    "uint8, sum too large, in a function": in_function(
        lambda: REDUCE("SUM", value([200, 1], [100, 2], dtype=tf.uint8))
    ),
    "uint8, mean of a sum too large": lambda: REDUCE("MEAN", value([200, 1], [100, 2], dtype=tf.uint8)),
    "int32, sum too small": lambda: REDUCE("SUM", value(-(2**31), -1, dtype=tf.int32)),
    "in a function, sum": in_function(lambda: REDUCE("SUM", ROWS)),
    "in a function, last batch, mean": in_function(lambda: REDUCE("MEAN", LAST, axis=0)),
    "in a function, nest": in_function(lambda: REDUCE("MEAN", {"a": (SCALAR, LAST)}, axis=0)),
    "in a function, unknown lengths, axis 0": in_function(
        lambda: REDUCE("MEAN", unknown_length(4, 2), axis=0)
    ),
    "in a function, unknown lengths": in_function(lambda: REDUCE("SUM", unknown_length(2, 2))),
    "in a function, unknown rank": in_function(lambda: REDUCE("MEAN", no_rank(), axis=None)),
    "in a function, variable": in_function(lambda: REDUCE("SUM", [MIRRORED, SUMMED, PLAIN])),
    "in a loop": in_function(
        lambda: tf.while_loop(
            lambda i, _: i < 3,
            lambda i, total: (i + 1, total + REDUCE("SUM", unknown_length(2, 2))),
            (0, tf.zeros([2])),
        )[1]
    ),
    "refused: parts": lambda: REDUCE("SUM", LAST),
    "refused: parts, nest": lambda: REDUCE("MEAN", {"a": ROWS, "b": LAST}),
    "refused: parts, other axis": lambda: REDUCE("SUM", value([[1, 2]], [[3, 4, 5]]), axis=0),
    "refused: a scalar and a vector": lambda: REDUCE("SUM", value(1, [2, 3])),
    "refused: a vector and a scalar, axis 0": lambda: REDUCE("MEAN", value([1, 2], 3), axis=0),
    "refused: a scalar and a vector, in a nest": lambda: REDUCE("SUM", (ROWS, value(1, [2, 3])), axis=0),
    "refused: an axis of one worker's part only": lambda: REDUCE("SUM", value([1, 2], [[3, 4]]), axis=1),
    "refused: more axes than the table holds": lambda: REDUCE("SUM", on_replicas(*many_axes(9, 10))),
    "refused: parts, in a function": in_function(lambda: REDUCE("SUM", unknown_length(4, 2))),
    "refused: parts, in a function, nest": in_function(
        lambda: REDUCE("SUM", (SCALAR, unknown_length(2, 2), unknown_length(2, 1)))
    ),
    "refused: parts, in a function, last batch of a data set": last_batch_in_function,
    "after it was refused": lambda: REDUCE("SUM", ROWS),
    "refused: op": lambda: REDUCE("MAX", ROWS),
    "refused: op of another kind": lambda: REDUCE(tf.VariableAggregation.SUM, ROWS),
    "refused: axis": lambda: REDUCE("SUM", ROWS, axis=1),
    "refused: axis of a scalar": lambda: REDUCE("SUM", SCALAR, axis=1),
    "refused: axis twice": lambda: REDUCE("SUM", MATRIX, axis=(0, -2)),
    "refused: axis of another kind": lambda: REDUCE("SUM", ROWS, axis="0"),
    "refused: sparse": lambda: REDUCE("SUM", on_replicas(*[tf.sparse.from_dense([[1.0]])] * 2)),
    "refused: ragged": lambda: REDUCE("SUM", on_replicas(ragged([[1.0]]), ragged([[2.0]]))),
    "refused: None": lambda: REDUCE("SUM", {"a": SCALAR, "b": None}),
    "refused: in a replica": lambda: STRATEGY.run(tf.function(lambda x: REDUCE("SUM", x)), args=(SCALAR,)),
    **dtype_cases(),
}


def collectives(function: Callable[[], Any]) -> int:
    """How many collectives run each time that the function does."""
    graph = tf.function(function).get_concrete_function().graph
    return sum(op.type.startswith("Collective") for op in graph.get_operations())


def counts() -> dict[str, int]:
    return {
        "a scalar, axis 0, as Keras reduces logs": collectives(lambda: REDUCE("MEAN", SCALAR, axis=0)),
        "a known shape": collectives(lambda: REDUCE("SUM", ROWS)),
        "a mean over elements": collectives(lambda: REDUCE("MEAN", LAST, axis=0)),
        "a mirrored variable's mean": collectives(lambda: REDUCE("MEAN", MIRRORED)),
        "an unknown shape": collectives(lambda: REDUCE("SUM", unknown_length(2, 2))),
        "two unknown shapes": collectives(
            lambda: REDUCE("SUM", (unknown_length(2, 2), unknown_length(1, 1), SCALAR))
        ),
    }


def same_as_tensorflow() -> dict[str, bool]:
    """Whether every bit is that of TensorFlow's own reduction, where it has one."""
    rng = np.random.default_rng(3)
    found = {}
    for dtype in (tf.float32, tf.float64, tf.int32, tf.int64):
        distributed = value(*(1000 * rng.normal(size=(2, 50, 3))), dtype=dtype)
        for op in ("SUM", "MEAN"):
            for axis in (None, 0, (0, 1)):
                ours = REDUCE(op, distributed, axis=axis)
                theirs = tf.distribute.Strategy.reduce(STRATEGY, op, distributed, axis=axis)
                same = ours.dtype == theirs.dtype and ours.numpy().tobytes() == theirs.numpy().tobytes()
                found[f"{op} of {dtype.name}, axis={axis}"] = same
    return found


def what_keras_builds_for() -> list[dict[str, str]]:
    """The input's dtypes in every call, the first of which builds the model; the batch divides unevenly."""
    seen = []

    class Model(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, batch: dict[str, Any]) -> Any:
            seen.append({name: keras.backend.standardize_dtype(x.dtype) for name, x in batch.items()})
            return self.dense(keras.ops.cast(batch["image"], "float32"))

    features = {
        "image": np.ones((7, 2), np.uint8),
        "count": np.ones((7, 1), np.int32),
        "name": np.array([["a"]] * 7),
        "size": np.ones((7, 1), np.float32),
    }
    with STRATEGY.scope():
        model = Model()
        model.compile("sgd", "mse")
    dataset = tf.data.Dataset.from_tensor_slices((features, np.ones((7, 1), np.float32))).batch(7)
    model.fit(dataset, verbose=0)
    return seen


def main() -> None:
    results = {}
    for name, case in CASES.items():
        print("case", name, flush=True)
        results[name] = outcome(case)
    found = {
        "results": results,
        "collectives": counts(),
        "same as TensorFlow": same_as_tensorflow(),
        "Keras": what_keras_builds_for(),
    }
    with open(f"{sys.argv[1]}-{RESOLVER.task_id or 0}.json", "w", encoding="utf-8") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()
