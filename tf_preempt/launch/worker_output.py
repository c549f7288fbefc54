"""Brings what workers print to one place, as it comes, and never lets a worker wait for it."""

from __future__ import annotations

import logging
import os
import selectors
import sys
import threading
import time
from collections.abc import Callable
from typing import IO, Any

from tf_preempt.launch.line_prefix import LinePrefixer

__all__ = ["locked_writer", "pump"]

_CHUNK_BYTES = 64 * 1024
_PROGRESS_EVERY_S = 1.0

_logger = logging.getLogger("tf_preempt")


def locked_writer(output: Any) -> Callable[[bytes], None]:
    """Makes a function that writes to `output`, from any thread, each time all that it is given.

    Args:
        output: a binary or a text file (notebooks have nothing else); None: standard output.
    """
    target = sys.stdout if output is None else output
    binary: Any = getattr(target, "buffer", target)
    is_text = binary is target and hasattr(target, "encoding")
    lock = threading.Lock()
    broken = False

    def write(content: bytes) -> None:
        nonlocal broken
        with lock:
            if broken or not content:
                return
            try:
                binary.write(content.decode(errors="replace") if is_text else content)
                binary.flush()
            except (OSError, ValueError) as error:
                # Whoever read it is gone (`| head`).  Training matters more than its output: read on, so that
                # no worker waits for room in a pipe for ever.
                broken = True
                _logger.warning("the workers' output is lost from here on: %s", error)

    return write


def pump(pipe: IO[bytes], prefixer: LinePrefixer | None, write: Callable[[bytes], None]) -> None:
    """Moves a worker's output to where it belongs, until its last process has closed it.

    Args:
        pipe: what the worker writes to; closed at the end.
        prefixer: puts names in front of lines; None: the output is passed on as it comes.
        write: takes the output.
    """
    with pipe, selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        progress_is_due = time.monotonic() + _PROGRESS_EVERY_S
        while True:
            if prefixer and time.monotonic() >= progress_is_due:
                write(prefixer.show_progress())
                progress_is_due = time.monotonic() + _PROGRESS_EVERY_S
            if not selector.select(_PROGRESS_EVERY_S):
                continue
            chunk = os.read(pipe.fileno(), _CHUNK_BYTES)
            if not chunk:
                break
            write(prefixer.feed(chunk) if prefixer else chunk)
        write(prefixer.finish() if prefixer else b"")
