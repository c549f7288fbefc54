"""What the cases of the conformance matrix share: the setting they run in, small data, small models."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import keras
import numpy as np
import tensorflow as tf

Arrays = dict[str, Any]

BATCH = 8
QUIET = {"verbose": 0}

_RNG = np.random.default_rng(11)
X = _RNG.normal(size=(24, 6)).astype(np.float32)
Y = (X[:, :1] + 0.3 * X[:, 1:2] > 0).astype(np.float32)
X_VAL = _RNG.normal(size=(16, 6)).astype(np.float32)
Y_VAL = (X_VAL[:, :1] > 0).astype(np.float32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """Where the cases run.

    Args:
        name: ``alone``, ``workers`` or ``devices``.
        strategy: the strategy under which models are made; TensorFlow's default where the setting is alone.
        directory: for files of the cases.
        worker: index of this process; 0 where there is only one.
    """

    name: str
    strategy: tf.distribute.Strategy
    directory: str
    worker: int = 0

    @property
    def is_alone(self) -> bool:
        return self.name == "alone"

    @property
    def is_chief(self) -> bool:
        return self.worker == 0

    @property
    def label(self) -> str:
        """Names this process among all that run the matrix."""
        return f"worker-{self.worker}" if self.name == "workers" else self.name

    def own_path(self, name: str) -> str:
        """A path that no other process uses."""
        return os.path.join(self.directory, f"{self.label}-{name}")

    def common_path(self, name: str) -> str:
        """A path that all workers of this setting share."""
        return os.path.join(self.directory, f"{self.name}-{name}")

    def scope(self) -> Any:
        """The strategy's scope, with the seeds that give all settings the same first weights."""
        keras.utils.set_random_seed(5)
        return self.strategy.scope()


def layers() -> list[keras.Layer]:
    return [keras.Input((6,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1, "sigmoid")]


def small_model(setting: Setting, optimizer: Any = "sgd", **compile_arguments: Any) -> keras.Model:
    """Two dense layers; `optimizer` is a name, or a function that makes one inside the scope."""
    arguments = {"loss": "mse", "metrics": ["mae"], **compile_arguments}
    with setting.scope():
        model = keras.Sequential(layers())
        model.compile(optimizer() if callable(optimizer) else optimizer, **arguments)
    return model


def policy_model(setting: Setting, policy: str, optimizer: keras.optimizers.Optimizer | str) -> keras.Model:
    """A hidden layer of that dtype policy; `optimizer` is a name, or was made inside the scope."""
    with setting.scope():
        hidden = keras.layers.Dense(4, "tanh", dtype=policy)
        model = keras.Sequential([keras.Input((6,)), hidden, keras.layers.Dense(1, dtype="float32")])
        model.compile(optimizer, "mse")
    return model


def batches(*arrays: Any) -> tf.data.Dataset:
    """A data set of the arrays (one: no tuple), in their order, in global batches."""
    data = tf.data.Dataset.from_tensor_slices(arrays if len(arrays) > 1 else arrays[0])
    return data.batch(BATCH)


def outcome(model: keras.Model, history: keras.callbacks.History | None = None) -> Arrays:
    """All weights of the model and all values of the history."""
    found = {f"weight {index}": weight for index, weight in enumerate(model.get_weights())}
    logs = history.history if history is not None else {}
    return found | {f"history {key}": values for key, values in logs.items()}


def evaluated(model: keras.Model, *arguments: Any, **options: Any) -> Arrays:
    """What ``evaluate`` says, by name of the metric."""
    logs = model.evaluate(*arguments, return_dict=True, **QUIET, **options)
    return {f"evaluate {key}": value for key, value in logs.items()}


def fitted(model: keras.Model, *data: Any, **options: Any) -> Arrays:
    """Trains for two epochs and gives the outcome."""
    return outcome(model, model.fit(*data, **{"epochs": 2, **QUIET, **options}))
