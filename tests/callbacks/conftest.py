"""The warning about op determinism comes once in a process; here only its own tests hear it."""

from __future__ import annotations

import pytest

from tests import logical_cpus  # noqa: F401 - it acts when it is imported
from tf_preempt.checkpointing import determinism


@pytest.fixture(autouse=True)
def _determinism_was_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(determinism, "_warned", True)
