"""Two workers train; an error of its own ends worker 1 in step 6, in fit or in a custom loop."""

import sys

import keras
import tensorflow as tf

import tf_preempt

directory, way = sys.argv[1:]
keras.utils.set_random_seed(1)
resolver = tf_preempt.cluster_resolvers.auto()
strategy = tf_preempt.strategies.MultiWorkerMirroredStrategy(resolver)
dataset = tf.data.Dataset.from_tensors(([1.0], [2.0])).repeat(400).batch(4)


def fail_in_step(step):
    if step == 6 and resolver.task_id == 1:
        raise ValueError("no such column: price")


class Fails(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        fail_in_step(batch + 1)


with strategy.scope():
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")

if way == "fit":
    protect = tf_preempt.callbacks.PreemptionCheckpoint(directory, save_every=2)
    model.fit(dataset, verbose=0, callbacks=[protect, Fails()])
else:
    with strategy.scope():
        total = tf.Variable(0.0)
    checkpoint = tf.train.Checkpoint(total=total)
    handler = tf_preempt.PreemptionCheckpointHandler(resolver, checkpoint, directory, save_every=2)
    iterator = handler.track(iter(strategy.experimental_distribute_dataset(dataset)))

    @tf.function
    def train_step(batch):
        parts = strategy.run(lambda x, y: tf.reduce_sum(x), args=batch)
        return strategy.reduce("SUM", parts, axis=None)

    with handler.watch_preemption_scope():
        for step in handler.steps(100):
            handler.run(train_step, next(iterator))
            fail_in_step(step + 1)
