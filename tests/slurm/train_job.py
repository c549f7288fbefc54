"""The training of the jobs in these tests: four epochs of 16 steps; notes every step that it has trained."""

import argparse
import json
import os
import pathlib
import signal
import time

import keras
import numpy as np
import tensorflow as tf

import tf_preempt
from tf_preempt.termination import SlurmOptions

EPOCHS = 4
STEPS = 16

parser = argparse.ArgumentParser()
parser.add_argument("directory", type=pathlib.Path)
parser.add_argument("--pace", type=float, default=0.0, help="seconds that a step takes at least")
parser.add_argument("--save-every", type=int, default=10_000)
parser.add_argument("--max-requeues", type=int)
parser.add_argument("--build", type=float, default=0.0, help="seconds until the model is built, in run 0")
parser.add_argument(
    "--save-takes", type=float, default=0.0, help="seconds that a save takes at least, in run 0"
)
parser.add_argument("--load", type=float, default=0.0, help="seconds from callback to training, in run 0")
parser.add_argument("--linger", type=float, default=0.0, help="seconds of work after the training, in run 0")
options = parser.parse_args()

keras.utils.set_random_seed(3)
tf.config.experimental.enable_op_determinism()
resolver = tf_preempt.cluster_resolvers.auto()
strategy = tf_preempt.strategies.MultiWorkerMirroredStrategy(resolver)
worker = resolver.task_id or 0

random = np.random.default_rng(5)
inputs = random.normal(size=(24 * STEPS, 12)).astype("float32")
targets = (inputs @ random.normal(size=(12, 1)) + 0.1 * random.normal(size=(24 * STEPS, 1))).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((inputs, targets)).shuffle(24 * STEPS, seed=7).batch(24)


class Note(keras.callbacks.Callback):
    """Writes down each step that was trained, as it is done."""

    def on_train_batch_end(self, batch, logs=None):
        with open(options.directory.parent / f"steps-{worker}.txt", "a", encoding="utf-8") as file:
            file.write(f"{int(self.model.optimizer.iterations.numpy())}\n")
        time.sleep(options.pace)  # the work of a larger model

    def get_state(self):
        work_in_run_0("saves", options.save_takes)
        return {}

    def set_state(self, state):
        """There is none."""


def work_in_run_0(stage, seconds):
    """Whatever a program does besides training."""
    if "SLURM_RESTART_COUNT" not in os.environ and seconds:
        (options.directory.parent / f"{stage}-{worker}").touch()
        time.sleep(seconds)


work_in_run_0("builds", options.build)

with strategy.scope():
    layers = [keras.layers.Dense(8, "tanh"), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
    model = keras.Sequential([keras.layers.Input((12,)), *layers])
    model.compile(keras.optimizers.Adam(0.01), "mse")

config = tf_preempt.TerminationConfig(slurm=SlurmOptions(max_requeues=options.max_requeues))
protect = tf_preempt.callbacks.PreemptionCheckpoint(
    options.directory, save_every=options.save_every, termination_config=config
)
work_in_run_0("loads", options.load)
history = model.fit(dataset, epochs=EPOCHS, verbose=0, callbacks=[Note(), protect])
signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # of --signal: there is nothing to save any more

work_in_run_0("lingers", options.linger)  # an evaluation, an export

if worker == 0:
    weights = [weight.tolist() for weight in model.get_weights()]
    result = {"weights": weights, "loss": history.history["loss"]}
    target = options.directory.parent / "result.json"
    target.write_text(json.dumps(result), encoding="utf-8")
