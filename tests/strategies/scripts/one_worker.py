"""One process: trains alone and constructs strategies in the wrong order; writes what came out as JSON.

Usage: one_worker.py FILE.  With ``TF_CONFIG`` it is the only worker of a cluster, else there is none.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_preempt.strategies import (
    MirroredStrategy,
    MultiWorkerMirroredStrategy,
    _tf_internals,
    multi_worker_mirrored,
)


def error_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def other_cluster() -> MultiWorkerMirroredStrategy:
    spec = tf.train.ClusterSpec({"worker": ["127.0.0.1:1", "127.0.0.1:2"]})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, task_type="worker", task_id=1)
    return MultiWorkerMirroredStrategy(resolver)


def fitted(strategy: tf.distribute.Strategy) -> dict[str, Any]:
    import keras

    x = np.arange(24, dtype=np.float32).reshape(12, 2) / 24
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=["mae"])
    history = model.fit(x, x[:, :1], batch_size=4, epochs=2, shuffle=False, verbose=0)
    return {"loss": history.history["loss"], "rows": len(model.predict(x, verbose=0))}


def saveable(strategy: tf.distribute.Strategy) -> str:
    dataset = tf.data.Dataset.range(8).batch(4)
    iterator = iter(strategy.experimental_distribute_dataset(dataset))
    return error_of(lambda: _tf_internals.owned_iterators(iterator))


def in_cluster() -> dict[str, Any]:
    before = multi_worker_mirrored.stock_strategy_suspected()
    stock = tf.distribute.MultiWorkerMirroredStrategy()
    with_stock = multi_worker_mirrored.stock_strategy_suspected()
    ours = MultiWorkerMirroredStrategy()
    return {
        "suspected": [before, with_stock, multi_worker_mirrored.stock_strategy_suspected()],
        "workers": [stock.num_replicas_in_sync, ours.num_replicas_in_sync],
        "fit": fitted(ours),
        "saveable": saveable(ours),
    }


def strategies_in_turn() -> list[list[float]]:
    """Two strategies over the same devices, whose replicas reduce values of different shape."""
    found = []
    for rows in (3, 5):
        strategy = MirroredStrategy(["CPU:0", "CPU:1"])

        def replica_step(rows: int = rows) -> tf.Tensor:
            return tf.distribute.get_replica_context().all_reduce("SUM", tf.ones([rows]))

        reduced = tf.function(strategy.run)(replica_step)
        found.append(strategy.experimental_local_results(reduced)[1].numpy().tolist())
    return found


def two_replicas() -> dict[str, Any]:
    strategy = MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        on_read = tf.Variable(
            0.0, synchronization=tf.VariableSynchronization.ON_READ, aggregation=tf.VariableAggregation.SUM
        )
    for index, part in enumerate(_tf_internals.local_values(on_read)):
        part.assign(index + 1.0)

    return {
        "is sync on read": _tf_internals.is_sync_on_read(on_read),
        "parts": [float(part) for part in _tf_internals.local_values(on_read)],
        "sum": float(on_read.read_value()),
        "saveable": saveable(strategy),
    }


def alone() -> dict[str, Any]:
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    two = two_replicas()
    in_turn = strategies_in_turn()
    after_devices = error_of(other_cluster)
    ours = MultiWorkerMirroredStrategy()
    return {
        "two replicas": two,
        "strategies in turn": in_turn,
        "after devices": after_devices,
        "suspected": multi_worker_mirrored.stock_strategy_suspected(),
        "fit": fitted(ours),
        "fit without strategy": fitted(tf.distribute.get_strategy()),
        "saveable": saveable(ours),
    }


def main() -> None:
    found = in_cluster() if os.environ.get("TF_CONFIG") else alone()
    if "TF_CONFIG" in os.environ:
        found["after another cluster"] = error_of(other_cluster)
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()
