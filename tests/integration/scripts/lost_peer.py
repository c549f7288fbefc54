"""Two workers train until one is lost.

``lost_peer.py DIRECTORY PHASE [PEER_TIMEOUT_S]``: says ``under way`` once it is in the middle of the phase,
``train`` or ``validate``, which never ends by itself.
"""

import logging
import sys
import time

import keras
import tensorflow as tf
from tensorflow.python.eager import context

import tf_preempt

directory, phase, *timeout = sys.argv[1:]
logging.basicConfig(level=logging.WARNING)
resolver = tf_preempt.cluster_resolvers.auto()
options = {"peer_timeout_s": float(timeout[0])} if timeout else {}
strategy = tf_preempt.strategies.MultiWorkerMirroredStrategy(resolver, **options)
print("heartbeats", context.context().coordination_service.heartbeat_timeout_in_ms, "ms", flush=True)
endless = tf.data.Dataset.from_tensors(([1.0], [2.0])).repeat().batch(8, drop_remainder=True)


class Pace(keras.callbacks.Callback):
    """Leaves the other processes of the test some time, and tells when the phase is under way."""

    def __init__(self, phase):
        super().__init__()
        self.phase = phase

    def tell(self, batch, phase):
        if batch == 10 and phase == self.phase:
            print("under way", flush=True)
        time.sleep(0.02)

    def on_train_batch_end(self, batch, logs=None):
        self.tell(batch, "train")

    def on_test_batch_end(self, batch, logs=None):
        self.tell(batch, "validate")


with strategy.scope():
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
protect = tf_preempt.callbacks.PreemptionCheckpoint(directory, save_every=5)
model.fit(
    endless,
    steps_per_epoch=1_000_000 if phase == "train" else 5,
    validation_data=endless,
    validation_steps=1_000_000,
    verbose=0,
    callbacks=[protect, Pace(phase)],
)
