"""How `fit` is left on a notice, and that a child process that is ended is none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest

from tests.callbacks import lives
from tf_preempt.callbacks import PreemptionCheckpoint
from tf_preempt.errors import Preempted

ENDLESS = 100_000


class Witness(keras.callbacks.Callback):
    """Notes which hooks of a callback are called, and does something at the end of the third batch."""

    def __init__(self, act: Callable[[], None]) -> None:
        super().__init__()
        self.act = act
        self.hooks: list[str] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.hooks.append("epoch begins")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.hooks.append("epoch ends")

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.hooks.append("batch begins")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.hooks.append("batch ends")
        if self.hooks.count("batch ends") == 3:
            self.act()

    def on_train_end(self, logs: Any = None) -> None:
        self.hooks.append("training ends")


def fit(directory: Path, witness: Witness, *, epochs: int, on_preemption: Any = None) -> None:
    ours = PreemptionCheckpoint(directory, save_every=None, on_preemption=on_preemption)
    data = lives.pipeline()
    lives.dense_model().fit(data, epochs=epochs, verbose=0, shuffle=False, callbacks=[witness, ours])


def give_notice() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def notebook() -> types.ModuleType:
    """What IPython looks like in a kernel."""
    module = types.ModuleType("IPython")
    module.get_ipython = lambda: types.SimpleNamespace(kernel=1)  # type: ignore[attr-defined]
    return module


@pytest.mark.parametrize(
    ("on_preemption", "ipython", "left_by"),
    [
        (None, None, SystemExit),
        ("exit", notebook(), SystemExit),
        ("raise", None, Preempted),
        (None, notebook(), Preempted),
    ],
    ids=["script", "exit in a notebook", "raise in a script", "notebook"],
)
def test_fit_is_left_by_an_exception_after_a_whole_step_and_no_hook_tells_of_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_preemption: Any, ipython: Any, left_by: type
) -> None:
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    witness = Witness(give_notice)
    with pytest.raises(left_by) as raised:
        fit(tmp_path, witness, epochs=ENDLESS, on_preemption=on_preemption)
    assert getattr(raised.value, "exit_code", getattr(raised.value, "code", None)) == 42
    assert "training ends" not in witness.hooks
    assert witness.hooks[-1] in {"batch ends", "epoch begins"}
    assert witness.hooks.count("batch begins") == witness.hooks.count("batch ends")
    assert (tmp_path / "ckpt-1.manifest.json").exists()


def end_a_program() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    child.terminate()
    assert child.wait(60) == -signal.SIGTERM
    assert child.stdin is not None
    child.stdin.close()


def end_a_forked_child() -> None:
    pid = os.fork()
    if not pid:
        signal.sigtimedwait([], 60)
        os._exit(1)
    os.kill(pid, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("end_a_child", [end_a_program, end_a_forked_child])
def test_a_child_that_is_ended_while_training_is_no_notice(
    tmp_path: Path, end_a_child: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    witness = Witness(end_a_child)
    fit(tmp_path, witness, epochs=2)
    assert witness.hooks[-1] == "training ends"
    assert witness.hooks.count("epoch ends") == 2
    assert "Notice on worker" not in caplog.text
