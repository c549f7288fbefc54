"""Reads data sets by index under strategies, going on from each step, and trains; writes the result as JSON.

Usage: by_index.py DIRECTORY.  With ``TF_CONFIG`` one of several workers, else without a strategy and with two
replicas in one process.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.data_pipeline import lives
from tests.data_pipeline.sources import Counted
from tf_preempt.callbacks import PreemptionCheckpoint
from tf_preempt.data import from_arrays, from_source
from tf_preempt.strategies import MirroredStrategy, MultiWorkerMirroredStrategy

EXAMPLES, BATCH, EPOCHS = 11, 4, 3
X = np.random.default_rng(0).normal(size=(EXAMPLES, 3)).astype("float32")


class Messages(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


MESSAGES = Messages()
logging.getLogger("tf_preempt").addHandler(MESSAGES)

if os.environ.get("TF_CONFIG"):
    workers = MultiWorkerMirroredStrategy()
    STRATEGIES = {f"worker-{workers.cluster_resolver.task_id}": workers}
else:
    CPU = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(CPU, [tf.config.LogicalDeviceConfiguration()] * 2)
    STRATEGIES = {"alone": tf.distribute.get_strategy(), "replicas": MirroredStrategy(["CPU:0", "CPU:1"])}


def sources(strategy: Any) -> dict[str, Any]:
    pipelines = {
        "from_source": lambda: from_source(Counted(EXAMPLES), batch_size=BATCH, seed=5),
        "from_arrays": lambda: from_arrays(np.arange(EXAMPLES), batch_size=BATCH, seed=5),
        "prefetched": lambda: from_source(Counted(EXAMPLES), batch_size=BATCH, seed=5).map(abs).prefetch(2),
    }
    return {
        name: lambda make=make: strategy.experimental_distribute_dataset(make())
        for name, make in pipelines.items()
    }


def local_parts(strategy: Any) -> Any:
    return lambda batch: [part.numpy().tolist() for part in strategy.experimental_local_results(batch)]


def trained(strategy: Any, directory: Path) -> dict[str, Any]:
    """The weights and losses of `fit`, which under a strategy looks at an element before it trains."""
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    validation = from_arrays(X, X[:, :1], batch_size=BATCH, seed=6)
    data = from_arrays(X, X[:, :1], batch_size=BATCH, seed=5).repeat(EPOCHS).prefetch(5)
    model.fit(
        data,
        steps_per_epoch=2,
        epochs=EPOCHS,
        validation_data=validation,
        validation_steps=1,
        shuffle=False,
        verbose=0,
        callbacks=[PreemptionCheckpoint(directory, save_every=None)],
    )
    return {"weights": [one.tolist() for one in model.get_weights()], **model.history.history}


for name, strategy in STRATEGIES.items():
    found: dict[str, Any] = {"epochs": {}}
    for kind, make in sources(strategy).items():
        found["epochs"][kind] = lives.undisturbed(make, show=local_parts(strategy))
        lives.assert_every_step_resumes(make, show=local_parts(strategy))
    checkpoints = Path(sys.argv[1]) / ("workers" if name.startswith("worker") else name)
    found["trained"] = trained(strategy, checkpoints)
    found["warnings"] = [text for text in MESSAGES.texts if "determinism" not in text]
    Path(sys.argv[1], f"{name}.json").write_text(json.dumps(found), "utf-8")
