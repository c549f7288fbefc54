"""One task of a step prints how many GPUs each task has, by the resolver; TensorFlow is told to see them."""

import json
import logging
import os

import tensorflow as tf

from tf_preempt.cluster_resolvers import SlurmClusterResolver

said = []
handler = logging.Handler()
handler.emit = lambda record: said.append(record.getMessage())
logging.getLogger("tf_preempt").addHandler(handler)
logging.getLogger("tf_preempt").setLevel(logging.INFO)

resolver = SlurmClusterResolver()
own = [device for device in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if device]
tf.config.get_visible_devices = lambda kind: own if kind == "GPU" else []
tasks = range(resolver.cluster_spec().num_tasks("worker"))
print(
    json.dumps(
        {
            "rank": resolver.task_id,
            "own": len(own),
            "counts": [resolver.num_accelerators("worker", index).get("GPU", 0) for index in tasks],
            "unknown": [line for line in said if "not known" in line],
        }
    )
)
