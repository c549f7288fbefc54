"""What a resume costs: from the start of the process to the first new step, and to a place in the data.

    python benchmarks/resume.py [--rounds 5] [--steps 10 10000 1000000]

First table: seconds from the start of a process to the end of the first step that was not trained before, for
a program that begins from scratch, and for the same program that goes on in the middle of its second epoch;
with this package, and with Keras's ``BackupAndRestore``, which repeats the epoch up to there.  Each round
runs all of them, in turns.  The ratio is to "from scratch, no callback" in the same round.

Second table: seconds from the making of an iterator to its next batch, after a resume at step N of an epoch.
``dataset.skip(N)`` is what one has without saved positions; ``BackupAndRestore`` trains on the batches before
step N again, of which only their reading is counted here.  What takes long is measured in fewer rounds.
"""

from __future__ import annotations

import argparse
import logging
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

TIMEOUT_S = 900
LONGEST_S = 30  # after which a way to a position is not measured again
STEPS_PER_EPOCH = 400
BATCH, WIDTH = 4, 16
STOPS_AT = (1, 300)  # epoch and batch, from 0
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
STARTS = {
    "from scratch, no callback": ("none", False),
    "from scratch, ours": ("ours", False),
    "resumed, ours": ("ours", True),
    "resumed, BackupAndRestore": ("backup", True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, nargs="+", default=[10, 10_000, 1_000_000])
    parser.add_argument("--train", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--positions", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        train(arguments.train[0], pathlib.Path(arguments.train[1]), arguments.train[2])
    elif arguments.positions:
        measure_positions(arguments.steps, arguments.rounds)
    else:
        measure_starts(arguments.rounds)
        steps = [str(step) for step in arguments.steps]
        run_self("--positions", "--rounds", str(arguments.rounds), "--steps", *steps, capture=False)


def run_self(*words: str, capture: bool = True) -> str:
    done = subprocess.run(
        [sys.executable, __file__, *words],
        env={**os.environ, **QUIET},
        stdout=subprocess.PIPE if capture else None,
        stderr=subprocess.PIPE if capture else None,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    if done.returncode not in (0, 42):
        sys.exit(f"{' '.join(words)}: exit status {done.returncode}\n{done.stderr or ''}")
    return done.stdout or ""


# ------------------------------------------------------------------------------------------- first table


def measure_starts(rounds: int) -> None:
    seconds: dict[str, list[float]] = {name: [] for name in STARTS}
    with tempfile.TemporaryDirectory() as place:
        for turn in range(-1, rounds):  # one that does not count, for files to be in memory
            for name, (callback, resumed) in STARTS.items():
                directory = pathlib.Path(place, f"{turn}-{name}".replace(" ", "-"))
                if resumed:
                    run_self("--train", callback, str(directory), "stop")
                start = time.time()
                said = run_self("--train", callback, str(directory), "resume" if resumed else "begin")
                if turn >= 0:
                    seconds[name].append(float(said.split()[-1]) - start)
    print(f"{'process start to first new step':<34} {'median':>9} {'range':>17} {'ratio':>7}")
    scratch = seconds["from scratch, no callback"]
    for name, times in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(times, scratch, strict=True))
        spread = f"{min(times):.2f} to {max(times):.2f} s"
        print(f"{name:<34} {statistics.median(times):>7.2f} s {spread:>17} {ratio:>7.3f}", flush=True)


def train(callback: str, directory: pathlib.Path, purpose: str) -> None:
    """Trains until `STOPS_AT`, or until the first step that was not trained before; says when that was."""
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(1)
    tf.config.experimental.enable_op_determinism()
    hidden = [keras.layers.Dense(1024, "relu") for _ in range(4)]
    model = keras.Sequential([keras.layers.Input((512,)), *hidden, keras.layers.Dense(10)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    features = tf.random.stateless_normal((STEPS_PER_EPOCH * 16, 512), seed=(1, 2))
    labels = tf.cast(tf.abs(features[:, 0]) * 3, tf.int32) % 10
    data = tf.data.Dataset.from_tensor_slices((features, labels)).shuffle(1000, seed=3).batch(16)

    class Watch(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
        epoch = 0

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
            self.epoch = epoch

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
            is_stop = (self.epoch, batch) == STOPS_AT
            if purpose == "stop" and is_stop and callback == "ours":
                os.kill(os.getpid(), signal.SIGTERM)
            elif purpose == "stop" and is_stop:
                os._exit(42)
            elif purpose == "begin" or (purpose == "resume" and (callback == "ours" or is_stop)):
                print(time.time(), flush=True)
                os._exit(0)

    callbacks: list[Any] = [Watch()]
    if callback == "ours":
        import tf_preempt

        callbacks.append(tf_preempt.callbacks.PreemptionCheckpoint(directory, verbose=0))
    elif callback == "backup":
        callbacks.append(keras.callbacks.BackupAndRestore(str(directory), delete_checkpoint=False))
    model.fit(data, epochs=2, verbose=0, callbacks=callbacks)


# ------------------------------------------------------------------------------------------ second table


def measure_positions(steps: list[int], rounds: int) -> None:
    import tensorflow as tf

    tf.config.experimental.enable_op_determinism()
    for name in ("tensorflow", "tf_preempt"):  # the large positions are what is measured
        logging.getLogger(name).setLevel(logging.ERROR)
    print(f"\n{'seconds to the next batch':<42} " + " ".join(f"{f'step {step}':>14}" for step in steps))
    for name, resume in RESUMES.items():
        found = [resume(step, rounds) for step in steps]
        print(f"{name:<42} " + " ".join(f"{statistics.median(times):>12.4f} s" for times, _ in found))
        sizes = [size for _, size in found if size is not None]
        if sizes:
            print(f"{'    bytes of the saved position':<42} " + " ".join(f"{size:>14}" for size in sizes))
        sys.stdout.flush()


class Rows:
    """Rows of numbers that are made when they are asked for."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, index: int) -> Any:
        import numpy as np

        return np.full((WIDTH,), index, np.float32)


def indexed(batches: int) -> Any:
    import tf_preempt

    return tf_preempt.data.from_source(Rows(batches * BATCH), batch_size=BATCH, seed=1)


def shuffled(buffer: int) -> Callable[[int], Any]:
    import tensorflow as tf

    def make(batches: int) -> Any:
        rows = tf.data.Dataset.range(batches * BATCH).shuffle(buffer, seed=1)
        return rows.map(lambda row: tf.fill([WIDTH], tf.cast(row, tf.float32))).batch(BATCH)

    return make


def take(iterator: Any, batches: int) -> None:
    import tensorflow as tf

    @tf.function
    def loop(iterator: Any) -> None:
        for _ in tf.range(batches):
            next(iterator)

    loop(iterator)


def saved_position(make: Callable[[int], Any], step: int, rounds: int) -> tuple[list[float], int]:
    """Saves after `step` batches with the handler; resumes several times; the size of the position, too."""
    import tensorflow as tf

    import tf_preempt

    data = make(step + 1000)
    iterator = iter(data)
    take(iterator, step)
    with tempfile.TemporaryDirectory() as place:

        def handler() -> Any:
            checkpoint = tf.train.Checkpoint(step=tf.Variable(0))
            return tf_preempt.PreemptionCheckpointHandler(None, checkpoint, place, verbose=0)

        saving = handler()
        saving.track(iterator)
        saving.save()
        saving.close()
        size = sum(path.stat().st_size for path in pathlib.Path(place).glob("*.workers/*"))
        times = []
        for _ in range(rounds):
            resumed = handler()
            start = time.perf_counter()
            next(resumed.track(iter(data)))
            times.append(time.perf_counter() - start)
            resumed.close()
    return times, size


def skipped(step: int) -> None:
    next(iter(shuffled(1000)(step + 1000).skip(step)))


def repeated(step: int) -> None:
    iterator = iter(shuffled(1000)(step + 1000))
    take(iterator, step)
    next(iterator)


def timed(resume: Callable[[int], None]) -> Callable[[int, int], tuple[list[float], None]]:
    def measure(step: int, rounds: int) -> tuple[list[float], None]:
        times: list[float] = []
        while len(times) < rounds and sum(times) < LONGEST_S:
            start = time.perf_counter()
            resume(step)
            times.append(time.perf_counter() - start)
        return times, None

    return measure


RESUMES: dict[str, Callable[[int, int], tuple[list[float], int | None]]] = {
    "from_source": lambda step, rounds: saved_position(indexed, step, rounds),
    "iterator state, shuffle(1000)": lambda step, rounds: saved_position(shuffled(1000), step, rounds),
    "iterator state, shuffle(100000)": lambda step, rounds: saved_position(shuffled(100_000), step, rounds),
    "dataset.skip(N)": timed(skipped),
    "the epoch again (BackupAndRestore)": timed(repeated),
}


if __name__ == "__main__":
    main()
