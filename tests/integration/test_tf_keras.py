"""Models of the legacy Keras train on the same strategies, and are told what saves them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.conftest import RunScript
from tests.integration import cluster

SCRIPT = Path(__file__).parent / "scripts" / "tf_keras_models.py"
WAYS = {"tf_keras": {}, "TF_USE_LEGACY_KERAS": {"TF_USE_LEGACY_KERAS": "1"}}

FIT_WITH_CALLBACK = """
import os
import sys

import numpy as np
import tensorflow as tf
import tf_keras

import tf_preempt

trained = []
count = tf_keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: trained.append(batch))
keras = tf.keras if os.environ.get("TF_USE_LEGACY_KERAS") else tf_keras
model = keras.Sequential([keras.layers.Dense(1, input_shape=(2,))])
model.compile("sgd", "mse")
try:
    callbacks = [tf_preempt.callbacks.PreemptionCheckpoint("runs"), count]
    model.fit(np.zeros((4, 2)), np.zeros((4, 1)), callbacks=callbacks, verbose=0)
except tf_preempt.errors.ConfigError as error:
    print(error)
print("trained", trained, "files", os.listdir("."))
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One process alone, one with two devices, and two workers, which make their models through tf.keras."""
    directory = tmp_path_factory.mktemp("tf_keras")
    for setting, way in {
        "alone": "tf_keras",
        "devices": "tf_keras",
        "workers": "TF_USE_LEGACY_KERAS",
    }.items():
        cluster.run_workers(
            SCRIPT,
            [setting, str(directory)],
            directory=directory,
            workers=2 if setting == "workers" else 0,
            environ=WAYS[way],
            timeout_s=200,
        )
    return directory


@pytest.mark.timeout(600)
@pytest.mark.parametrize("process", ["devices", "worker-0", "worker-1"])
@pytest.mark.parametrize("case", ["data_sets", "arrays", "several_steps"])
def test_legacy_model_ends_as_it_does_in_one_process(runs: Path, case: str, process: str) -> None:
    with np.load(runs / "alone.npz") as alone, np.load(runs / f"{process}.npz") as found:
        assert alone.files == found.files
        names = [name for name in alone.files if name.startswith(f"{case}/")]
        assert f"{case}/history loss" in names
        for name in names:
            np.testing.assert_allclose(found[name], alone[name], rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("way", WAYS)
def test_callback_is_refused_before_training_with_what_to_use(run_script: RunScript, way: str) -> None:
    result = run_script(FIT_WITH_CALLBACK, env=WAYS[way], timeout=120)
    assert result.rc == 0, result.stderr
    assert "PreemptionCheckpoint was given to fit of Sequential, a model of the legacy Keras" in result.stdout
    assert "tf_preempt.PreemptionCheckpointHandler" in result.stdout
    assert "trained [] files" in result.stdout
    assert "runs" not in result.stdout.rpartition("files")[2]
