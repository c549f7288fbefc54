"""A small training that does not end alike: ``drilled.py WAY``.

``numpy``: NumPy draws the data without a seed.  ``step``: the step draws with a stateful op.  ``op``: an op
of the step never gives the same twice, and op determinism is off.
"""

import os
import sys

import keras
import numpy as np
import tensorflow as tf

import tf_preempt

WAY = sys.argv[1]

strategy = tf_preempt.strategies.MultiWorkerMirroredStrategy(tf_preempt.cluster_resolvers.auto())
if WAY != "numpy":
    keras.utils.set_random_seed(1)
if WAY != "op":
    tf.config.experimental.enable_op_determinism()


class Noise(keras.layers.Layer):
    def call(self, x):
        if WAY == "step":
            return x + 0.1 * tf.random.normal(tf.shape(x))
        if WAY == "op":
            noise = tf.numpy_function(lambda: np.float32(os.urandom(1)[0] / 255), [], tf.float32)
            return x + tf.reshape(noise, [])
        return x


x = np.random.rand(80, 6).astype("float32")
y = (x.sum(axis=1, keepdims=True) > 3).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(80, seed=1).batch(4)
with strategy.scope():
    model = keras.Sequential(
        [
            keras.layers.Input((6,)),
            keras.layers.Dense(8, activation="relu"),
            Noise(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(1, "sigmoid"),
        ]
    )
    model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])
model.fit(
    data,
    epochs=10,
    verbose=0,
    callbacks=[tf_preempt.callbacks.PreemptionCheckpoint("not/here", save_every=5)],
)
