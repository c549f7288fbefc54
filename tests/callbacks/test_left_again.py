"""What happens when `fit` is left again before it went on, with other data, or by an exception."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_preempt import errors
from tf_preempt.callbacks import PreemptionCheckpoint

ROWS = 40


class SignalAt(keras.callbacks.Callback):
    """Sends this process SIGTERM at a training batch; -1: when the first epoch begins."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.batch = batch

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if self.batch == -1:
            os.kill(os.getpid(), signal.SIGTERM)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if batch == self.batch:
            os.kill(os.getpid(), signal.SIGTERM)


class OwnOptimizers(keras.Model):
    """As in a GAN: two parts with an optimizer each, which `compile` is not told of."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = keras.layers.Dense(4), keras.layers.Dense(2)
        self.first_optimizer, self.second_optimizer = keras.optimizers.Adam(0.1), keras.optimizers.Adam(0.1)

    def call(self, inputs: Any) -> Any:
        return self.second(self.first(inputs))

    def train_step(self, data: Any) -> Any:
        inputs, targets = data
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_mean((self(inputs) - targets) ** 2)
        for layer, optimizer in ((self.first, self.first_optimizer), (self.second, self.second_optimizer)):
            weights = layer.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


def data(batch: int = 8) -> tf.data.Dataset:
    generator = np.random.default_rng(0)
    inputs = generator.random((ROWS, 3), dtype="float32")
    targets = generator.random((ROWS, 2), dtype="float32")
    return tf.data.Dataset.from_tensor_slices((inputs, targets)).shuffle(ROWS, seed=2).batch(batch)


def fit(directory: Path, *callbacks: Any, model: Any = None, batch: int = 8) -> Any:
    keras.utils.set_random_seed(1)
    if model is None:
        model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])
        model.compile("adam", "mse")
    ours = PreemptionCheckpoint(directory, save_every=None, on_preemption="raise")
    history = model.fit(data(batch), epochs=2, verbose=0, shuffle=False, callbacks=[*callbacks, ours])
    return history.history["loss"], [weight.numpy() for weight in model.variables]


def manifests(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("*.manifest.json"))


def own_optimizers() -> OwnOptimizers:
    keras.utils.set_random_seed(1)
    model = OwnOptimizers()
    model.compile()
    return model


def test_notice_before_the_first_resumed_step_keeps_the_state_of_optimizers_not_yet_built(
    tmp_path: Path,
) -> None:
    losses, weights = fit(tmp_path / "calm", model=own_optimizers())
    stormy = tmp_path / "stormy"
    with pytest.raises(errors.Preempted):
        fit(stormy, SignalAt(2), model=own_optimizers())
    before = manifests(stormy)
    with pytest.raises(errors.Preempted, match="the restored step stands"):
        fit(stormy, SignalAt(-1), model=own_optimizers())
    assert manifests(stormy) == before
    again, resumed = fit(stormy, model=own_optimizers())
    assert again == losses
    for one, other in zip(weights, resumed, strict=True):
        np.testing.assert_array_equal(one, other)


def test_data_with_another_number_of_batches_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.Preempted):
        fit(tmp_path, SignalAt(2))
    before = manifests(tmp_path)
    with pytest.raises(
        errors.CheckpointMismatchError, match=r"(?s)has 10 batches per epoch.* it had 5.*HINT"
    ):
        fit(tmp_path, batch=4)
    assert manifests(tmp_path) == before
    losses, _ = fit(tmp_path)
    assert len(losses) == 2


@pytest.mark.parametrize("error", ["ValueError('of a callback')", "KeyboardInterrupt()"])
def test_signal_ends_a_process_whose_fit_was_left_by_an_exception(
    error: str, tmp_path: Path, run_script: Any
) -> None:
    result = run_script(
        "import os, signal, sys, time\n"
        "import keras, numpy as np, tf_preempt\n"
        "class Raise(keras.callbacks.Callback):\n"
        "    def on_train_batch_end(self, batch, logs=None):\n"
        f"        raise {error}\n"
        "model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])\n"
        "model.compile('sgd', 'mse')\n"
        "ours = tf_preempt.callbacks.PreemptionCheckpoint(sys.argv[1])\n"
        "try:\n"
        "    ones = np.ones((4, 1))\n"
        "    model.fit(ones, ones, verbose=0, shuffle=False, callbacks=[ours, Raise()])\n"
        "except BaseException as error:\n"
        "    print('left', type(error).__name__, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "time.sleep(60)\n"
        "print('survived')\n",
        str(tmp_path / "run"),
    )
    assert "left" in result.stdout
    assert result.rc == -signal.SIGTERM, result.stdout + result.stderr
    assert "survived" not in result.stdout


def test_fit_whose_last_commit_fails_says_so_and_can_be_started_again(tmp_path: Path) -> None:
    whole = fit(tmp_path / "whole")
    directory = tmp_path / "run"
    in_the_way = directory / "ckpt-1.manifest.json"
    block = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: in_the_way.mkdir(exist_ok=True))
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(errors.CheckpointWriteError, match="Checkpoint 1 was not committed"):
        fit(directory, block)
    assert signal.getsignal(signal.SIGTERM) is handler
    in_the_way.rmdir()

    again = fit(directory)
    assert again[0] == whole[0]
    assert [weight.tobytes() for weight in again[1]] == [weight.tobytes() for weight in whole[1]]
    (name,) = manifests(directory)
    assert json.loads((directory / name).read_text())["resume"]["fit"] == 0  # the failed one does not count


@pytest.mark.parametrize(("verbose", "printed"), [(1, True), (0, False)])
def test_the_environments_directory_and_the_restored_step_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verbose: int, printed: bool
) -> None:
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])
    model.compile("adam", "mse")
    with pytest.raises(errors.Preempted):
        fit(tmp_path / "run", SignalAt(2), model=model)
    capsys.readouterr()
    environ = {"TF_PREEMPT_DIR_OVERRIDE": str(tmp_path / "run")}
    ours = PreemptionCheckpoint("elsewhere", save_every=None, verbose=verbose, environ=environ)
    model.fit(data(), epochs=2, verbose=0, shuffle=False, callbacks=[ours])
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("tf_preempt: ")]
    assert [line.split()[1] for line in said] == (
        [f"TF_PREEMPT_DIR_OVERRIDE={tmp_path / 'run'}", "Restored"] * printed
    )
