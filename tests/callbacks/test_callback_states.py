from __future__ import annotations

import collections
import json
import logging
import random
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_preempt.callbacks import OnChief, logs
from tf_preempt.callbacks.callback_states import CallbackStates
from tf_preempt.checkpointing.startup import Cluster

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning"  # Keras's own callbacks with NumPy 2
)

OURS = keras.callbacks.Callback()


class Counter(keras.callbacks.Callback):
    """Keeps state in a plain attribute, and says nothing of it."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0


class Saved(Counter):
    """The same, with the protocol."""

    def get_state(self) -> Any:
        return {"count": self.count}

    def set_state(self, state: Any) -> None:
        self.count = state["count"]


def model() -> keras.Model:
    made = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    made.compile("sgd", "mse")
    return made


def begun(callback: Any, of_model: Any) -> Any:
    callback.set_model(of_model)
    callback.on_train_begin()
    return callback


def move(callbacks: list[Any], to: list[Any]) -> None:
    """Takes the states of callbacks and restores them to others, through what a checkpoint holds."""
    values, tensors = CallbackStates([OURS, *callbacks], ignore=OURS).take()
    kept = logs.decode(json.loads(json.dumps(logs.encode(values), allow_nan=False)))
    saved = {name: tf.constant(value) for name, value in tensors.items()}
    CallbackStates([OURS, *to], ignore=OURS).restore(kept, saved)


def test_early_stopping_with_its_best_weights() -> None:
    trained = model()
    first = begun(keras.callbacks.EarlyStopping("loss", restore_best_weights=True, patience=3), trained)
    for epoch, loss in enumerate([0.3, 0.1, 0.2]):
        trained.layers[0].bias.assign([float(epoch)])
        first.on_epoch_end(epoch, {"loss": loss})

    other = model()
    second = begun(keras.callbacks.EarlyStopping("loss", restore_best_weights=True, patience=3), other)
    move([first], [second])

    assert (second.wait, second.best, second.best_epoch) == (1, 0.1, 1)
    assert [array.tobytes() for array in second.best_weights] == [
        np.asarray(array).tobytes() for array in first.best_weights
    ]
    for epoch in (3, 4):
        second.on_epoch_end(epoch, {"loss": 1.0})
    assert other.stop_training
    second.on_train_end()
    assert other.layers[0].bias.numpy() == [1.0]


def test_reduce_on_plateau_goes_on_counting() -> None:
    def plateau() -> Any:
        return keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=2, cooldown=1)

    first, of_second = begun(plateau(), model()), model()
    for epoch, loss in enumerate([0.3, 0.3]):
        first.on_epoch_end(epoch, {"loss": loss})
    second = begun(plateau(), of_second)
    move([first], [second])
    before = float(of_second.optimizer.learning_rate)
    second.on_epoch_end(2, {"loss": 0.3})
    assert float(of_second.optimizer.learning_rate) == before / 2


def test_model_checkpoint_knows_the_best(tmp_path: Any) -> None:
    def keeper() -> Any:
        path = str(tmp_path / "{epoch}.keras")
        return keras.callbacks.ModelCheckpoint(path, monitor="loss", save_best_only=True)

    first = begun(keeper(), model())
    first.on_epoch_begin(0)
    first.on_epoch_end(0, {"loss": 0.1})
    second = begun(keeper(), model())
    move([first], [second])
    second.on_epoch_begin(1)
    second.on_epoch_end(1, {"loss": 0.2})
    assert [path.name for path in tmp_path.iterdir()] == ["1.keras"]


def test_model_checkpoint_goes_on_counting_batches(tmp_path: Any) -> None:
    def keeper() -> Any:
        return keras.callbacks.ModelCheckpoint(
            str(tmp_path / "{batch}.weights.h5"), save_weights_only=True, save_freq=5
        )

    first = begun(keeper(), model())
    first.on_epoch_begin(0)
    for batch in range(3):
        first.on_train_batch_end(batch, {"loss": 1.0})
    second = begun(keeper(), model())
    second.on_epoch_begin(0)
    move([first], [second])
    for batch in (3, 4):
        second.on_train_batch_end(batch, {"loss": 1.0})
    assert [path.name for path in tmp_path.iterdir()] == ["5.weights.h5"]


def test_csv_logger_keeps_its_columns(tmp_path: Any) -> None:
    """Columns are those of the first epoch's logs, and for each one for the validation."""

    def logger() -> Any:
        return begun(keras.callbacks.CSVLogger(str(tmp_path / "log.csv"), append=True), None)

    first = logger()
    first.on_epoch_end(0, {"loss": 0.5, "learning_rate": 0.1})
    first.on_train_end()
    second = logger()
    move([first], [second])
    second.on_epoch_end(1, {"loss": 0.25, "learning_rate": 0.1, "val_loss": 0.75})
    second.on_train_end()
    assert (tmp_path / "log.csv").read_text().split() == [
        "epoch,learning_rate,loss,val_learning_rate,val_loss",
        "0,0.1,0.5,NA,NA",
        "1,0.1,0.25,NA,0.75",
    ]


@pytest.mark.parametrize("best", [float("inf"), -0.0, 0.1, np.float32(0.1), None])
def test_best_value_keeps_its_bits(best: Any) -> None:
    first, second = (keras.callbacks.EarlyStopping("loss") for _ in range(2))
    first.best = best
    move([first], [second])
    assert repr(second.best) == repr(None if best is None else float(best))


def test_callback_with_the_protocol() -> None:
    first, second = Saved(), Saved()
    first.count = 7
    move([Counter(), first], [Counter(), second])
    assert second.count == 7


def test_state_that_json_cannot_hold_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    broken, saved = Saved(), Saved()
    broken.count = {1, 2}  # type: ignore[assignment]
    states = CallbackStates([broken, saved], ignore=OURS)
    with caplog.at_level(logging.WARNING, "tf_preempt"):
        values = [states.take()[0] for _ in range(3)]
    assert values == [[["Saved", None], ["Saved", {"state": {"count": 0}}]]] * 3
    (message,) = [record.getMessage() for record in caplog.records]
    assert "Saved" in message
    assert "HINT" in message


def test_unknown_callback_with_state_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    counter = Counter()
    states = CallbackStates([OURS, counter], ignore=OURS)
    with caplog.at_level(logging.WARNING, "tf_preempt"):
        states.take()
        assert not caplog.records
        counter.count = 1
        for _ in range(3):
            states.take()
    (message,) = [record.getMessage() for record in caplog.records]
    assert "Counter" in message
    assert "count" in message
    assert "get_state" in message


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda callback: callback.seen.update(a=1), id="dict"),
        pytest.param(lambda callback: setattr(callback, "array", np.ones(2)), id="created later"),
        pytest.param(lambda callback: callback.rows.append([1]), id="nested list"),
        pytest.param(lambda callback: callback.recent.append(0.5), id="deque"),
        pytest.param(lambda callback: callback.arrays["a"][0].put(5000, 1.0), id="middle of a large array"),
        pytest.param(lambda callback: setattr(callback, "best", np.float32(0.5)), id="NumPy number"),
        pytest.param(lambda callback: callback.random.random(), id="generator of Python"),
        pytest.param(lambda callback: callback.generator.random(), id="generator of NumPy"),
        pytest.param(lambda callback: callback.legacy.rand(), id="legacy generator of NumPy"),
        pytest.param(lambda callback: callback.long.append(0), id="long list"),
    ],
)
def test_state_in_containers_and_arrays_is_seen(change: Any, caplog: pytest.LogCaptureFixture) -> None:
    callback = keras.callbacks.Callback()
    callback.seen, callback.rows = {}, []
    callback.recent, callback.best = collections.deque([1.0], maxlen=3), np.float32(1.0)
    callback.arrays, callback.long = {"a": [np.zeros(10_000)]}, [0] * 20_000
    callback.random, callback.generator = random.Random(1), np.random.default_rng(1)
    callback.legacy = np.random.RandomState(1)
    callback.rows.append(callback.rows)  # a container in itself does no harm
    states = CallbackStates([callback], ignore=OURS)
    change(callback)
    states.take()
    assert "keeps state that is not saved" in caplog.text


class Holder:
    """A plain object of the program, with a counter."""

    def __init__(self) -> None:
        self.n = 0

    def __call__(self, epoch: int, rate: float) -> float:
        self.n += 1
        return rate / self.n

    def rate(self, epoch: int, rate: float) -> float:
        return self(epoch, rate)


def derived(base: type, **arguments: Any) -> Any:
    """A callback of a class derived from one of Keras's, which keeps something of its own."""

    class Derived(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(**arguments)
            self.mine = 0

        def on_predict_begin(self, logs: Any = None) -> None:
            self.mine += 1

    return Derived()


BASES = [
    (keras.callbacks.EarlyStopping, {"monitor": "loss"}),
    (keras.callbacks.ReduceLROnPlateau, {"monitor": "loss"}),
    (keras.callbacks.ModelCheckpoint, {"filepath": "never.keras", "monitor": "loss", "save_best_only": True}),
    (keras.callbacks.CSVLogger, {"filename": "never.csv"}),
    (keras.callbacks.TensorBoard, {"log_dir": "never"}),
    (keras.callbacks.SwapEMAWeights, {}),
]


@pytest.mark.parametrize(("base", "arguments"), BASES, ids=[base.__name__ for base, _ in BASES])
def test_what_a_class_derived_from_keras_s_adds_is_warned_of(
    base: type,
    arguments: Any,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    callback = derived(base, **arguments)
    callback._writers = {}  # of TensorBoard, which makes it in set_model
    states = CallbackStates([callback], ignore=OURS)
    for name in ("wait", "best", "cooldown_counter", "keys", "_global_train_batch", "_last_batch_seen"):
        if hasattr(callback, name):
            setattr(callback, name, 3)
    states.take()
    assert not caplog.records
    callback.on_predict_begin()
    states.take()
    (message,) = caplog.messages
    assert "Derived keeps state that is not saved (mine)" in message


def test_protocol_of_a_derived_class_does_not_cost_what_keras_keeps() -> None:
    class Stopping(keras.callbacks.EarlyStopping):
        mine = 0

        def get_state(self) -> Any:
            return self.mine

        def set_state(self, state: Any) -> None:
            self.mine = state

    first, second = Stopping("loss"), Stopping("loss")
    first.wait, first.mine = 2, 5
    move([first], [second])
    assert (second.wait, second.mine) == (2, 5)


def with_closure() -> tuple[Any, Any]:
    seen: list[int] = []

    class Closure(keras.callbacks.Callback):
        def on_predict_begin(self, logs: Any = None) -> None:
            seen.append(1)

    callback = Closure()
    return callback, callback.on_predict_begin


def with_class_attribute() -> tuple[Any, Any]:
    class Shared(keras.callbacks.Callback):
        rows: list[int] = []  # noqa: RUF012 - shared, as somebody may have it who forgets `self`

    return Shared(), lambda: Shared.rows.append(1)


def with_attribute(value: Any, change: Any) -> tuple[Any, Any]:
    callback = keras.callbacks.Callback()
    callback.held = value
    return callback, lambda: change(value)


def with_schedule(of_holder: Any) -> tuple[Any, Any]:
    schedule = of_holder(Holder())
    return keras.callbacks.LearningRateScheduler(schedule), lambda: schedule(0, 0.1)


def nested() -> Any:
    outer = Holder()
    outer.inner, outer.inner.outer = Holder(), outer  # type: ignore[attr-defined]
    return outer


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (with_closure, "seen, which on_predict_begin uses"),
        (with_class_attribute, "rows"),
        (lambda: with_attribute(Holder(), lambda holder: holder(0, 0.1)), "held"),
        (lambda: with_attribute(nested(), lambda holder: holder.inner(0, 0.1)), "held"),
        (
            lambda: with_attribute(
                keras.random.SeedGenerator(1), lambda seed: keras.random.uniform((), seed=seed)
            ),
            "held",
        ),
        (lambda: with_attribute(tf.random.Generator.from_seed(1), lambda random: random.normal(())), "held"),
        (lambda: with_schedule(lambda holder: holder), "schedule"),
        (lambda: with_schedule(lambda holder: holder.rate), "the Holder of schedule"),
    ],
    ids=["closure", "class", "object", "in object", "SeedGenerator", "Generator", "scheduler", "method"],
)
def test_state_outside_of_the_callback_s_own_attributes_is_seen(
    make: Any, named: str, caplog: pytest.LogCaptureFixture
) -> None:
    callback, change = make()
    states = CallbackStates([callback], ignore=OURS)
    states.take()
    assert not caplog.records
    change()
    states.take()
    (message,) = caplog.messages
    assert f"({named})" in message


def test_seed_generator_of_the_model_is_saved_with_it(caplog: pytest.LogCaptureFixture) -> None:
    dropout = keras.layers.Dropout(0.5)
    callback = keras.callbacks.Callback()
    callback.set_model(keras.Sequential([keras.layers.Input((2,)), dropout]))
    callback.seeds = dropout.seed_generator
    states = CallbackStates([callback], ignore=OURS)
    keras.random.uniform((), seed=dropout.seed_generator)
    states.take()
    assert not caplog.records


@pytest.mark.parametrize(
    "callback",
    [
        keras.callbacks.History(),
        keras.callbacks.ProgbarLogger(),
        keras.callbacks.TerminateOnNaN(),
        keras.callbacks.LambdaCallback(),
        Saved(),
    ],
    ids=lambda callback: type(callback).__name__,
)
def test_no_warning_of_what_needs_none(callback: Any, caplog: pytest.LogCaptureFixture) -> None:
    states = CallbackStates([callback], ignore=OURS)
    callback.set_params({"epochs": 3, "steps": 2, "verbose": 0})
    with caplog.at_level(logging.WARNING, "tf_preempt"):
        states.take()
    assert not caplog.records


def test_containers_that_a_callback_gives_come_back() -> None:
    first, second = Saved(), Saved()
    given = {"rows": [[1, 2.5], []], "by name": {"a": {"b": None, "c": True}}, "far": float("inf")}
    first.count = given  # type: ignore[assignment]
    move([first], [second])
    assert second.count == given


def test_keys_that_would_become_strings_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    saved = Saved()
    saved.count = {1: "one"}  # type: ignore[assignment]
    with caplog.at_level(logging.WARNING, "tf_preempt"):
        values, _ = CallbackStates([saved], ignore=OURS).take()
    assert values == [["Saved", None]]
    assert "The key 1 of type int" in caplog.text
    assert "HINT: use strings as keys" in caplog.text


def test_another_callback_at_the_place_begins_afresh(caplog: pytest.LogCaptureFixture) -> None:
    first, second, early = Saved(), Saved(), keras.callbacks.EarlyStopping("loss")
    first.count, early.wait = 7, 2
    with caplog.at_level(logging.WARNING, "tf_preempt"):
        move([early, first], [second, keras.callbacks.EarlyStopping("loss")])
    assert second.count == 0
    assert "Callback 0 is a Saved, in the checkpoint it was EarlyStopping" in caplog.text


def test_callback_that_the_checkpoint_does_not_have() -> None:
    first, second, more = Saved(), Saved(), Saved()
    first.count = 7
    move([first], [second, more])
    assert (second.count, more.count) == (7, 0)


@pytest.mark.parametrize(("append", "warned"), [(False, True), (True, False)])
def test_csv_logger_without_rows_in_the_checkpoint_is_warned_of(
    append: bool, warned: bool, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """There was no file when the checkpoint was made, or an older release made it."""
    logger = keras.callbacks.CSVLogger(str(tmp_path / "log.csv"), append=append)
    states = CallbackStates([logger], ignore=None)
    states.restore(*states.take())
    assert ("begins its file anew" in caplog.text) is warned


def test_csv_file_that_cannot_be_read_costs_no_save_and_is_warned_of_once(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "log.csv").mkdir()
    logger, saved = keras.callbacks.CSVLogger(str(tmp_path / "log.csv")), Saved()
    states = CallbackStates([logger, saved], ignore=None)
    for _ in range(2):
        values, tensors = states.take()
    assert (values[1], tensors) == (["Saved", {"state": {"count": 0}}], {})
    (message,) = caplog.messages
    assert "rows of CSVLogger" in message
    assert "HINT" in message


def on_worker(worker: int, callback: Any) -> OnChief:
    """The callback in `OnChief`, on one of two workers."""
    wrapper = OnChief(callback)
    wrapper._cluster = Cluster(worker=worker, workers=2)
    return wrapper


class NeverSet(Saved):
    """Must not be touched where it does not run."""

    def get_state(self) -> Any:
        raise AssertionError("asked for its state on a worker where it does not run")

    def set_state(self, state: Any) -> None:
        raise AssertionError("given a state on a worker where it does not run")


@pytest.mark.parametrize(
    ("wrap_first", "wrap_second"),
    [(True, True), (True, False), (False, True)],
    ids=["both", "first", "second"],
)
def test_state_in_on_chief_is_that_of_the_callback_itself(wrap_first: bool, wrap_second: bool) -> None:
    def keeper() -> Any:
        return keras.callbacks.ModelCheckpoint("x.keras", monitor="loss", save_best_only=True)

    first, second, last, other_last = keeper(), keeper(), Saved(), Saved()
    first.best, last.count = 0.25, 7
    move(
        [on_worker(0, first) if wrap_first else first, last],
        [on_worker(0, second) if wrap_second else second, other_last],
    )
    assert (second.best, other_last.count) == (0.25, 7)


def test_on_other_workers_a_callback_in_on_chief_is_left_alone(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    logger, counter, last = keras.callbacks.CSVLogger(str(tmp_path / "log.csv")), Counter(), Saved()
    idle = [on_worker(1, one) for one in (NeverSet(), logger, counter)]
    states = CallbackStates([*idle, last], ignore=OURS)
    counter.count, last.count = 3, 7
    with caplog.at_level(logging.WARNING, "tf_preempt"):
        values, tensors = states.take()
        of_chief = [["NeverSet", {"state": {"count": 1}}], ["CSVLogger", None], ["Counter", None], values[3]]
        last.count = 0
        states.restore(of_chief, tensors)
    assert values[:3] == [["NeverSet", None], ["CSVLogger", None], ["Counter", None]]
    assert last.count == 7
    assert not caplog.records


def test_on_the_chief_a_logger_in_on_chief_is_warned_of(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    states = CallbackStates([on_worker(0, keras.callbacks.CSVLogger(str(tmp_path / "log.csv")))], ignore=OURS)
    states.restore(*states.take())
    assert "begins its file anew" in caplog.text


def test_history_in_on_chief_is_keras_s_own_to_keep() -> None:
    assert CallbackStates([on_worker(0, keras.callbacks.History())], ignore=OURS).take() == ([], {})
