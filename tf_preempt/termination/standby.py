"""A notice while the program does not train: it still builds its model, or evaluates and exports.

Nothing is there to be saved, but a program that SIGTERM ends in the grace of a preemption turns its Slurm job
into a failed one.  So from the making of a strategy or callback to the training, and from its end to the next
one or to the end of the process, the job is seen to before the signal takes its usual course.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Mapping

from tf_preempt._slurm import is_slurm_job, rank_in_step
from tf_preempt.errors import SlurmError
from tf_preempt.termination import _signal_hub
from tf_preempt.termination.notice import TerminationNotice
from tf_preempt.termination.signals import SignalWatcher
from tf_preempt.termination.slurm import Action, settle_preemption
from tf_preempt.termination.slurm_options import SlurmOptions
from tf_preempt.termination.watcher import TerminationMonitor

__all__ = ["begin", "begin_before_training", "end"]

_log = logging.getLogger("tf_preempt")
# Who ends first may make Slurm end the step, while the first task still asks the controller.
_FIRST_TASK_WAIT_S = 5.0


class _Standby:
    """Listens for SIGTERM.

    Args:
        settle: sees to the job; returns when the process may end.
    """

    def __init__(self, settle: Callable[[], None]) -> None:
        self._settle = settle
        self._monitor = TerminationMonitor([SignalWatcher(("SIGTERM",))], self._on_notice).start()

    def close(self) -> None:
        """Gives the signal its earlier effect back."""
        self._monitor.close()

    def _on_notice(self, notice: TerminationNotice) -> None:
        if not _signal_hub.is_left_to_us(signal.SIGTERM):
            return  # the program has set up a handler since, and does as it likes
        self._settle()
        self.close()
        os.kill(os.getpid(), signal.Signals[notice.source])


_current: _Standby | None = None


def begin(settle: Callable[[], None]) -> None:
    """Begins to listen, in place of what listened before, where the program leaves SIGTERM to us.

    Args:
        settle: called on SIGTERM, in another thread; when it returns, the signal ends the process.
    """
    global _current
    end()
    is_free = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if is_free and threading.current_thread() is threading.main_thread():
        _current = _Standby(settle)


def begin_before_training(environ: Mapping[str, str], options: SlurmOptions | None = None) -> None:
    """Begins to listen in a Slurm job; elsewhere SIGTERM has no consequence that could be mended.

    Calling it again is how SIGTERM comes back to us when TensorFlow has taken it.

    Args:
        environ: the environment variables.
        options: what the user wants on Slurm; None: not known yet.
    """
    options = options or SlurmOptions()
    if not is_slurm_job(environ):
        return
    if options.requeue == "never":
        end()
        return
    begin(lambda: _settle_before_training(environ, options))


def end() -> None:
    """Stops listening: a training begins, which has watchers of its own."""
    global _current
    if _current is not None:
        _current.close()
        _current = None


def _settle_before_training(environ: Mapping[str, str], options: SlurmOptions) -> None:
    if rank_in_step(environ):
        threading.Event().wait(_FIRST_TASK_WAIT_S)
        return
    try:
        verdict = settle_preemption(environ, options)
    except SlurmError as error:
        _log.warning("Nothing says which job this is, so it is not requeued: %s", error)
        return
    if verdict is not None and verdict.action is Action.STAY:
        threading.Event().wait(options.stay_s)
