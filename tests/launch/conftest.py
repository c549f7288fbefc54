from __future__ import annotations

import time
from collections.abc import Callable

import psutil
import pytest


@pytest.fixture
def gone() -> Callable[[psutil.Process], bool]:
    """Says whether a process ends within 15 seconds; one that only waits to be taken note of has ended."""

    def gone(process: psutil.Process) -> bool:
        end = time.monotonic() + 15
        while time.monotonic() < end:
            try:
                process.wait(0.02)
                return True
            except psutil.TimeoutExpired:
                pass
            try:
                if process.status() == psutil.STATUS_ZOMBIE:
                    return True
            except psutil.NoSuchProcess:
                return True
        return False

    return gone
