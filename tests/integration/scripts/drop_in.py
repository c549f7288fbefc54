"""Programs that were written for TensorFlow's preemption handler; the import is an argument.

Usage: drop_in.py tensorflow|tf_preempt PROGRAM DIRECTORY [--told STEP:WORKER] [...]

Each adds 1 per step and replica to a variable, and says in the end what is in it.
"""

import argparse
import os
import pathlib
import signal
import sys
import threading

import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("handler", choices=["tensorflow", "tf_preempt"])
parser.add_argument("program", help="a function of this file")
parser.add_argument("directory")
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--steps", type=int, default=5, help="of an epoch")
parser.add_argument("--told", help="STEP:WORKER: before this step, this worker gets SIGTERM")
parser.add_argument("--killed", help="STEP:WORKER: before this step, this worker gets SIGKILL")
parser.add_argument("--fails", help="STEP:WORKER: in this step, this worker raises an error")
parser.add_argument("--grace-period", type=float, help="seconds")
parser.add_argument("--step-takes", type=float, default=0.0, help="seconds")
options = parser.parse_args()

if options.handler == "tensorflow":
    from tensorflow import distribute

    PreemptionCheckpointHandler = distribute.experimental.PreemptionCheckpointHandler
    TerminationConfig = distribute.experimental.TerminationConfig
else:
    from tf_preempt import PreemptionCheckpointHandler, TerminationConfig

strategy = tf.distribute.MultiWorkerMirroredStrategy()
resolver = strategy.cluster_resolver
worker = resolver.task_id or 0
total = options.epochs * options.steps
config = TerminationConfig(grace_period=options.grace_period)

with strategy.scope():
    counted = tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM)


def is_now(moment, step):
    return moment == f"{step}:{worker}"


@tf.function
def add_one():
    strategy.run(lambda: counted.assign_add(1.0))


def train_step(step):
    if is_now(options.fails, step):
        raise tf.errors.ResourceExhaustedError(None, None, "no room for the activations")
    if is_now(options.told, step):
        os.kill(os.getpid(), signal.SIGTERM)
    if is_now(options.killed, step):
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait(options.step_takes)
    add_one()
    sys.stdout.write(f"did {step}\n")


def managers_directory():
    """The usual one: in a strategy of several workers, all have to save, and only the chief to keep it."""
    if worker == 0:
        return options.directory
    directory = pathlib.Path(options.directory)
    return str(directory.parent / f"workertemp_{worker}" / directory.name)


def counters_in_the_checkpoint():
    epoch = tf.Variable(0, dtype=tf.int64)
    step_in_epoch = tf.Variable(0, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(counted=counted, epoch=epoch, step_in_epoch=step_in_epoch)
    handler = PreemptionCheckpointHandler(resolver, checkpoint, options.directory, config)
    while epoch.numpy() < options.epochs:
        while step_in_epoch.numpy() < options.steps:
            handler.run(train_step, int(epoch) * options.steps + int(step_in_epoch))
            step_in_epoch.assign_add(1)
        epoch.assign_add(1)
        step_in_epoch.assign(0)


def total_run_calls():
    checkpoint = tf.train.Checkpoint(counted=counted)
    manager = tf.train.CheckpointManager(checkpoint, managers_directory(), max_to_keep=1)
    handler = PreemptionCheckpointHandler(resolver, manager, termination_config=config)
    for epoch in range(handler.total_run_calls // options.steps, options.epochs):
        for step in range(handler.total_run_calls % options.steps, options.steps):
            handler.run(train_step, epoch * options.steps + step)


def save_checkpoint_if_preempted():
    trained = tf.Variable(0, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(counted=counted, trained=trained)
    manager = tf.train.CheckpointManager(checkpoint, managers_directory(), max_to_keep=1)

    def save(**arguments):
        return manager.save(**arguments)

    handler = PreemptionCheckpointHandler(
        resolver, manager, termination_config=TerminationConfig(save_fn=save)
    )
    while trained.numpy() < total:
        train_step(int(trained))
        trained.assign_add(1)
        handler.save_checkpoint_if_preempted(check_interval=False)


def scope_in_each_epoch():
    epoch = tf.Variable(0, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(counted=counted, epoch=epoch)
    handler = PreemptionCheckpointHandler(resolver, checkpoint, options.directory)
    while epoch.numpy() < options.epochs:
        with handler.watch_preemption_scope():
            for step in range(handler.total_run_calls % options.steps, options.steps):
                handler.run(train_step, int(epoch) * options.steps + step)
            epoch.assign_add(1)


def saves_of_its_own():
    """Saves after each epoch, too, as TensorFlow's documents advise for the case that nobody is told."""
    trained = tf.Variable(0, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(counted=counted, trained=trained)
    manager = tf.train.CheckpointManager(checkpoint, managers_directory(), max_to_keep=1)
    handler = PreemptionCheckpointHandler(resolver, manager)
    while trained.numpy() < total:
        handler.run(train_step, int(trained))
        trained.assign_add(1)
        if int(trained) % options.steps == 0:
            manager.save()


globals()[options.program]()
sys.stdout.write(f"counted {int(counted.numpy())} of {strategy.num_replicas_in_sync * total}\n")
