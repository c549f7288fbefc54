"""Trains a small network on handwritten digits; start it any way you like, stop it whenever you like.

    . .venv/bin/activate
    python examples/train.py
    tf-preempt launch --workers 2 -- python examples/train.py
    tf-preempt run -- tf-preempt launch --workers 2 -- python examples/train.py

Checkpoints go to runs/digits, or to the directory that is given as an argument; each of the three commands
needs one of its own, as a training with two workers cannot be resumed with one.

Needs scikit-learn for the images, which `make setup` has installed; elsewhere: pip install '.[demo]' in the
checkout.
"""

import argparse

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

import tf_preempt

parser = argparse.ArgumentParser(description="Trains a small network on handwritten digits.")
parser.add_argument("directory", nargs="?", default="runs/digits", help="for checkpoints (%(default)s)")
parser.add_argument("--epochs", type=int, default=5, help="how many (%(default)s)")
parser.add_argument("--seed", type=int, default=1, help="of all random numbers (%(default)s)")
options = parser.parse_args()

keras.utils.set_random_seed(options.seed)  # the same first weights and the same order on all workers
tf.config.experimental.enable_op_determinism()
resolver = tf_preempt.cluster_resolvers.auto()
strategy = tf_preempt.strategies.MultiWorkerMirroredStrategy(resolver)  # before any tensor and any data set

images, labels = load_digits(return_X_y=True)
images = images.reshape(-1, 8, 8, 1).astype("float32") / 16
train = tf.data.Dataset.from_tensor_slices((images[:1500], labels[:1500]))
train = train.shuffle(1500, seed=options.seed).batch(32, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
test = tf.data.Dataset.from_tensor_slices((images[1500:], labels[1500:])).batch(32, drop_remainder=True)

with strategy.scope():
    model = keras.Sequential(
        [
            keras.layers.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])

model.fit(
    train,
    validation_data=test,
    epochs=options.epochs,
    verbose=2 if resolver.task_id in (None, 0) else 0,
    callbacks=[tf_preempt.callbacks.PreemptionCheckpoint(options.directory, save_every="epoch")],
)
