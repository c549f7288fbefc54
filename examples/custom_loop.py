"""Trains a small network on handwritten digits in a loop of its own; stop it whenever you like.

    . .venv/bin/activate
    python examples/custom_loop.py
    tf-preempt launch --workers 2 -- python examples/custom_loop.py runs/loop-2
    tf-preempt run -- tf-preempt launch --workers 2 -- python examples/custom_loop.py runs/loop-3

Checkpoints go to runs/loop, or to the directory that is given as an argument; a training with two workers
cannot be resumed with one.  All three print the same losses, up to rounding, though the last batch of an
epoch has one row, which only one of two workers gets.

Needs scikit-learn for the images, which `make setup` has installed; elsewhere: pip install '.[demo]' in the
checkout.
"""

import sys

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

import tf_preempt

ROWS, BATCH, EPOCHS = 1505, 32, 5  # a batch is of all workers together
STEPS = -(-ROWS // BATCH)  # of an epoch
directory = sys.argv[1] if len(sys.argv) > 1 else "runs/loop"

keras.utils.set_random_seed(1)  # the same first weights and the same order on all workers
tf.config.experimental.enable_op_determinism()
resolver = tf_preempt.cluster_resolvers.auto()
strategy = tf_preempt.strategies.MultiWorkerMirroredStrategy(resolver)  # before any tensor and any data set

images, labels = load_digits(return_X_y=True)
train = tf.data.Dataset.from_tensor_slices((images[:ROWS].astype("float32") / 16, labels[:ROWS]))
train = train.shuffle(ROWS, seed=1).batch(BATCH).repeat()
with strategy.scope():
    layers = [keras.layers.Input((64,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
    model, optimizer = keras.Sequential(layers), keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    epoch_loss = tf.Variable(0.0, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)


def on_replica(x, y):
    """Each replica has its part of the batch; the optimizer adds the gradients of all."""
    with tf.GradientTape() as tape:
        losses = keras.losses.sparse_categorical_crossentropy(y, model(x, training=True), from_logits=True)
        loss = tf.nn.compute_average_loss(losses)  # over the rows of all replicas
    optimizer.apply(tape.gradient(loss, model.trainable_variables))
    return loss


@tf.function
def train_step(batch):
    epoch_loss.assign_add(strategy.reduce("SUM", strategy.run(on_replica, args=batch), axis=None))


checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, epoch_loss=epoch_loss)
handler = tf_preempt.PreemptionCheckpointHandler(resolver, checkpoint, directory, save_every=100)
iterator = handler.track(iter(strategy.experimental_distribute_dataset(train)))
with handler.watch_preemption_scope():
    for step in handler.steps(EPOCHS * STEPS):  # those that are left
        handler.run(train_step, next(iterator))
        if (step + 1) % STEPS == 0:
            if not resolver.task_id:  # the first worker
                print(f"epoch {(step + 1) // STEPS}: loss {epoch_loss.numpy() / STEPS:.4f}")
            epoch_loss.assign(0.0)
