from __future__ import annotations

import copy
import inspect
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import tf_preempt
from tests.callbacks.lives import Program, dense_model, pipeline
from tf_preempt import errors
from tf_preempt.callbacks import OnChief, PreemptionCheckpoint, on_chief
from tf_preempt.checkpointing.startup import Cluster

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning"  # Keras's own callbacks with NumPy 2
)

HOOKS = sorted(name for name in dir(keras.callbacks.Callback) if name.startswith("on_"))
TWO_WORKERS = json.dumps(
    {"cluster": {"worker": ["localhost:1", "localhost:2"]}, "task": {"type": "worker", "index": 0}}
)

WorkerIs = Callable[..., None]


class Recorder(keras.callbacks.Callback):
    """Notes what it is called with."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("on_"):
            return super().__getattribute__(name)
        return lambda *args, **kwargs: self.calls.append((name, args, kwargs))


class Stopping(keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.stop_training = True


@pytest.fixture
def worker_is(monkeypatch: pytest.MonkeyPatch) -> WorkerIs:
    """Lets strategies say that this process is a worker of two."""

    def set_worker(worker: int, workers: int = 2) -> None:
        monkeypatch.setattr(on_chief, "cluster_of", lambda _: Cluster(worker=worker, workers=workers))

    return set_worker


@pytest.fixture(autouse=True)
def nothing_was_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_chief, "_warned", False)


@pytest.mark.parametrize("hook", HOOKS)
def test_each_hook_runs_on_the_chief_only(hook: str, worker_is: WorkerIs) -> None:
    arguments = ({"loss": 1.0},) if "begin" in hook or "end" in hook else ()
    for worker, calls in ((0, [(hook, (3, *arguments), {"logs": None})]), (1, [])):
        worker_is(worker)
        wrapper = OnChief(Recorder())
        wrapper.set_model(dense_model())
        getattr(wrapper, hook)(3, *arguments, logs=None)
        assert wrapper.callback.calls == calls


def test_hooks_are_documented_and_named() -> None:
    for hook in HOOKS:
        function = inspect.getattr_static(OnChief, hook)
        assert (function.__name__, hook in function.__doc__) == (hook, True)


def test_keras_calls_the_wrapped_callback_as_it_calls_a_bare_one() -> None:
    model, bare, wrapped = dense_model(metrics=["mae"]), Recorder(), Recorder()
    both = [bare, OnChief(wrapped)]
    model.fit(pipeline(), validation_data=pipeline(), epochs=2, shuffle=False, verbose=0, callbacks=both)
    model.evaluate(pipeline(), verbose=0, callbacks=both)
    model.predict(np.ones([2, 3]), verbose=0, callbacks=both)

    def without_outputs(calls: list[Any]) -> list[Any]:
        return [call for call in calls if call[0] != "on_predict_batch_end"]

    assert without_outputs(wrapped.calls) == without_outputs(bare.calls)
    assert {name for name, _, _ in wrapped.calls} >= set(HOOKS) - {"on_batch_begin", "on_batch_end"}


@pytest.mark.parametrize(("worker", "runs"), [(0, True), (1, False)])
def test_model_and_parameters_are_known_everywhere(worker: int, runs: bool, worker_is: WorkerIs) -> None:
    worker_is(worker)
    model, wrapper = dense_model(), OnChief(Recorder())
    assert not wrapper.is_running
    keras.callbacks.CallbackList([wrapper], model=model, epochs=3)
    assert (wrapper.model, wrapper.params) == (model, {"epochs": 3})
    assert wrapper.is_running is runs
    assert wrapper.callback.model is (model if runs else None)
    assert wrapper.callback.params == ({"epochs": 3} if runs else None)


def test_parameters_given_before_the_model_reach_the_callback() -> None:
    wrapper = OnChief(Recorder())
    wrapper.set_params({"epochs": 3})
    wrapper.set_model(dense_model())
    assert wrapper.callback.params == {"epochs": 3}


def test_attributes_of_the_callback_are_reachable() -> None:
    checkpoint = keras.callbacks.ModelCheckpoint("x.keras", monitor="loss")
    checkpoint.best = 0.25
    wrapper = OnChief(checkpoint)
    assert (wrapper.best, wrapper.filepath, wrapper.callback) == (0.25, "x.keras", checkpoint)
    with pytest.raises(AttributeError, match="'ModelCheckpoint' object has no attribute 'worst'"):
        _ = wrapper.worst


def test_wrapper_can_be_copied() -> None:
    copied = copy.deepcopy(OnChief(Stopping()))
    assert isinstance(copied.callback, Stopping)
    with pytest.raises(AttributeError, match="'OnChief' object has no attribute 'best'"):
        _ = OnChief.__new__(OnChief).best  # as it is before its attributes are copied


@pytest.mark.parametrize(
    "make",
    [
        lambda directory: keras.callbacks.EarlyStopping("loss"),
        lambda directory: keras.callbacks.ReduceLROnPlateau("loss"),
        lambda directory: keras.callbacks.LearningRateScheduler(lambda epoch: 0.1),
        lambda directory: keras.callbacks.TerminateOnNaN(),
        lambda directory: keras.callbacks.SwapEMAWeights(),
        lambda directory: keras.callbacks.BackupAndRestore(directory),
        lambda directory: type("Mine", (keras.callbacks.EarlyStopping,), {})(),
        lambda directory: PreemptionCheckpoint(directory),
    ],
    ids=["stopping", "plateau", "schedule", "NaN", "average", "backup", "subclass", "ours"],
)
def test_callbacks_that_change_the_training_are_refused(make: Callable[[Path], Any], tmp_path: Path) -> None:
    callback = make(tmp_path)
    name = type(callback).__name__
    with pytest.raises(errors.ConfigError, match=f"callback={name}.*\nHINT: give {name} to all workers"):
        OnChief(callback)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "callback=None (NoneType)"),
        ([keras.callbacks.Callback()], "(list)"),
        (keras.callbacks.CSVLogger, "(type)"),
        (keras.callbacks.CallbackList(), "a CallbackList"),
    ],
    ids=["None", "list", "class", "CallbackList"],
)
def test_what_is_not_one_callback_is_refused(value: Any, said: str) -> None:
    with pytest.raises(errors.ConfigError) as raised:
        OnChief(value)
    assert said in str(raised.value)
    assert "HINT: wrap each callback by itself" in str(raised.value)


def test_hook_before_the_model_is_refused() -> None:
    with pytest.raises(errors.ConfigError, match=r"on_epoch_end of OnChief\(Stopping\) .*before set_model"):
        OnChief(Stopping()).on_epoch_end(0)


def test_stopping_on_the_chief_alone_is_refused(worker_is: WorkerIs) -> None:
    worker_is(0)
    wrapper = OnChief(Stopping())
    wrapper.set_model(dense_model())
    with pytest.raises(errors.ConfigError, match=r"Stopping, .* stop_training in on_epoch_end(?s:.)*HINT: "):
        wrapper.on_epoch_end(0)


def test_stopping_is_allowed_to_who_is_alone() -> None:
    model = dense_model()
    model.fit(pipeline(), epochs=3, shuffle=False, verbose=0, callbacks=[OnChief(Stopping())])
    assert model.history.epoch == [0]


def test_workers_that_would_all_be_the_chief_are_refused() -> None:
    wrapper = OnChief(Recorder(), environ={"TF_CONFIG": TWO_WORKERS})
    with pytest.raises(errors.UnsupportedStrategyError, match="TF_CONFIG describes 2 workers"):
        wrapper.set_model(dense_model())


def test_names_are_public() -> None:
    assert tf_preempt.callbacks.OnChief is on_chief.OnChief
    assert "OnChief" in dir(tf_preempt.callbacks)
    with pytest.raises(AttributeError, match="no attribute 'OnWorker'"):
        _ = tf_preempt.callbacks.OnWorker


def logger() -> Any:
    return keras.callbacks.CSVLogger("logs/x.csv")


@pytest.mark.parametrize(
    ("callbacks", "worker", "workers", "warned"),
    [
        ([logger], 1, 2, True),
        ([logger], 0, 2, False),
        ([logger], 0, 1, False),
        ([lambda: OnChief(logger())], 1, 2, False),
        ([Stopping, lambda: keras.callbacks.EarlyStopping("loss")], 1, 2, False),
        ([], 1, 2, False),
    ],
    ids=["bare", "on the chief", "alone", "wrapped", "no files", "none"],
)
def test_files_that_two_workers_write_are_warned_of(
    callbacks: list[Any], worker: int, workers: int, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    made = [make() for make in callbacks]
    on_chief.warn_of_shared_files(made, Cluster(worker=worker, workers=workers))
    assert ("Workers that write to one path" in caplog.text) is warned


def test_the_warning_comes_once_and_names_callbacks_paths_and_cure(caplog: pytest.LogCaptureFixture) -> None:
    writers = [
        logger(),
        keras.callbacks.ModelCheckpoint("best.keras"),
        keras.callbacks.TensorBoard("board"),
    ]
    for _ in range(2):
        on_chief.warn_of_shared_files(writers, Cluster(worker=1, workers=2))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    message = record.getMessage()
    assert "Worker 1 of 2" in message
    assert "CSVLogger('logs/x.csv'), ModelCheckpoint('best.keras'), TensorBoard('board')" in message
    assert "HINT: wrap them in tf_preempt.callbacks.OnChief(...)" in message
    assert "cannot be seen from here" in message


def test_preemption_checkpoint_looks_at_the_other_callbacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    name = "tf_preempt.callbacks.preemption_checkpoint.warn_of_shared_files"
    monkeypatch.setattr(name, lambda callbacks, cluster: seen.append((list(callbacks), cluster)))
    other = Stopping()
    ours = PreemptionCheckpoint(tmp_path, verbose=0)
    dense_model().fit(pipeline(), shuffle=False, verbose=0, callbacks=[other, ours])
    ((callbacks, cluster),) = seen
    assert other in callbacks
    assert cluster == Cluster()


def test_best_value_outlives_an_interruption(tmp_path: Path) -> None:
    """The loss falls, and the highest counts as the best: it is that of the first epoch."""

    def callbacks(ours: PreemptionCheckpoint) -> list[Any]:
        path = str(tmp_path / "best-{epoch}.weights.h5")
        best = keras.callbacks.ModelCheckpoint(
            path, "loss", mode="max", save_best_only=True, save_weights_only=True
        )
        return [OnChief(best), ours]

    trained = Program(build=lambda: dense_model("sgd"), callbacks=callbacks).run_interrupted(tmp_path / "run")
    assert trained is not None
    losses = trained.history["loss"]
    assert losses[0] == max(losses)
    assert [path.name for path in tmp_path.glob("best-*")] == ["best-1.weights.h5"]
