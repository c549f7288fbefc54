"""``interrupted_loop.py DIRECTORY``: all workers of a cluster train until somebody presses Ctrl-C."""

from __future__ import annotations

import sys
import threading

import tensorflow as tf

import tf_preempt

resolver = tf_preempt.cluster_resolvers.auto()
strategy = tf_preempt.strategies.MultiWorkerMirroredStrategy(resolver)
with strategy.scope():
    steps = tf.Variable(0.0)


@tf.function
def step() -> tf.Tensor:
    one = strategy.reduce("MEAN", strategy.run(lambda: tf.constant(1.0)), axis=None)
    return steps.assign_add(one)


handler = tf_preempt.PreemptionCheckpointHandler(
    resolver,
    tf.train.Checkpoint(steps=steps),
    sys.argv[1],
    tf_preempt.TerminationConfig(save_on_interrupt=True),
)
print("begins with", int(steps.numpy()), flush=True)
with handler.watch_preemption_scope():
    for number in handler.steps(20_000):
        handler.run(step)
        if number == 5:
            print("trains", flush=True)
        threading.Event().wait(0.005)
