"""Trains models of the legacy Keras in one setting: tf_keras_models.py SETTING DIRECTORY.

SETTING is ``alone``, ``devices`` or ``workers``, as in keras_matrix.py.  Writes ``<alone | devices |
worker-i>.npz``.  With ``TF_USE_LEGACY_KERAS=1`` the models are made through ``tf.keras``, else through
``tf_keras``.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import tensorflow as tf

from tests.integration.scripts.keras_matrix import make_strategy

SETTING, DIRECTORY = sys.argv[1:]
STRATEGY, WORKER = make_strategy(SETTING)

import tf_keras  # noqa: E402  (the strategy must come first)

LEGACY = tf.keras if os.environ.get("TF_USE_LEGACY_KERAS") == "1" else tf_keras
BATCH = 8
RNG = np.random.default_rng(11)
X = RNG.normal(size=(24, 6)).astype(np.float32)
Y = (X[:, :1] > 0).astype(np.float32)

Arrays = dict[str, Any]


def make_model(steps_per_execution: int = 1) -> Any:
    LEGACY.utils.set_random_seed(5)
    with STRATEGY.scope():
        layers = [LEGACY.layers.Dense(4, "tanh", input_shape=(6,)), LEGACY.layers.Dense(1, "sigmoid")]
        model = LEGACY.Sequential(layers)
        model.compile("adam", "mse", metrics=["mae"], steps_per_execution=steps_per_execution)
    return model


def batches(rows: int) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X[:rows], Y[:rows])).batch(BATCH)


def outcome(model: Any, *data: Any, **options: Any) -> Arrays:
    history = model.fit(*data, **{"epochs": 2, "verbose": 0, **options}).history
    found = {f"weight {index}": weight for index, weight in enumerate(model.get_weights())}
    return found | {f"history {key}": values for key, values in history.items()}


def data_sets() -> Arrays:
    model = make_model()
    found = outcome(model, batches(24), validation_data=batches(16))
    found["evaluate"] = model.evaluate(batches(16), verbose=0)
    found["predict"] = model.predict(batches(17), verbose=0)
    return found


def arrays() -> Arrays:
    model = make_model()
    found = outcome(model, X, Y, batch_size=BATCH, shuffle=False)
    found["predict"] = model.predict(X, batch_size=BATCH, verbose=0)
    return found


def several_steps() -> Arrays:
    return outcome(make_model(steps_per_execution=3), batches(24))


def main() -> None:
    results = {
        f"{case.__name__}/{name}": np.asarray(value)
        for case in (data_sets, arrays, several_steps)
        for name, value in case().items()
    }
    name = f"worker-{WORKER}" if SETTING == "workers" else SETTING
    np.savez(os.path.join(DIRECTORY, f"{name}.npz"), **results)


if __name__ == "__main__":
    main()
