"""Step time of training under this package's strategies, against TensorFlow's own, in the same run.

    python benchmarks/strategy_overhead.py [--rounds 5] [--steps 60]

Two workers on this machine train with the multi-worker strategies, in a custom loop and with tf_keras's
``fit`` (Keras 3's does not run on TensorFlow's class); one process with two logical CPUs trains with the
mirrored strategies, in a custom loop and with Keras 3's ``fit``.  Ours and TensorFlow's take turns, each time
in new processes; a ratio is ours by TensorFlow's in one round.  "tail" data end in a smaller batch, which is
weighted by rows under ours; "endless" data have batches of one size.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TIMEOUT_S = 300
ROWS_PER_BATCH = 64
BLOCKS = 3
KINDS = ("workers", "workers, tf_keras", "replicas")
Times = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--child", nargs=3, metavar=("KIND", "WHOSE", "FILE"))
    arguments = parser.parse_args()
    if arguments.child:
        measure(*arguments.child, arguments.steps)
        return
    print(f"{'setting, loop, model, data':<42} {'ours':>9} {'TensorFlow':>12} {'ratio':>7}", flush=True)
    for kind in KINDS:
        rounds = []
        for turn in range(arguments.rounds):
            order = ("ours", "theirs") if turn % 2 == 0 else ("theirs", "ours")
            rounds.append({whose: run_child(kind, whose, arguments.steps) for whose in order})
        report(kind, rounds)


def run_child(kind: str, whose: str, steps: int) -> Times:
    """Milliseconds per step, by case."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "found.json"
        command = [sys.executable, __file__, "--child", kind, whose, str(file), "--steps", str(steps)]
        if kind != "replicas":
            command = [sys.executable, "-m", "tf_preempt", "launch", "--workers", "2", "--", *command]
        environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
        if "tf_keras" in kind:
            environ["TF_USE_LEGACY_KERAS"] = "1"
        ended = subprocess.run(command, env=environ, check=False, timeout=TIMEOUT_S, capture_output=True)
        if ended.returncode:
            sys.exit(ended.stdout.decode() + ended.stderr.decode())
        found: Times = json.loads(file.read_text("utf-8"))
        return found


def report(kind: str, rounds: list[dict[str, Times]]) -> None:
    for case in rounds[0]["ours"]:
        ours, theirs = ([one[whose][case] for one in rounds] for whose in ("ours", "theirs"))
        ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
        print(
            f"{f'{kind}, {case}':<42} {statistics.median(ours):>6.2f} ms",
            f"{statistics.median(theirs):>9.2f} ms {ratio:>7.3f}",
            flush=True,
        )


def measure(kind: str, whose: str, file: str, steps: int) -> None:
    strategy, is_chief = make_strategy(kind, whose)
    loops: dict[str, Callable[..., Callable[[], None]]] = {"custom loop": custom_loop, "fit": fit}
    if kind == "workers":
        del loops["fit"]
    if "tf_keras" in kind:
        del loops["custom loop"]
    found = {}
    for loop, make in loops.items():
        for model in ("small", "medium"):
            for data in ("tail", "endless"):
                count = steps if model == "small" else max(10, steps // 3)
                found[f"{loop}, {model}, {data}"] = time_of(make(strategy, model, data, count)) / count * 1000
    if is_chief:
        Path(file).write_text(json.dumps(found), "utf-8")


def make_strategy(kind: str, whose: str) -> tuple[Any, bool]:
    """A strategy, and whether this process reports."""
    import tensorflow as tf

    import tf_preempt

    module = tf_preempt.strategies if whose == "ours" else tf.distribute
    if kind == "replicas":
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        return module.MirroredStrategy(["CPU:0", "CPU:1"]), True
    resolver = tf_preempt.cluster_resolvers.TFConfigClusterResolver()
    return module.MultiWorkerMirroredStrategy(resolver), resolver.task_id == 0


def time_of(block: Callable[[], None]) -> float:
    """The median of some runs, in seconds, after one that makes the traces."""
    block()
    times = []
    for _ in range(BLOCKS):
        start = time.perf_counter()
        block()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def build(size: str) -> Any:
    import tensorflow as tf

    layers = tf.keras.layers
    if size == "small":
        hidden = [layers.Flatten(), layers.Dense(64, activation="relu")]
    else:
        hidden = [
            layers.Conv2D(16, 3, activation="relu"),
            layers.Conv2D(32, 3, strides=2, activation="relu"),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
        ]
    return tf.keras.Sequential([layers.Input((28, 28, 1)), *hidden, layers.Dense(10)])


def dataset(data: str, steps: int) -> Any:
    """So many batches; the last of "tail" data has 9 rows less."""
    import numpy as np
    import tensorflow as tf

    rng = np.random.default_rng(0)
    rows = steps * ROWS_PER_BATCH - (9 if data == "tail" else 0)
    x = rng.random((rows, 28, 28, 1), dtype=np.float32)
    y = rng.integers(0, 10, rows)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    found = tf.data.Dataset.from_tensor_slices((x, y)).cache()
    if data == "endless":
        found = found.repeat()
    return found.batch(ROWS_PER_BATCH, drop_remainder=data == "endless").prefetch(2).with_options(options)


def custom_loop(strategy: Any, model: str, data: str, steps: int) -> Callable[[], None]:
    import tensorflow as tf

    with strategy.scope():
        net = build(model)
        weights = net.trainable_weights
        rate = tf.constant(0.01)
    distributed = strategy.experimental_distribute_dataset(dataset(data, steps))

    def replica_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            rows = tf.nn.sparse_softmax_cross_entropy_with_logits(y, net(x, training=True))
            loss = tf.nn.compute_average_loss(rows, global_batch_size=ROWS_PER_BATCH)
        gradients = tape.gradient(loss, weights)
        gradients = tf.distribute.get_replica_context().all_reduce("SUM", gradients)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.assign_sub(rate * gradient)
        return loss

    @tf.function
    def step(iterator: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica_step, args=next(iterator)), axis=None)

    def block() -> None:
        iterator = iter(distributed)
        for _ in range(steps):
            loss = step(iterator)
        loss.numpy()

    return block


def fit(strategy: Any, model: str, data: str, steps: int) -> Callable[[], None]:
    import tensorflow as tf

    with strategy.scope():
        net = build(model)
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        net.compile("sgd", loss, metrics=["accuracy"])
    # Distributed once: `fit` would look at the data anew in each block.
    distributed = strategy.experimental_distribute_dataset(dataset(data, steps))
    return lambda: net.fit(distributed, steps_per_epoch=steps, epochs=1, verbose=0)


if __name__ == "__main__":
    main()
