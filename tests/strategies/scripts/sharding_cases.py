"""One of two workers: divides data sets of every source by every policy; writes what came out as JSON.

Usage: sharding_cases.py DIRECTORY
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable
from typing import Any, ClassVar

import keras
import numpy as np
import sharded_sources as sources
import tensorflow as tf

from tf_preempt import strategies
from tf_preempt.strategies import _tf_internals, sharding
from tf_preempt.strategies.sharding.exchange import exchange_texts

(DIRECTORY,) = sys.argv[1:]
RESOLVER = tf.distribute.cluster_resolver.TFConfigClusterResolver()
STRATEGY = strategies.auto(RESOLVER)
ME = RESOLVER.task_id
MINE = os.path.join(DIRECTORY, f"worker-{ME}")
Policy = sources.Policy


class Lines(logging.Handler):
    """Keeps what the package says."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.getMessage()}")

    def take(self) -> list[str]:
        taken, self.lines = self.lines, []
        return taken


LINES = Lines()


def divided(dataset: tf.data.Dataset) -> Any:
    """TensorFlow's own distributed data set of the prepared one: what is tried here is the preparation."""
    prepared = sharding.prepare(STRATEGY, dataset)
    return tf.distribute.Strategy.experimental_distribute_dataset(STRATEGY, prepared)


def elements(distributed: Any) -> list[list[Any]]:
    """This worker's elements; for data sets whose elements have parts, a list for each element."""
    found = []
    for batch in distributed:
        parts = [_rows(part) for part in tf.nest.flatten(batch)]
        found += parts[0] if len(parts) == 1 else [list(row) for row in zip(*parts, strict=True)]
    return found


def _rows(part: Any) -> list[int]:
    values = STRATEGY.experimental_local_results(part)
    return [int(x) for value in values for x in np.ravel(value.numpy())]


def every_source() -> Any:
    found = {}
    for name, make in sources.every_case(MINE):
        LINES.take()
        dataset = make()
        distributed = divided(dataset)
        lines = LINES.take()
        explained = STRATEGY.explain_sharding(dataset)
        found[name] = {
            "epochs": [elements(distributed) for _ in range(2)],
            "lines": lines,
            "policy": explained.policy.name,
            "files": explained.files_per_worker,
            "whole": explained.whole_pipeline_on_each_worker,
            "explaining logs": LINES.take(),
        }
    return found


def error_of(act: Callable[[], Any]) -> str:
    try:
        act()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def refusals() -> Any:
    """Each is tried on both workers, where some have different data."""
    two, one = sources.Sources(MINE, files=2), sources.Sources(MINE, files=1)
    numbers = tf.data.Dataset.range(8)

    def mine(*by_worker: Callable[[], tf.data.Dataset]) -> Callable[[], Any]:
        return lambda: sharding.prepare(STRATEGY, by_worker[ME]())

    def file_policy(make: Callable[[], tf.data.Dataset]) -> Callable[[], tf.data.Dataset]:
        return lambda: sources.with_policy(make(), Policy.FILE)

    few, enough = file_policy(one.tfrecord), file_policy(two.tfrecord)
    batched, off = lambda: numbers.batch(4), lambda: sources.with_policy(numbers.batch(4), Policy.OFF)
    cases = {
        "FILE, few files": mine(few, few),
        "FILE, few files on worker 1": mine(enough, few),
        "FILE, no files": mine(file_policy(batched), file_policy(batched)),
        "other policy": mine(batched, off),
        "other number of files": mine(two.tfrecord, sources.Sources(MINE, files=3).tfrecord),
        "other elements": mine(batched, lambda: numbers.map(float).batch(4)),
        "other batch size": mine(batched, lambda: numbers.batch(2)),
        "other number of batches": mine(batched, lambda: numbers.take(4).batch(4)),
        "other seeds": mine(*(lambda seed=seed: numbers.shuffle(8, seed=seed).batch(4) for seed in (5, 6))),
        "a seed on worker 1": mine(
            *(lambda seed=seed: numbers.shuffle(8, seed=seed).batch(4) for seed in (None, 6))
        ),
        "not batched on worker 1": mine(batched, lambda: numbers),
        "names of files that fail on worker 1": mine(
            two.tfrecord, sources.Sources(MINE, files=2).named_by_what_fails
        ),
    }
    return {name: error_of(act) for name, act in cases.items()} | {"afterwards": elements(divided(batched()))}


def own_data_without_sharding() -> Any:
    """With policy OFF, each worker may have data of its own, of another length."""
    dataset = tf.data.Dataset.range(ME * 100, ME * 100 + 4 + 4 * ME).batch(4)
    return elements(divided(sources.with_policy(dataset, Policy.OFF)))[:4]


def said_once() -> Any:
    """One data set three times, and one like it."""
    LINES.take()
    dataset = tf.data.Dataset.range(7).shuffle(7).batch(4)
    for _ in range(3):
        sharding.prepare(STRATEGY, dataset)
    sharding.prepare(STRATEGY, tf.data.Dataset.range(7).shuffle(7).batch(4))
    return LINES.take()


def orders() -> Any:
    """Orders that must, or must not, be alike."""
    shuffled = tf.data.Dataset.range(24).shuffle(24, reshuffle_each_iteration=False)
    parts = [elements(divided(part.batch(4))) for part in (shuffled.take(8), shuffled.skip(8))]
    again = tf.data.Dataset.range(24).shuffle(24).batch(4)
    return {
        "take and skip of one": parts,
        "epochs of one": [elements(divided(again)) for _ in range(2)],
        "another like it": elements(divided(tf.data.Dataset.range(24).shuffle(24).batch(4))),
    }


def what_cannot_be_seeded() -> Any:
    """A variable that the pipeline uses must not be copied: it may change."""
    found = {}
    for deterministic in (None, False):
        options = tf.data.Options()
        if deterministic is not None:
            options.deterministic = deterministic
        added = tf.Variable(100, dtype=tf.int64)
        dataset = tf.data.Dataset.range(24).shuffle(24).map(sources.adding(added)).batch(4)
        LINES.take()
        distributed = divided(dataset.with_options(options))
        lines = LINES.take()
        added.assign(200)
        found[str(deterministic)] = {"lines": lines, "elements": elements(distributed)}
    return found


def captured_and_resumed() -> Any:
    """Lookup tables work in what was built again, and its iterators can be saved and restored."""
    layer = keras.layers.StringLookup(
        vocabulary=[f"word {number}" for number in range(24)], num_oov_indices=1
    )
    words = tf.constant([f"word {number}" for number in range(24)])
    dataset = tf.data.Dataset.from_tensor_slices(words).shuffle(24).map(layer).batch(4)
    prepared = sharding.prepare(STRATEGY, dataset)
    distributed = _tf_internals.distributed_dataset(STRATEGY, prepared, None, on_host=True)
    iterator = iter(distributed)
    first = elements([next(iterator)])
    (owned,) = _tf_internals.owned_iterators(iterator)
    state = _tf_internals.serialize_iterator(owned)
    rest = elements(iterator)
    other = iter(_tf_internals.distributed_dataset(STRATEGY, prepared, None, on_host=True))
    (owned,) = _tf_internals.owned_iterators(other)
    _tf_internals.deserialize_iterator(owned, state)
    return {
        "first": first,
        "rest": rest,
        "resumed": elements(other),
        "cardinality": [int(prepared.cardinality()), int(dataset.cardinality())],
        "same spec": prepared.element_spec == dataset.element_spec,
        "reshuffles found": len(_tf_internals.reshuffles(_tf_internals.undistributed(distributed))),
    }


class Seen(keras.layers.Layer):
    """Notes the rows that it is given, in training."""

    rows: ClassVar[list[int]] = []

    def call(self, x: Any) -> Any:
        tf.py_function(lambda rows: Seen.rows.extend(int(row) for row in np.ravel(rows)), [x], [])
        return x


def keras_arrays() -> Any:
    """`fit` of arrays, which Keras shuffles without a seed."""
    with STRATEGY.scope():
        model = keras.Sequential([keras.Input((1,)), Seen(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x = np.arange(24.0, dtype=np.float32)[:, None]
    distribute = STRATEGY.experimental_distribute_dataset
    STRATEGY.experimental_distribute_dataset = lambda dataset, options=None: distribute(
        sharding.prepare(STRATEGY, dataset), options
    )
    epochs = []
    LINES.take()
    for _ in range(1):
        model.fit(x, x, batch_size=8, epochs=2, verbose=0)
        epochs += [Seen.rows[-24:-12], Seen.rows[-12:]]
    del STRATEGY.experimental_distribute_dataset
    return {"epochs": epochs, "lines": LINES.take()}


def texts() -> Any:
    return exchange_texts(STRATEGY, f"worker {ME}: größer als 1 \u2713")


CASES: list[Callable[[], Any]] = [
    texts,
    refusals,
    own_data_without_sharding,
    said_once,
    orders,
    what_cannot_be_seeded,
    captured_and_resumed,
    keras_arrays,
    every_source,
]


def main() -> None:
    log = logging.getLogger("tf_preempt")
    log.addHandler(LINES)
    log.setLevel(logging.INFO)
    found = {}
    for case in CASES:
        print("case", case.__name__, flush=True)
        found[case.__name__] = case()
    with open(os.path.join(DIRECTORY, f"{ME}.json"), "w", encoding="utf-8") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()
