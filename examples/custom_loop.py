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

import argparse
import math

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

import tf_preempt

BATCH = 32  # rows of all workers together
ROWS = 1505

parser = argparse.ArgumentParser(
    description="Trains a small network on handwritten digits in a loop of its own."
)
parser.add_argument("directory", nargs="?", default="runs/loop", help="for checkpoints (%(default)s)")
parser.add_argument("--epochs", type=int, default=5, help="how many (%(default)s)")
options = parser.parse_args()

keras.utils.set_random_seed(1)  # the same first weights and the same order on all workers
tf.config.experimental.enable_op_determinism()
resolver = tf_preempt.cluster_resolvers.auto()
strategy = tf_preempt.strategies.MultiWorkerMirroredStrategy(resolver)  # before any tensor and any data set

images, labels = load_digits(return_X_y=True)
images = images.reshape(-1, 64).astype("float32") / 16
train = tf.data.Dataset.from_tensor_slices((images[:ROWS], labels[:ROWS]))
train = train.shuffle(ROWS, seed=1).batch(BATCH).repeat()

with strategy.scope():
    model = keras.Sequential(
        [keras.layers.Input((64,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
    )
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    epoch_loss = tf.Variable(0.0, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)


def on_replica(batch):
    """Each replica has its part of the batch; the optimizer adds the gradients of all."""
    x, y = batch
    with tf.GradientTape() as tape:
        losses = keras.losses.sparse_categorical_crossentropy(y, model(x, training=True), from_logits=True)
        loss = tf.nn.compute_average_loss(losses)  # over the rows of all replicas
    variables = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    return loss


@tf.function
def train_step(batch):
    epoch_loss.assign_add(strategy.reduce("SUM", strategy.run(on_replica, args=(batch,)), axis=None))


checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, epoch_loss=epoch_loss)
handler = tf_preempt.PreemptionCheckpointHandler(resolver, checkpoint, options.directory, save_every=100)
iterator = handler.track(iter(strategy.experimental_distribute_dataset(train)))
steps_per_epoch = math.ceil(ROWS / BATCH)

with handler.watch_preemption_scope():
    for step in handler.steps(options.epochs * steps_per_epoch):
        handler.run(train_step, next(iterator))
        epoch, rest = divmod(step + 1, steps_per_epoch)
        if rest == 0:
            if resolver.task_id in (None, 0):
                print(f"epoch {epoch}: loss {epoch_loss.numpy() / steps_per_epoch:.4f}")
            epoch_loss.assign(0.0)
