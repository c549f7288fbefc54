"""Whatever cannot work is refused before training begins, with nothing written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from tests.callbacks import lives
from tests.callbacks.lives import Interrupt, Program, new_process
from tf_preempt import errors
from tf_preempt.callbacks import PreemptionCheckpoint

TWO_WORKERS = json.dumps(
    {"cluster": {"worker": ["localhost:1", "localhost:2"]}, "task": {"type": "worker", "index": 0}}
)


def fit(*callbacks: Any, build: Callable[[], Any] = lives.dense_model) -> list[int]:
    """Trains and returns which batches were trained."""
    keras.backend.clear_session()
    trained: list[int] = []
    count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: trained.append(batch))
    try:
        build().fit(lives.pipeline(), epochs=1, verbose=0, shuffle=False, callbacks=[*callbacks, count])
    finally:
        fit.trained = trained  # type: ignore[attr-defined]
    return trained


def refused(
    expected: type[errors.TfPreemptError], *callbacks: Any, **arguments: Any
) -> errors.TfPreemptError:
    with pytest.raises(expected) as raised:
        fit(*callbacks, **arguments)
    assert fit.trained == []  # type: ignore[attr-defined]
    assert raised.value.hint
    return raised.value


def files_in(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


@pytest.mark.parametrize("value", ["hourly", 0, -3, True, 2.5, ["epoch"]], ids=repr)
def test_save_every(tmp_path: Path, value: Any) -> None:
    with pytest.raises(errors.ConfigError) as raised:
        PreemptionCheckpoint(tmp_path, save_every=value)
    assert f"save_every={value!r}" in str(raised.value)
    assert raised.value.hint


@pytest.mark.parametrize("value", [0, -1, True, 2.5, "3", [3]], ids=repr)
def test_max_to_keep(tmp_path: Path, value: Any) -> None:
    with pytest.raises(errors.ConfigError) as raised:
        PreemptionCheckpoint(tmp_path, max_to_keep=value)
    assert f"max_to_keep={value!r}" in str(raised.value)
    assert raised.value.hint


@pytest.mark.parametrize("value", ["pause", "", 1, ["exit"]], ids=repr)
def test_on_preemption(tmp_path: Path, value: Any) -> None:
    with pytest.raises(errors.ConfigError) as raised:
        PreemptionCheckpoint(tmp_path, on_preemption=value)
    assert f"on_preemption={value!r}" in str(raised.value)
    assert raised.value.hint


def test_termination_config(tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigError, match="termination_config=30") as raised:
        PreemptionCheckpoint(tmp_path, termination_config=30)
    assert raised.value.hint


@pytest.mark.parametrize("environ", [{}, {"TF_PREEMPT_DIR": ""}], ids=repr)
@pytest.mark.parametrize("directory", [None, ""])
def test_no_directory(directory: Any, environ: dict[str, str]) -> None:
    with pytest.raises(errors.DirectoryNotGivenError, match="TF_PREEMPT_DIR") as raised:
        PreemptionCheckpoint(directory, environ=environ)
    assert raised.value.hint


@pytest.mark.parametrize("name", ["TF_PREEMPT_DIR", "AIP_CHECKPOINT_DIR"])
def test_directory_of_the_environment(tmp_path: Path, name: str) -> None:
    assert PreemptionCheckpoint(environ={name: str(tmp_path)}).directory == str(tmp_path)


def test_directory_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    directory = tmp_path / "file" / "runs"
    error = refused(errors.DirectoryNotWritableError, PreemptionCheckpoint(directory))
    assert str(directory) in str(error)
    assert files_in(tmp_path) == ["file"]


def test_two_callbacks_in_one_fit(tmp_path: Path) -> None:
    callbacks = [PreemptionCheckpoint(tmp_path / name) for name in ("a", "b")]
    error = refused(errors.DirectoryInUseError, *callbacks)
    assert str(tmp_path / "a") in str(error)
    assert str(tmp_path / "b") in str(error)
    assert files_in(tmp_path) == []


def test_keras_s_own_backup_beside_ours(tmp_path: Path) -> None:
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    error = refused(errors.ConfigError, PreemptionCheckpoint(tmp_path / "a"), backup)
    assert "BackupAndRestore" in str(error)
    assert not (tmp_path / "a").exists()


def test_directory_of_a_fit_that_is_running(tmp_path: Path) -> None:
    """A callback that trains another model into the same directory."""
    seen: list[errors.TfPreemptError] = []

    def train_another(epoch: int, logs: Any = None) -> None:
        with pytest.raises(errors.DirectoryInUseError) as raised:
            lives.dense_model().fit(
                lives.pipeline(), verbose=0, shuffle=False, callbacks=[PreemptionCheckpoint(tmp_path)]
            )
        seen.append(raised.value)

    trained = fit(
        PreemptionCheckpoint(tmp_path, save_every=None),
        keras.callbacks.LambdaCallback(on_epoch_begin=train_another),
    )
    assert len(trained) == lives.STEPS
    assert str(tmp_path) in str(seen[0])
    assert seen[0].hint


def interrupted(directory: Path) -> list[str]:
    assert Program().run(directory, interrupt=Interrupt(0, 1)) is None
    return files_in(directory)


def another_model() -> keras.Model:
    model = keras.Sequential(
        [keras.layers.Input((3,)), keras.layers.Dropout(0.5), keras.layers.Dense(7), keras.layers.Dense(1)]
    )
    model.compile("adam", "mse")
    return model


def test_checkpoint_of_another_model(tmp_path: Path) -> None:
    files = interrupted(tmp_path)
    error = refused(errors.CheckpointMismatchError, PreemptionCheckpoint(tmp_path), build=another_model)
    assert "kernel (3, 1) float32" in str(error)
    assert "kernel (3, 7) float32" in str(error)
    assert "has none" in str(error)
    assert str(tmp_path) in str(error)
    assert files_in(tmp_path) == files


def test_checkpoint_of_a_newer_format(tmp_path: Path) -> None:
    interrupted(tmp_path)
    (path,) = tmp_path.glob("*.manifest.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    files = files_in(tmp_path)
    error = refused(errors.CheckpointFormatError, PreemptionCheckpoint(tmp_path))
    assert "99" in str(error)
    assert str(path) in str(error)
    assert files_in(tmp_path) == files


def test_checkpoint_of_a_custom_loop(tmp_path: Path) -> None:
    interrupted(tmp_path)
    (path,) = tmp_path.glob("*.manifest.json")
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "resume": {"fit": 0, "step": 3}}))
    error = refused(errors.CheckpointFormatError, PreemptionCheckpoint(tmp_path))
    assert "Keras callback" in str(error)


def test_metrics_that_the_checkpoint_does_not_have(tmp_path: Path) -> None:
    interrupted(tmp_path)
    error = refused(
        errors.CheckpointMismatchError,
        PreemptionCheckpoint(tmp_path),
        build=lambda: lives.dense_model(metrics=["mae"]),
    )
    assert "metric variables" in str(error)


def test_two_workers_without_their_strategy(tmp_path: Path) -> None:
    callback = PreemptionCheckpoint(tmp_path / "runs", environ={"TF_CONFIG": TWO_WORKERS})
    error = refused(errors.UnsupportedStrategyError, callback)
    assert "2 workers" in str(error)
    assert "tf_preempt.strategies.MultiWorkerMirroredStrategy" in str(error)
    assert files_in(tmp_path) == []


STOCK = """
import keras, os, sys, tensorflow as tf
import tf_preempt
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
try:
    callback = tf_preempt.callbacks.PreemptionCheckpoint(sys.argv[1])
    x = tf.zeros((8, 3))
    model.fit(x, x[:, :1], verbose=0, callbacks=[callback])
except tf_preempt.errors.UnsupportedStrategyError as error:
    print("REFUSED", error)
print("EXISTS", os.path.exists(sys.argv[1]))
"""


def test_stock_strategy(tmp_path: Path, run_script: Any, free_port: int) -> None:
    config = {"cluster": {"worker": [f"localhost:{free_port}"]}, "task": {"type": "worker", "index": 0}}
    result = run_script(STOCK, str(tmp_path / "runs"), env={"TF_CONFIG": json.dumps(config)}, timeout=90)
    assert "REFUSED" in result.stdout, result.stderr
    assert "tf_preempt.strategies.MultiWorkerMirroredStrategy" in result.stdout
    assert "EXISTS False" in result.stdout


def test_everything_is_given_back_after_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(tmp_path)
    refused(errors.CheckpointMismatchError, PreemptionCheckpoint(tmp_path), build=another_model)
    new_process(monkeypatch)
    resumed = Program().run(tmp_path)
    assert resumed is not None
    assert resumed.epochs == [0, 1, 2]


def test_tensorflows_termination_config_is_taken(tmp_path: Path) -> None:
    config = tf.distribute.experimental.TerminationConfig(grace_period=0)
    assert len(fit(PreemptionCheckpoint(tmp_path, termination_config=config))) == lives.STEPS
