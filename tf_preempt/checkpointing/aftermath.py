"""A notice after the training: the program evaluates or exports, and its job has to come back all the same.

Nothing is left to save then, but a program that SIGTERM ends in the grace of a preemption turns its job into
a failed one.  So from the end of a training to the next one, or to the end of the process, a preempted job is
requeued before the signal takes its usual course.
"""

from __future__ import annotations

import os
import signal
import threading

from tf_preempt.checkpointing.departure import Departure
from tf_preempt.termination.notice import TerminationNotice
from tf_preempt.termination.signals import SignalWatcher
from tf_preempt.termination.watcher import TerminationMonitor

__all__ = ["begin", "end"]

_SIGNAL = "SIGTERM"


class _Aftermath:
    """Listens for SIGTERM after a training.

    Args:
        departure: knows what becomes of the job.
    """

    def __init__(self, departure: Departure) -> None:
        self._departure = departure
        self._monitor = TerminationMonitor([SignalWatcher((_SIGNAL,))], self._on_notice).start()

    def close(self) -> None:
        """Gives the signal its earlier effect back."""
        self._monitor.close()

    def _on_notice(self, notice: TerminationNotice) -> None:
        self._departure.after_training()
        self.close()
        os.kill(os.getpid(), signal.Signals[notice.source])


_current: _Aftermath | None = None


def begin(departure: Departure) -> None:
    """Begins to listen, where there is a job to be requeued and the program leaves SIGTERM to us.

    Args:
        departure: of the training that has ended.
    """
    global _current
    end()
    is_free = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if departure.is_needed and is_free and threading.current_thread() is threading.main_thread():
        _current = _Aftermath(departure)


def end() -> None:
    """Stops listening: a training begins, which has watchers of its own."""
    global _current
    if _current is not None:
        _current.close()
        _current = None
