"""A custom training loop with the handler; told by arguments at which steps a worker is signalled, once each.

Usage: custom_loop.py DIRECTORY RESULT TOTAL [STEP:WORKER:SIGNAL ...]
"""

import json
import logging
import os
import signal
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import tf_preempt

directory, result, total, *signals = sys.argv[1:]
logging.basicConfig(level=logging.INFO)
tf.config.experimental.enable_op_determinism()
keras.utils.set_random_seed(1)

resolver = tf_preempt.cluster_resolvers.auto()
strategy = tf_preempt.strategies.MultiWorkerMirroredStrategy(resolver)
worker = resolver.task_id or 0

generator = np.random.default_rng(0)
features = generator.random((80, 8), dtype="float32")
targets = generator.random((80, 2), dtype="float32")
dataset = (
    tf.data.Dataset.from_tensor_slices((features, targets)).shuffle(40, seed=3).repeat().batch(16).prefetch(8)
)

with strategy.scope():
    weights = tf.Variable(tf.ones((8, 2)))
    optimizer = keras.optimizers.Adam(0.1)
    optimizer.build([weights])
    loss_sum = tf.Variable(  # reading it is a collective, as with metrics in custom loops
        0.0, synchronization=tf.VariableSynchronization.ON_READ, aggregation=tf.VariableAggregation.SUM
    )
    dropout = keras.layers.Dropout(0.5)  # its seeds are in no TensorFlow checkpoint
    seen = tf.Variable(0.0, trainable=False)  # each replica writes its own, as BatchNormalization does


def replica_step(batch):
    with tf.GradientTape() as tape:
        loss = (
            tf.reduce_mean((dropout(batch[0], training=True) @ weights - batch[1]) ** 2)
            / strategy.num_replicas_in_sync
        )
    optimizer.apply([tape.gradient(loss, weights)], [weights])
    loss_sum.assign_add(loss)
    seen.assign(0.9 * seen + tf.reduce_mean(batch[0]))
    return loss


@tf.function
def train_step(batch):
    return strategy.reduce("SUM", strategy.run(replica_step, args=(batch,)), axis=None)


def signal_once(step: int) -> None:
    """Sends this process the signal that the arguments name for this step, in one incarnation only."""
    for item in signals:
        at, whom, name = item.split(":")
        mark = Path(directory).with_suffix(f".{at}")
        if int(at) == step and int(whom) == worker and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.Signals[name])


checkpoint = tf.train.Checkpoint(
    weights=weights, optimizer=optimizer, loss_sum=loss_sum, seen=seen, dropout=dropout
)
manager = tf.train.CheckpointManager(checkpoint, directory, max_to_keep=2)
handler = tf_preempt.PreemptionCheckpointHandler(resolver, manager, save_every=4)
iterator = handler.track(iter(strategy.experimental_distribute_dataset(dataset)))

with handler.watch_preemption_scope(), Path(f"{result}.{worker}.jsonl").open("a", buffering=1) as log:
    for step in handler.steps(int(total)):
        signal_once(step)
        loss = handler.run(train_step, next(iterator))
        (own,) = strategy.experimental_local_results(seen)
        log.write(json.dumps([step, f"{float(loss)!r} {float(own)!r}"]) + "\n")

final_sum = loss_sum.numpy()
if worker == 0:
    np.savez(
        result,
        weights=weights.numpy(),
        loss_sum=final_sum,
        **{f"optimizer_{index}": variable.numpy() for index, variable in enumerate(optimizer.variables)},
    )
