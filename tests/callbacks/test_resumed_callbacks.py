"""Each kind of callback beside ours, interrupted and resumed: what it leaves is what it would have left.

docs/callbacks.md has a table with the tests of this file.
"""

from __future__ import annotations

import json
import logging
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.callbacks import lives
from tests.callbacks.lives import Interrupt, Program, assert_identical, new_process
from tf_preempt.callbacks import OnChief

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning"  # Keras's own callbacks with NumPy 2
)
SCRIPT = Path(__file__).parent / "scripts" / "killed_logger.py"


class InterruptValidation(Interrupt):
    """The same, at the end of a batch of the validation."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        pass

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        super().on_train_batch_end(batch, logs)


INTERRUPTS: dict[str, Callable[[], Interrupt]] = {
    "before the first row": lambda: Interrupt(0, 1),
    # One bad epoch is behind, and one is running.
    "in an epoch": lambda: Interrupt(3, 2),
    "before the validation": lambda: Interrupt(3, lives.STEPS - 1),
    "in the validation": lambda: InterruptValidation(3, 1),
}

EPOCHS = 5  # two good ones and three bad ones: then EarlyStopping ends the training

# Where our callback stands among the others, and where it is interrupted.
LIVES = [
    ("first", "before the first row"),
    ("first", "in an epoch"),
    ("last", "in an epoch"),
    ("last", "before the validation"),
    ("first", "in the validation"),
    ("last", "in the validation"),
]


class Drift(keras.callbacks.Callback):
    """Moves the bias by what it has counted, and forgets it when a training begins."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def on_train_begin(self, logs: Any = None) -> None:
        self.count = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.count += 100

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.count += 1
        self.model.layers[-1].bias.assign_add([1e-3 * self.count])

    def get_state(self) -> dict[str, Any]:
        return {"count": self.count, "far": np.float32("inf")}

    def set_state(self, state: dict[str, Any]) -> None:
        if state["far"] != float("inf"):
            raise ValueError(state)
        self.count = state["count"]


class Written(Drift):
    """The same, writing its count at the end in place of changing the model."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.count += 1

    def on_train_end(self, logs: Any = None) -> None:
        self._file.write_text(json.dumps(self.count))


class Rates(keras.callbacks.Callback):
    """Writes the learning rate at each epoch's end."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file
        self._rates: list[float] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._rates.append(float(self.model.optimizer.learning_rate))

    def on_train_end(self, logs: Any = None) -> None:
        self._file.write_text(json.dumps(self._rates))

    def get_state(self) -> list[float]:
        return self._rates

    def set_state(self, state: list[float]) -> None:
        self._rates = state


def averaging() -> keras.Model:
    return lives.dense_model(keras.optimizers.SGD(0.2, use_ema=True, ema_momentum=0.9))


def others(directory: Path) -> list[Any]:
    """One of each kind, and each that writes files in `OnChief`, too."""
    callbacks = keras.callbacks

    def logger(name: str, *, append: bool) -> Any:
        loggers.append(callbacks.CSVLogger(str(directory / name), append=append))
        return loggers[-1]

    def keeper(name: str, **options: Any) -> Any:
        return callbacks.ModelCheckpoint(
            str(directory / f"{name}-{{epoch}}.weights.h5"), save_weights_only=True, **options
        )

    best = {"monitor": "loss", "save_best_only": True}
    return [
        callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
        callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=2, min_lr=0.0),
        callbacks.EarlyStopping("loss", patience=3, restore_best_weights=True),
        callbacks.SwapEMAWeights(swap_on_epoch=True),
        Drift(),
        Rates(directory / "rates"),
        logger("append.csv", append=True),
        logger("anew.csv", append=False),
        keeper("best", **best),
        keeper("every", save_freq=3),
        callbacks.TensorBoard(str(directory / "board"), update_freq=1),
        Written(directory / "count"),
        OnChief(logger("append-chief.csv", append=True)),
        OnChief(logger("anew-chief.csv", append=False)),
        OnChief(keeper("best-chief", **best)),
        OnChief(keeper("every-chief", save_freq=3)),
        OnChief(callbacks.TensorBoard(str(directory / "board-chief"))),
        OnChief(Written(directory / "count-chief")),
    ]


def house(directory: Path, place: str) -> Program:
    def callbacks(ours: Any) -> list[Any]:
        return [ours, *others(directory)] if place == "first" else [*others(directory), ours]

    return Program(build=averaging, callbacks=callbacks, epochs=7)


loggers: list[Any] = []


def close_loggers() -> None:
    """Those of interrupted trainings have seen no end."""
    while loggers:
        loggers.pop().on_train_end()


class Ran:
    """A training that has come to its end, and the directory to which its callbacks have written."""

    def __init__(self, directory: Path, place: str, when: str = "") -> None:
        directory.mkdir()
        (directory / "append.csv").write_text("what was there before\n")
        program = house(directory, place)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)
            if when:
                assert program.run(directory / "ckpt", interrupt=INTERRUPTS[when]()) is None
            trained = program.run(directory / "ckpt")
        close_loggers()
        assert trained is not None
        self.directory, self.trained = directory, trained


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return Ran(tmp_path_factory.mktemp("callbacks") / "whole", "first")


@pytest.fixture(scope="module", params=LIVES, ids=[f"ours {place}, {when}" for place, when in LIVES])
def resumed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    place, when = request.param
    return Ran(tmp_path_factory.mktemp("callbacks") / "lives", place, when)


def test_weights_and_history(whole: Ran, resumed: Ran) -> None:
    """What EarlyStopping, SwapEMAWeights, LearningRateScheduler, ReduceLROnPlateau and Drift have made."""
    assert len(whole.trained.epochs) == EPOCHS
    assert_identical(resumed.trained, whole.trained)


def test_rates(whole: Ran, resumed: Ran) -> None:
    """LearningRateScheduler multiplies the present rate; ReduceLROnPlateau halves it after two bad epochs."""
    rates = json.loads((whole.directory / "rates").read_text())
    assert rates == pytest.approx([0.18, 0.162, 0.1458, 0.1458 * 0.45, 0.1458 * 0.45 * 0.9])
    assert (resumed.directory / "rates").read_text() == json.dumps(rates)


@pytest.mark.parametrize("name", ["append.csv", "anew.csv", "append-chief.csv", "anew-chief.csv"])
def test_csv_file(whole: Ran, resumed: Ran, name: str) -> None:
    rows = (whole.directory / name).read_bytes()
    assert rows.count(b"\n") == 1 + EPOCHS
    assert (name == "append.csv") == rows.startswith(b"what was there before\n")
    assert (resumed.directory / name).read_bytes() == rows


@pytest.mark.parametrize("name", ["best", "best-chief", "every", "every-chief"])
def test_model_checkpoint(whole: Ran, resumed: Ran, name: str) -> None:
    files = [path.name for path in sorted(whole.directory.glob(f"{name}-?.*"))]
    epochs = (1, 2, 3, 4, 5) if "every" in name else (1, 2)
    assert files == [f"{name}-{epoch}.weights.h5" for epoch in epochs]
    assert [path.name for path in sorted(resumed.directory.glob(f"{name}-?.*"))] == files


@pytest.mark.parametrize(("name", "batches"), [("board", 25), ("board-chief", 0)])
def test_tensorboard(whole: Ran, resumed: Ran, name: str, batches: int) -> None:
    """Its axes go on: batches and epochs."""
    expected = points(whole.directory / name)
    assert points(resumed.directory / name) == expected
    steps = {step for _, tag, step, _ in expected if tag == "batch_loss"}
    assert steps == set(range(1, batches + 1))
    assert [step for _, tag, step, _ in expected if tag == "epoch_learning_rate"] == [0, 1, 2, 3, 4]


def points(directory: Path) -> list[tuple[str, str, int, float]]:
    """What TensorBoard would show: directory, tag, x and y of each point, the graph left out."""
    found = []
    for path in sorted(directory.rglob("events.out.tfevents.*")):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                if value.tag != "keras":
                    number = float(tf.make_ndarray(value.tensor))
                    found.append((path.parent.name, value.tag, event.step, number))
    return sorted(found)


@pytest.mark.parametrize("name", ["count", "count-chief"])
def test_callback_with_get_state(whole: Ran, resumed: Ran, name: str) -> None:
    assert json.loads((whole.directory / name).read_text()) == EPOCHS * (100 + lives.STEPS)
    assert (resumed.directory / name).read_text() == (whole.directory / name).read_text()


# ---------------------------------------------------------------------------------- one kind by itself


def test_averages_that_are_in_the_model_for_the_validation_only(tmp_path: Path) -> None:
    program = Program(
        build=averaging, epochs=2, callbacks=lambda ours: [ours, keras.callbacks.SwapEMAWeights()]
    )
    whole = program.run(tmp_path / "whole")
    assert program.run(tmp_path / "lives", interrupt=InterruptValidation(0, 1)) is None
    assert_identical(program.run(tmp_path / "lives"), whole)


def test_averages_with_the_same_objects_as_in_a_notebook(tmp_path: Path) -> None:
    swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    program = Program(build=averaging, callbacks=lambda ours: [swap, ours], epochs=2)
    assert program.run(tmp_path / "lives", interrupt=InterruptValidation(0, 1)) is None
    resumed = program.run(tmp_path / "lives")
    fresh = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    program = Program(build=averaging, callbacks=lambda ours: [fresh, ours], epochs=2)
    assert_identical(resumed, program.run(tmp_path / "whole"))


@pytest.mark.parametrize("place", ["first", "last"])
def test_csv_files_of_a_complete_run_that_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    files = {append: tmp_path / f"{append}.csv" for append in (True, False)}

    def callbacks(ours: Any) -> list[Any]:
        made = [keras.callbacks.CSVLogger(str(file), append=append) for append, file in files.items()]
        loggers.extend(made)
        return [ours, *made] if place == "first" else [*made, ours]

    program = Program(callbacks=callbacks, epochs=1)
    program.run(tmp_path / "ckpt")
    rows = [file.read_bytes() for file in files.values()]
    new_process(monkeypatch)
    files[True].unlink()  # as on a local disk of another node
    program.run(tmp_path / "ckpt")
    assert [file.read_bytes() for file in files.values()] == rows
    assert all(logger.csv_file.closed for logger in loggers)
    loggers.clear()


# In the other mode Keras empties the file itself; `test_csv_file` sees to that.
@pytest.mark.parametrize("mode", ["append", pytest.param("anew", marks=pytest.mark.exhaustive)])
def test_csv_file_after_a_kill_between_a_row_and_its_commit(
    tmp_path: Path, run_script: Any, mode: str
) -> None:
    def run(name: str, *kill: str) -> Any:
        (tmp_path / name).mkdir(exist_ok=True)
        arguments = [str(tmp_path / name), mode, *kill]
        return run_script(SCRIPT, *arguments, env={"CUDA_VISIBLE_DEVICES": "-1"}, timeout=120)

    assert run("whole").rc == 0
    assert run("lives", "kill").rc == -signal.SIGKILL
    rows = (tmp_path / "whole" / "log.csv").read_bytes()
    written = (tmp_path / "lives" / "log.csv").read_bytes()
    assert rows.startswith(written)
    assert written.count(b"\n") == 1 + 2  # header and two rows, of which the second is in no commit
    assert run("lives").rc == 0
    assert (tmp_path / "lives" / "log.csv").read_bytes() == rows


class Fail(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1:
            raise RuntimeError("the machine is gone")


@pytest.mark.parametrize(("append", "warned"), [(True, 1), (False, 0)])
def test_rows_of_a_life_without_any_checkpoint_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, append: bool, warned: int
) -> None:
    def program(*more: Any) -> Program:
        loggers.append(keras.callbacks.CSVLogger(str(tmp_path / "log.csv"), append=append))
        made = loggers[-1]
        return Program(callbacks=lambda ours: [made, ours, *more], epochs=2)

    with pytest.raises(RuntimeError, match="the machine is gone"):
        program(Fail()).run(tmp_path / "ckpt")
    program().run(tmp_path / "ckpt")
    close_loggers()
    said = [message for message in caplog.messages if "ended before its first checkpoint" in message]
    assert len(said) == warned
    assert all("append=False" in message for message in said)


def test_what_the_functions_of_a_lambda_callback_change_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    losses: list[float] = []
    keeps = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: losses.append(logs["loss"]))
    prints = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: logging.info("%d", epoch))
    program = Program(callbacks=lambda ours: [ours, keeps, prints], epochs=2)
    with caplog.at_level(logging.WARNING, "tf_preempt"):
        assert program.run(tmp_path, interrupt=Interrupt(1, 2)) is None
    (message,) = [message for message in caplog.messages if "keeps state that is not saved" in message]
    assert "LambdaCallback" in message
    assert "losses, which on_epoch_end uses" in message
