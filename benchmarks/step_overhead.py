"""What protection costs: per step with nothing happening, and from a notice to the commit.

    python benchmarks/step_overhead.py [--rounds 5] [--steps 20000] [--workers 2 4]

First table: microseconds per turn of a loop whose step does nothing, in the same process in turns: a bare
loop, this package's handler (``steps``, and ``run``), TensorFlow's ``PreemptionCheckpointHandler.run``; with
one process and with two workers.  Microseconds per batch of ``fit``: this package's callback and an empty
callback, where the empty one is 0.  All are medians of rounds, after taking off the bare loop's, of the main
thread's time on the processor: nothing of it waits, and other processes disturb it least.

Second table: seconds from a SIGTERM to one worker until the checkpoint is committed, in a loop whose steps
take 20 ms, against the time of a plain ``CheckpointManager.save`` of the same variables in the same process.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

TIMEOUT_S = 600
STEP_S = 0.02
VARIABLES, WIDTH = 20, 250_000  # 20 MB
RESTART = 42
Times = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4], help="of the second table")
    parser.add_argument("--child", nargs=2, metavar=("WHAT", "FILE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        what, file = arguments.child
        CHILDREN[what](pathlib.Path(file), arguments)
        return
    report_steps(arguments)
    report_notices(arguments)


def run_child(what: str, workers: int, arguments: argparse.Namespace, *, status: int = 0) -> Any:
    """Runs a part of this program in processes of its own; what its first worker found."""
    with tempfile.TemporaryDirectory() as directory:
        file = pathlib.Path(directory, "found.json")
        rounds = ["--rounds", str(arguments.rounds), "--steps", str(arguments.steps)]
        command = [sys.executable, __file__, "--child", what, str(file), *rounds]
        if workers > 1:
            launch = [sys.executable, "-m", "tf_preempt", "launch", "--workers", str(workers)]
            command = [*launch, "--", *command]
        environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
        ended = subprocess.run(command, env=environ, check=False, timeout=TIMEOUT_S, capture_output=True)
        if ended.returncode != status:
            sys.exit(ended.stdout.decode() + ended.stderr.decode())
        return json.loads(file.read_text("utf-8"))


# ------------------------------------------------------------------------------------------- first table


def report_steps(arguments: argparse.Namespace) -> None:
    print(f"{'per step, nothing happening':<44} {'median':>10} {'range':>20} {'ours / its':>11}")
    for title, what, workers in (
        ("1 process", "steps", 1),
        ("2 workers", "steps", 2),
        ("fit, 1 process", "batches", 1),
    ):
        found: dict[str, list[float]] = run_child(what, workers, arguments)
        ours = next(iter(found.values()))
        for name, times in found.items():
            ratio = statistics.median(ours) / max(statistics.median(times), 1e-3)
            print(
                f"{f'{title}, {name}':<44} {statistics.median(times):>7.2f} us",
                f"{f'{min(times):.2f} to {max(times):.2f} us':>20} {ratio:>11.2f}",
                flush=True,
            )


def measure_steps(file: pathlib.Path, arguments: argparse.Namespace) -> None:
    """Microseconds per step above the bare loop's, by whose it is."""
    import tensorflow as tf

    import tf_preempt

    resolver = tf_preempt.cluster_resolvers.auto()
    worker = resolver.task_id or 0
    strategy = None
    if len(resolver.cluster_spec().as_dict().get("worker", [])) > 1:
        strategy = tf_preempt.strategies.MultiWorkerMirroredStrategy(resolver)
    place = str(file.parent)
    ours = tf_preempt.PreemptionCheckpointHandler(
        resolver, tf.train.Checkpoint(number=tf.Variable(0)), f"{place}/ours", save_every=None, verbose=0
    )
    theirs = tf.distribute.experimental.PreemptionCheckpointHandler(
        resolver, tf.train.Checkpoint(number=tf.Variable(0)), f"{place}/theirs-{worker}"
    )

    def step() -> None:
        pass

    def bare() -> None:
        for _ in range(arguments.steps):
            step()

    def our_steps() -> None:
        for _ in ours.steps(ours.total_run_calls + arguments.steps):
            step()

    def our_run() -> None:
        for _ in range(arguments.steps):
            ours.run(step)

    def their_run() -> None:
        for _ in range(arguments.steps):
            theirs.run(step)

    ways = {"ours, steps": our_steps, "ours, run": our_run, "TensorFlow's, run": their_run}
    found = above(bare, ways, arguments, barrier_of(strategy))
    if worker == 0:
        file.write_text(json.dumps(found), "utf-8")
    del strategy
    leave_at_once()


def measure_batches(file: pathlib.Path, arguments: argparse.Namespace) -> None:
    """Microseconds per batch of `fit` above that with an empty callback."""
    import keras
    import numpy as np
    import tensorflow as tf

    import tf_preempt

    keras.utils.set_random_seed(1)
    tf.config.experimental.enable_op_determinism()
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    count = max(3, arguments.steps // 10)
    rows = np.zeros((1, 1), np.float32)
    data = tf.data.Dataset.from_tensors((rows, rows)).repeat()

    class Clock(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
        """From the end of the first batch to that of the last: without the start, and the last save."""

        begin = end = 0.0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
            self.end = time.thread_time()
            if batch == 0:
                self.begin = self.end

    class Empty(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            pass

    def fit(callback: Any) -> float:
        clock = Clock()
        model.fit(data, steps_per_epoch=count, epochs=1, verbose=0, callbacks=[callback, clock])
        return clock.end - clock.begin

    def ours() -> float:
        with tempfile.TemporaryDirectory() as place:
            return fit(tf_preempt.callbacks.PreemptionCheckpoint(place, save_every=None, verbose=0))

    found = above(lambda: fit(Empty()), {"ours": ours}, arguments, lambda: None, steps=count - 1)
    file.write_text(json.dumps(found), "utf-8")
    leave_at_once()


def above(
    base: Callable[[], float | None],
    ways: Mapping[str, Callable[[], float | None]],
    arguments: argparse.Namespace,
    barrier: Callable[[], None],
    *,
    steps: int | None = None,
) -> dict[str, list[float]]:
    """Microseconds per step of each way above the base's, in each round; they take turns.

    A way may say itself how many seconds it took.
    """
    found: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(-1, arguments.rounds):  # one that does not count
        times = {}
        for name, way in {"": base, **ways}.items():
            barrier()
            gc.collect()
            start = time.thread_time()
            own_s = way()
            times[name] = time.thread_time() - start if own_s is None else own_s
        if turn >= 0:
            for name in ways:
                found[name].append((times[name] - times[""]) / (steps or arguments.steps) * 1e6)
    return found


def barrier_of(strategy: Any) -> Callable[[], None]:
    """Waits until all workers are there, so that none measures while another one starts."""
    if strategy is None:
        return lambda: None
    import tensorflow as tf

    @tf.function
    def meet() -> Any:
        return strategy.reduce("SUM", strategy.run(lambda: tf.constant(1.0)), axis=None)

    return lambda: meet().numpy()


def leave_at_once() -> None:
    """What ran has no end that would be committed; TensorFlow's handler has threads that do not end."""
    sys.stdout.flush()
    os._exit(0)


# ------------------------------------------------------------------------------------------ second table


def report_notices(arguments: argparse.Namespace) -> None:
    print(f"\n{'notice to commit':<18} {'median':>10} {'range':>18} {'plain save':>12} {'limit':>9}")
    for workers in arguments.workers:
        found = [run_child("notice", workers, arguments, status=RESTART) for _ in range(arguments.rounds)]
        taken, plain = [one["taken"] for one in found], [one["plain"] for one in found]
        limit = STEP_S + 1.2 * statistics.median(plain) + 0.2
        print(
            f"{f'{workers} workers':<18} {statistics.median(taken):>8.3f} s",
            f"{f'{min(taken):.3f} to {max(taken):.3f} s':>18}",
            f"{statistics.median(plain):>10.3f} s {limit:>7.3f} s",
            flush=True,
        )


def measure_notice(file: pathlib.Path, arguments: argparse.Namespace) -> None:
    """The last worker gets a SIGTERM in mid-training; the first one says when the commit was there."""
    import tensorflow as tf

    import tf_preempt

    del arguments
    resolver = tf_preempt.cluster_resolvers.auto()
    strategy = tf_preempt.strategies.MultiWorkerMirroredStrategy(resolver)
    workers = len(resolver.cluster_spec().as_dict()["worker"])
    with strategy.scope():
        variables = [tf.Variable(tf.zeros([WIDTH])) for _ in range(VARIABLES)]
    checkpoint = tf.train.Checkpoint(variables=variables)
    plain = plain_save(checkpoint, str(file.parent / f"plain-{resolver.task_id}"))
    barrier = barrier_of(strategy)
    told = file.parent / "told"
    directory = file.parent / "checkpoints"
    handler = tf_preempt.PreemptionCheckpointHandler(
        resolver, checkpoint, str(directory), save_every=None, verbose=0
    )
    if resolver.task_id == 0:
        threading.Thread(target=watch, args=(directory, told, file, plain), daemon=True).start()
    with handler.watch_preemption_scope():
        for number in handler.steps(10_000):
            barrier()
            time.sleep(STEP_S)
            if number == 50 and resolver.task_id == workers - 1:
                told.write_text(str(time.time()), "utf-8")
                os.kill(os.getpid(), signal.SIGTERM)


def plain_save(checkpoint: Any, place: str) -> float:
    """Seconds of a save with TensorFlow's manager alone: the second one, as the first makes its graph."""
    import tensorflow as tf

    manager = tf.train.CheckpointManager(checkpoint, place, max_to_keep=1)
    manager.save()
    start = time.perf_counter()
    manager.save()
    return time.perf_counter() - start


def watch(directory: pathlib.Path, told: pathlib.Path, file: pathlib.Path, plain: float) -> None:
    while not any(directory.glob("*.manifest.json")):
        time.sleep(0.001)
    taken = time.time() - float(told.read_text("utf-8"))
    file.write_text(json.dumps({"taken": taken, "plain": plain}), "utf-8")


CHILDREN: dict[str, Callable[[pathlib.Path, argparse.Namespace], None]] = {
    "steps": measure_steps,
    "batches": measure_batches,
    "notice": measure_notice,
}


if __name__ == "__main__":
    main()
