"""Trains a small network on handwritten digits; start it any way you like, stop it whenever you like.

    python examples/train.py runs/digits
    tf-preempt launch --workers 2 -- python examples/train.py runs/digits
    tf-preempt run -- tf-preempt launch --workers 2 -- python examples/train.py runs/digits

Needs scikit-learn for the images: pip install 'tf-preempt[demo]'.
"""

import sys

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

import tf_preempt

keras.utils.set_random_seed(1)  # the same first weights and the same order on all workers
resolver = tf_preempt.cluster_resolvers.auto()
strategy = tf_preempt.strategies.MultiWorkerMirroredStrategy(resolver)

images, labels = load_digits(return_X_y=True)
images = images.reshape(-1, 8, 8, 1).astype("float32") / 16
train = tf.data.Dataset.from_tensor_slices((images[:1500], labels[:1500]))
train = train.shuffle(1500, seed=1).batch(32, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
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
    epochs=5,
    verbose=2 if resolver.task_id in (None, 0) else 0,
    callbacks=[tf_preempt.callbacks.PreemptionCheckpoint(sys.argv[1], save_every="epoch")],
)
