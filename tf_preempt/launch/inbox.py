"""One queue for everything that a waiting supervisor can be woken by: signals and ends of programs.

A ``queue.SimpleQueue`` and not an event or a condition: its ``put`` may interrupt its own ``get``, which is
what a signal handler does.
"""

from __future__ import annotations

import dataclasses
import queue
import signal
import threading
from typing import Any

__all__ = ["Cleared", "Exited", "Inbox", "Signalled"]

# What ends us by default and may be meant for the program.  SIGUSR1 and SIGUSR2 are what batch systems are
# told to send some time before the end of a job.  Slurm sends them to all processes of a step, if it tracks
# them with cgroups or by their parents, and to process groups otherwise.  Which of them it was cannot be seen
# here; so they are always passed on, and a program in a step may get them twice, which is one notice.
_CAUGHT = ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2")


@dataclasses.dataclass(frozen=True)
class Signalled:
    """This process got a signal."""

    signum: int


@dataclasses.dataclass(frozen=True)
class Exited:
    """The program of a process tree has ended."""

    tree: int


@dataclasses.dataclass(frozen=True)
class Cleared:
    """Nothing is left of a process tree."""

    tree: int


Message = Signalled | Exited | Cleared


class Inbox:
    """Collects messages; as a context manager it catches signals too.

    Signals are caught only if it is entered in the main thread (Python allows it nowhere else), and one that
    was ignored before (``nohup``) stays ignored.
    """

    def __init__(self) -> None:
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._earlier_handlers: dict[int, Any] = {}

    def put(self, message: Message) -> None:
        """Adds a message; may be called from any thread and from signal handlers."""
        self._messages.put(message)

    def get(self, timeout_s: float | None = None) -> Message | None:
        """The next message; None when there is none within `timeout_s` seconds (None: wait for ever)."""
        try:
            return self._messages.get(timeout=None if timeout_s is None else max(0.0, timeout_s))
        except queue.Empty:
            return None

    def __enter__(self) -> Inbox:
        if threading.current_thread() is threading.main_thread():
            for signum in (getattr(signal, name) for name in _CAUGHT if hasattr(signal, name)):
                # None: a handler that is not Python's, which could not be put back.
                if signal.getsignal(signum) not in (signal.SIG_IGN, None):
                    self._earlier_handlers[signum] = signal.signal(signum, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        while self._earlier_handlers:
            signal.signal(*self._earlier_handlers.popitem())

    def _on_signal(self, signum: int, _frame: object) -> None:
        self.put(Signalled(signum))
