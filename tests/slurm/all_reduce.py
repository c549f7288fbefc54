"""One task of a step: joins the cluster that the resolver finds and sums the ranks of all workers."""

import json
import os
import socket
import sys

import tensorflow as tf

from tf_preempt.cluster_resolvers import auto

resolver = auto()
strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver)
value = strategy.run(lambda: tf.constant(float(resolver.task_id)))
total = float(strategy.reduce(tf.distribute.ReduceOp.SUM, value, axis=None))
print(
    json.dumps(
        {
            "resolver": type(resolver).__name__,
            "task": resolver.get_task_info(),
            "nodename": os.environ["SLURMD_NODENAME"],
            "hostname": socket.gethostname(),
            "cluster": resolver.cluster_spec().as_dict(),
            "total": total,
        }
    ),
    flush=True,
)
# Leaving the strategy to the interpreter's end can keep a worker waiting for one that is gone.
sys.stdout.flush()
os._exit(0)
