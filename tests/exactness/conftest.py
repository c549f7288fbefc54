"""The warning about op determinism comes once in a process; here only its own tests hear it."""

from __future__ import annotations

import pytest

from tf_preempt.checkpointing import determinism


@pytest.fixture(autouse=True)
def _determinism_was_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(determinism, "_warned", True)
