from __future__ import annotations

import logging
import sys
import types

import pytest

from tf_preempt.checkpointing.leaving import Leaving, in_notebook
from tf_preempt.errors import CoordinationError, Preempted
from tf_preempt.termination.auto import Platform
from tf_preempt.termination.config import TerminationConfig

STATUSES = [
    (Platform.LOCAL, 42),
    (Platform.SLURM, 42),
    (Platform.GCE, 143),
    (Platform.KUBERNETES, 143),
    (Platform.AGENT_PLATFORM, 134),
]


@pytest.mark.parametrize(("platform", "status"), STATUSES)
def test_a_script_leaves_with_its_platforms_restart_status(
    platform: Platform, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    leaving = Leaving(platform, TerminationConfig(), raise_instead=False)
    with caplog.at_level(logging.WARNING, logger="tf_preempt"), pytest.raises(SystemExit) as raised:
        leaving.leave("Saved step 7.")
    assert raised.value.code == leaving.exit_code == status
    assert caplog.messages == [f"Saved step 7. Leaving with exit status {status}."]


@pytest.mark.parametrize("raise_instead", [False, True])
def test_an_error_that_would_come_back_asks_nobody_for_a_restart(raise_instead: bool) -> None:
    asked: list[None] = []
    config = TerminationConfig(exit_fn=lambda: asked.append(None))
    leaving = Leaving(Platform.SLURM, config, raise_instead=raise_instead)
    with pytest.raises(CoordinationError if raise_instead else SystemExit) as raised:
        leaving.leave_for_good("Worker 1 failed.")
    assert str(raised.value) == ("Worker 1 failed." if raise_instead else "1")
    assert not asked


@pytest.mark.parametrize(("platform", "status"), STATUSES)
def test_a_notebook_gets_an_exception_that_holds_the_status_and_says_how_to_go_on(
    platform: Platform, status: int
) -> None:
    leaving = Leaving(platform, TerminationConfig(), raise_instead=True)
    with pytest.raises(Preempted, match=r"(?s)Saved step 7\..*HINT: run the cell again") as raised:
        leaving.leave("Saved step 7.")
    assert raised.value.exit_code == status


def test_ipython_shows_the_message_in_place_of_a_traceback() -> None:
    leaving = Leaving(Platform.LOCAL, TerminationConfig(), raise_instead=True)
    with pytest.raises(Preempted) as raised:
        leaving.leave("Saved step 7.")
    shown = raised.value._render_traceback_()  # what IPython asks an exception for
    assert shown == ["Preempted: Saved step 7.\nHINT: run the cell again to go on from there"]


@pytest.mark.parametrize("raise_instead", [False, True])
def test_the_users_exit_fn_ends_the_program_its_own_way(raise_instead: bool) -> None:
    config = TerminationConfig(exit_fn=lambda: sys.exit(77))
    with pytest.raises(SystemExit) as raised:
        Leaving(Platform.LOCAL, config, raise_instead=raise_instead).leave("Saved.")
    assert raised.value.code == 77


@pytest.mark.parametrize("raise_instead", [False, True])
def test_an_exit_fn_that_returns_is_followed_by_the_restart_status(raise_instead: bool) -> None:
    called: list[int] = []
    config = TerminationConfig(exit_fn=lambda: called.append(1))
    with pytest.raises(SystemExit) as raised:
        Leaving(Platform.GCE, config, raise_instead=raise_instead).leave("Saved.")
    assert (called, raised.value.code) == ([1], 143)


def ipython(shell: object) -> types.ModuleType:
    module = types.ModuleType("IPython")
    module.get_ipython = lambda: shell  # type: ignore[attr-defined]
    return module


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (None, False),
        (ipython(None), False),
        (ipython(object()), False),  # IPython in a terminal
        (ipython(types.SimpleNamespace(kernel=1)), True),
    ],
)
def test_a_notebook_is_told_by_its_kernel(
    monkeypatch: pytest.MonkeyPatch, module: types.ModuleType | None, expected: bool
) -> None:
    monkeypatch.setitem(sys.modules, "IPython", module)
    assert in_notebook() is expected
