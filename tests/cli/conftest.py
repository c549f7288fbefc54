from __future__ import annotations

import contextlib
import pathlib
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

PYTHON = sys.executable
ENTRY = "from tf_preempt.cli.main import main\nmain()\n"


@pytest.fixture
def start_cli(start_script: Callable[..., Any]) -> Callable[..., Any]:
    """Starts ``tf-preempt`` with arguments; gives what `start_script` gives."""
    return lambda *arguments, **options: start_script(ENTRY, *arguments, **options)


@pytest.fixture
def cli(start_cli: Callable[..., Any]) -> Callable[..., Any]:
    """Runs ``tf-preempt`` with arguments to its end; gives what `run_script` gives."""
    return lambda *arguments, **options: start_cli(*arguments, **options).wait(60)


@pytest.fixture
def entry(tmp_path: pathlib.Path) -> list[str]:
    """The words with which ``tf-preempt`` is started inside a command."""
    path = tmp_path / "entry.py"
    path.write_text(ENTRY)
    return [PYTHON, str(path)]


@pytest.fixture
def gone_after() -> Callable[..., Any]:
    """Checks that the processes which a script says it has (``pid 17``) end with the block, or soon after."""

    @contextlib.contextmanager
    def gone_after(script: Any, count: int) -> Iterator[list[psutil.Process]]:
        script.wait_for(rf"(?s)(pid \d+\n.*){{{count}}}", 30)
        processes = [psutil.Process(int(pid)) for pid in re.findall(r"pid (\d+)\n", script.stdout)[:count]]
        yield processes
        end = time.monotonic() + 15
        while left := [process for process in processes if _lives(process)]:
            assert time.monotonic() < end, f"still there: {left}"
            psutil.wait_procs(left, timeout=0.02)

    return gone_after


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
