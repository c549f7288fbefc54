"""``tensorflows_config.py DIRECTORY``: trains with TensorFlow's TerminationConfig until it is told to leave.

Its `termination_watcher_fn` fails at first; where TOLD_BY is "watcher", it tells of a notice later.
"""

from __future__ import annotations

import os
import pathlib
import sys
import threading

import tensorflow as tf

import tf_preempt

FAILURES = 2
directory = pathlib.Path(sys.argv[1])
steps = tf.Variable(0, dtype=tf.int64)
manager = tf.train.CheckpointManager(tf.train.Checkpoint(steps=steps), str(directory), max_to_keep=2)
asked = 0


def watch() -> bool:
    global asked
    asked += 1
    if asked <= FAILURES:
        raise OSError(f"try {asked} failed")
    return os.environ["TOLD_BY"] == "watcher" and asked > FAILURES + 1


def save() -> str:
    print("save_fn at", int(steps))
    return str(manager.save())


def leave() -> None:
    print("exit_fn after", sorted(path.name for path in directory.glob("*.manifest.json")))
    sys.exit(77)


@tf.function
def step() -> None:
    steps.assign_add(1)


handler = tf_preempt.PreemptionCheckpointHandler(
    None,
    manager,
    termination_config=tf.distribute.experimental.TerminationConfig(
        termination_watcher_fn=watch, exit_fn=leave, save_fn=save
    ),
)
print("begins with", handler.total_run_calls, int(steps))
with handler.watch_preemption_scope():
    for _ in range(20_000):
        handler.run(step)
        threading.Event().wait(0.005)
print("nobody told")
