"""What docs/exactness.md has interrupted a hundred times: a little of everything.

The argument is the number of epochs: two workers take more steps between two signals.

tf-preempt drill --kills 100 --seed 1 -- python tests/exactness/often_interrupted.py 20
tf-preempt drill --workers 2 --kills 100 --seed 2 -- python tests/exactness/often_interrupted.py 60
"""

import random
import sys

import keras
import numpy as np
import tensorflow as tf

import tf_preempt

EPOCHS, STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 20, 40


class Jitter(keras.callbacks.Callback):
    """Draws from Python's and NumPy's generators, and keeps state of its own."""

    def __init__(self):
        super().__init__()
        self.seen = 0

    def on_train_batch_end(self, batch, logs=None):
        self.seen += 1
        self.model.optimizer.learning_rate = 1e-3 * (1 + random.random() + np.random.random() + self.seen % 3)

    def get_state(self):
        return {"seen": self.seen}

    def set_state(self, state):
        self.seen = state["seen"]


strategy = tf_preempt.strategies.MultiWorkerMirroredStrategy(tf_preempt.cluster_resolvers.auto())
keras.utils.set_random_seed(4)
tf.config.experimental.enable_op_determinism()

x = np.random.default_rng(1).normal(size=(16 * STEPS, 10)).astype("float32")
y = (x.sum(axis=1) > 0).astype("float32")
train = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(200, seed=5).repeat(2).shuffle(50, seed=6)
train = train.take(16 * STEPS).batch(16).prefetch(2)
test = tf_preempt.data.from_arrays(x[:128], y[:128], batch_size=16, seed=7)

with strategy.scope():
    model = keras.Sequential(
        [
            keras.layers.Input((10,)),
            keras.layers.GaussianNoise(0.1),
            keras.layers.Dense(16, "relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(1, "sigmoid"),
        ]
    )
    model.compile(keras.optimizers.Adam(use_ema=True), "binary_crossentropy", metrics=["accuracy", "auc"])

model.fit(
    train,
    validation_data=test,
    epochs=EPOCHS,
    verbose=0,
    callbacks=[
        keras.callbacks.ReduceLROnPlateau(patience=1),
        Jitter(),
        tf_preempt.callbacks.PreemptionCheckpoint("runs/often", save_every=4, max_to_keep=3),
    ],
)
