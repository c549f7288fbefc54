"""``on_preemption="stop"``: `fit` returns after the save, and no callback takes the rest for an epoch."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

import tf_preempt
from tests.callbacks import lives
from tf_preempt.callbacks import PreemptionCheckpoint
from tf_preempt.errors import ConfigError, Preempted

EPOCHS = 2


class Witness(keras.callbacks.Callback):
    """Notes all hooks; at one of them it gives notice.

    Args:
        at: name and number of the hook.
    """

    def __init__(self, at: tuple[str, int] | None = None) -> None:
        super().__init__()
        self.at = at
        self.hooks: list[tuple[str, int]] = []

    def note(self, name: str, number: int) -> None:
        self.hooks.append((name, number))
        if (name, number) == self.at:
            self.at = None
            lives.give_notice()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.note("epoch begins", epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.note("epoch ends", epoch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.note("batch ends", batch)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self.note("test batch ends", batch)

    def on_test_end(self, logs: Any = None) -> None:
        self.note("test ends", 0)

    def on_train_end(self, logs: Any = None) -> None:
        self.note("training ends", 0)


def fit(directory: Path, witness: Witness) -> tuple[keras.Model, PreemptionCheckpoint, Any]:
    keras.utils.set_random_seed(1)
    ours = PreemptionCheckpoint(directory, save_every=None, on_preemption="stop", verbose=0)
    model = lives.dense_model(metrics=["mae"])
    history = model.fit(
        lives.pipeline(),
        validation_data=lives.pipeline(seed=4),
        epochs=EPOCHS,
        verbose=0,
        shuffle=False,
        callbacks=[ours, witness],
    )
    return model, ours, history


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> lives.Trained:
    model, ours, _ = fit(tmp_path_factory.mktemp("undisturbed"), Witness())
    assert ours.preempted is None
    return lives.Trained(model=model)


@pytest.mark.parametrize(
    ("at", "last", "epochs"),
    [
        (("batch ends", 2), ("batch ends", 2), []),
        (("batch ends", lives.STEPS - 1), ("batch ends", lives.STEPS - 1), []),
        (("test batch ends", 1), ("test batch ends", 1), []),
        (("epoch ends", 0), ("epoch begins", 1), [0]),
    ],
    ids=["in training", "before the validation", "in the validation", "between epochs"],
)
def test_fit_returns_without_an_end_of_the_epoch_and_goes_on_exactly(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    undisturbed: lives.Trained,
    at: tuple[str, int],
    last: tuple[str, int],
    epochs: list[int],
) -> None:
    witness = Witness(at)
    model, ours, history = fit(tmp_path, witness)
    assert witness.hooks[-2:] == [last, ("training ends", 0)]
    assert history.epoch == epochs
    assert isinstance(ours.preempted, Preempted)
    assert ours.preempted.exit_code == 42
    assert "nobody will start it again" in caplog.text
    # Keras is itself again.
    after, data = Witness(), lives.pipeline()
    model.fit(data, validation_data=data, verbose=0, shuffle=False, callbacks=[after])
    assert after.hooks[-3:] == [("test ends", 0), ("epoch ends", 0), ("training ends", 0)]

    resumed = Witness()
    model, ours, _ = fit(tmp_path, resumed)
    assert ours.preempted is None
    steps = [hook for hook in witness.hooks + resumed.hooks if hook[0] == "batch ends"]
    assert steps == [("batch ends", batch) for batch in range(lives.STEPS)] * EPOCHS
    lives.assert_identical(lives.Trained(model=model), undisturbed)


def test_in_a_notebook_nothing_is_said_of_the_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module = types.ModuleType("IPython")
    module.get_ipython = lambda: types.SimpleNamespace(kernel=1)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", module)
    _, ours, _ = fit(tmp_path, Witness(("batch ends", 2)))
    assert ours.preempted is not None
    assert "is saved in" in caplog.text
    assert "exit status 0" not in caplog.text


def test_a_handler_has_no_fit_to_stop(tmp_path: Path) -> None:
    checkpoint = tf.train.Checkpoint(number=tf.Variable(0))
    with pytest.raises(ConfigError, match="on_preemption='stop': expected one of 'exit', 'raise', or None"):
        tf_preempt.PreemptionCheckpointHandler(None, checkpoint, tmp_path, on_preemption="stop")
