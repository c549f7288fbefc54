"""Batches per second through this package's resumable iterator, against TensorFlow's distributed one.

    python benchmarks/input_pipeline.py [--rounds 9] [--batches 2000]

Both read the same data set in the same process, in turns, for one and for two replicas (logical CPUs) on one
worker; a step only looks at its batch.  Ratios are TensorFlow's time by ours in one round: more than 1 means
that ours is faster.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

TIMEOUT_S = 600


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--batches", type=int, default=2000)
    parser.add_argument("--replicas", type=int, choices=[1, 2])
    arguments = parser.parse_args()
    if arguments.replicas:
        measure(arguments.replicas, arguments.rounds, arguments.batches)
        return
    print(f"{'replicas':<9} {'source':<10} {'ours':>13} {'TensorFlow':>13} {'ratio':>7}", flush=True)
    options = ["--rounds", str(arguments.rounds), "--batches", str(arguments.batches)]
    for replicas in ("1", "2"):
        subprocess.run(
            [sys.executable, __file__, "--replicas", replicas, *options],
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"},
            check=True,
            timeout=TIMEOUT_S,
        )


def measure(replicas: int, rounds: int, batches: int) -> None:
    import tensorflow as tf

    import tf_preempt

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
    devices = [f"CPU:{index}" for index in range(replicas)]
    ours = tf_preempt.strategies.MirroredStrategy(devices)
    theirs = tf.distribute.MirroredStrategy(devices)
    for name, make in SOURCES.items():
        blocks = [reader(strategy, make(batches), batches) for strategy in (ours, theirs)]
        times = alternate(blocks, rounds)
        per_second = [batches / statistics.median(one) for one in times]
        ratio = statistics.median(b / a for a, b in zip(*times, strict=True))
        print(
            f"{replicas:<9} {name:<10} {per_second[0]:>11.0f}/s {per_second[1]:>11.0f}/s {ratio:>7.3f}",
            flush=True,
        )


def numbers(batches: int) -> Any:
    import tensorflow as tf

    return tf.data.Dataset.range(batches * 32).batch(32, drop_remainder=True).prefetch(2)


def images(batches: int) -> Any:
    import tensorflow as tf

    def image(index: Any) -> Any:
        noise = tf.random.stateless_uniform((32, 32, 3), seed=(1, index))
        return tf.image.random_crop(tf.image.resize(noise, (36, 36)), (32, 32, 3), seed=2), index

    data = tf.data.Dataset.range(batches * 8).map(image, num_parallel_calls=tf.data.AUTOTUNE)
    return data.batch(8).prefetch(tf.data.AUTOTUNE)


def shuffled(batches: int) -> Any:
    import tensorflow as tf

    data = tf.data.Dataset.range(batches * 32 - 5).shuffle(10_000, seed=1).map(lambda x: (x, x * 2))
    return data.batch(32).prefetch(2)


SOURCES: dict[str, Callable[[int], Any]] = {"numbers": numbers, "shuffled": shuffled, "images": images}


def reader(strategy: Any, dataset: Any, batches: int) -> Callable[[], float]:
    """Reads the data set once; seconds from the first batch to the last."""
    import tensorflow as tf

    distributed = strategy.experimental_distribute_dataset(dataset)

    def replica_step(batch: Any) -> Any:
        return tf.reduce_sum(tf.cast(tf.shape(tf.nest.flatten(batch)[0])[0], tf.int64))

    @tf.function
    def step(iterator: Any) -> Any:
        return strategy.run(replica_step, args=(next(iterator),))

    def block() -> float:
        iterator = iter(distributed)
        step(iterator)
        start = time.perf_counter()
        for _ in range(batches - 1):
            step(iterator)
        return time.perf_counter() - start

    return block


def alternate(blocks: list[Callable[[], float]], rounds: int) -> list[list[float]]:
    """Seconds of each block in each round; the first run of each, with its traces, is left out."""
    times: list[list[float]] = [[] for _ in blocks]
    for block in blocks:
        block()
    for turn in range(rounds):
        order = range(len(blocks)) if turn % 2 == 0 else reversed(range(len(blocks)))
        for index in order:
            times[index].append(blocks[index]())
    return times


if __name__ == "__main__":
    main()
