"""A notice while the program does not train: it still builds its model, or evaluates and exports.

Nothing is there to be saved, but a program that SIGTERM ends in the grace of a preemption turns its Slurm job
into a failed one.  So from the making of a strategy or callback to the training, and from its end to the next
one or to the end of the process, it is settled whether the job is requeued before the signal takes its usual
course.  Every task says at once that the signal has come: what follows in it (a collective that misses a
worker which has left) reads as a fault of the program otherwise.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping

from tf_preempt._slurm import is_slurm_job, rank_in_step
from tf_preempt.errors import SlurmError
from tf_preempt.termination import _signal_hub
from tf_preempt.termination.notice import TerminationNotice
from tf_preempt.termination.signals import SignalWatcher
from tf_preempt.termination.slurm import Action, settle_preemption
from tf_preempt.termination.slurm_options import SlurmOptions
from tf_preempt.termination.watcher import TerminationMonitor

__all__ = [
    "AFTER_TRAINING",
    "BEFORE_TRAINING",
    "OTHER_TASKS_WAIT_S",
    "begin",
    "begin_before_training",
    "decline",
    "end",
    "training_begins",
    "training_ends",
]

_log = logging.getLogger("tf_preempt")

BEFORE_TRAINING = "before the training began"
AFTER_TRAINING = "after the training"
"""When a notice came, for the log."""
OTHER_TASKS_WAIT_S = 15.0
"""Who ends first may make Slurm end the step while the first task still asks the controller; in seconds."""
# Slurm and srun both pass a signal on, so that one notice may come as two signals.
_ONE_NOTICE_S = 2.0
# Slurm signals all processes of a step: a child may be dead, and the program fail of it, before our turn.
_LATE_SIGNAL_S = 0.5


class _Standby:
    """Listens for SIGTERM.

    Args:
        settle: settles whether the job is requeued; returns when the process may end.
        when: at which moment of the program, in words.
    """

    def __init__(self, settle: Callable[[], None], when: str) -> None:
        self._settle = settle
        self._when = when
        self._noticed = threading.Event()
        self._noticed_at = 0.0
        self._settled = threading.Event()
        self._pid = os.getpid()
        self._monitor = TerminationMonitor([SignalWatcher(("SIGTERM",))], self._on_notice).start()
        atexit.register(self._let_it_settle)

    @property
    def is_settling(self) -> bool:
        """Whether SIGTERM has come, so that the process is going to end."""
        return self._noticed.is_set()

    def wait(self) -> None:
        """Waits until that is settled; the signal ends the process then."""
        self._settled.wait()

    def close(self) -> None:
        """Gives the signal its earlier effect back."""
        atexit.unregister(self._let_it_settle)
        self._monitor.close()

    def _on_notice(self, notice: TerminationNotice) -> None:
        del notice
        if not _signal_hub.is_left_to_us(signal.SIGTERM):
            return  # the program has set up a handler since, and does as it likes
        now = time.monotonic()
        if not self._noticed.is_set():
            self._noticed_at = now
            self._noticed.set()
            _log.warning(
                "SIGTERM came %s; the program ends as soon as it is settled whether the Slurm job is "
                "requeued.",
                self._when,
            )
            threading.Thread(target=self._settle_and_end, name="tf_preempt-standby", daemon=True).start()
        elif now - self._noticed_at > _ONE_NOTICE_S:
            _log.warning("SIGTERM came again, and ends the program at once.")
            self._end()

    def _settle_and_end(self) -> None:
        try:
            self._settle()
        finally:
            self._end()

    def _end(self) -> None:
        self.close()
        self._settled.set()
        os.kill(os.getpid(), signal.SIGTERM)

    def _let_it_settle(self) -> None:
        """At the end of the process, which would cut the settling short."""
        has_failed = getattr(sys, "last_value", None) is not None
        if os.getpid() == self._pid and self._noticed.wait(_LATE_SIGNAL_S if has_failed else 0.0):
            self.wait()


_current: _Standby | None = None
_trainings: set[int] = set()
_wanted = SlurmOptions()


def begin(settle: Callable[[], None], *, when: str = AFTER_TRAINING) -> None:
    """Begins to listen, in place of what listened before, where the program leaves SIGTERM to us.

    Calling it again is also how SIGTERM comes back when TensorFlow has taken it.

    Args:
        settle: called on SIGTERM, in another thread; when it returns, the signal ends the process.
        when: at which moment of the program, in words for the log.
    """
    global _current
    before = _current
    is_main_thread = threading.current_thread() is threading.main_thread()
    if _trainings or not is_main_thread or (before is not None and before.is_settling):
        return
    is_free = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL or _signal_hub.is_left_to_us(signal.SIGTERM)
    _current = _Standby(settle, when) if is_free else None
    if before is not None:
        before.close()  # after the other has begun: no signal may fall in between


def begin_before_training(environ: Mapping[str, str], options: SlurmOptions | None = None) -> None:
    """Begins to listen in a Slurm job; elsewhere SIGTERM has no consequence that could be mended.

    Args:
        environ: the environment variables.
        options: what the user wants on Slurm; None: what was wanted last.
    """
    global _wanted
    _wanted = options or _wanted
    if not is_slurm_job(environ):
        return
    if _wanted.requeue == "never":
        end()
        return
    options = _wanted
    begin(lambda: _settle_before_training(environ, options), when=BEFORE_TRAINING)


def decline() -> None:
    """Does not listen before trainings: the program sees to its job itself."""
    global _wanted
    _wanted = SlurmOptions(requeue="never")
    end()


def training_begins(training: object) -> None:
    """A training has begun to watch, and SIGTERM is its business; see `end`."""
    _trainings.add(id(training))
    end()


def training_ends(training: object) -> None:
    """A training will watch no more; `begin` says what comes then."""
    _trainings.discard(id(training))


def end() -> None:
    """Stops listening.  If SIGTERM has come already, this does not return before it ends the process."""
    global _current
    before, _current = _current, None
    if before is None:
        return
    if before.is_settling:
        before.wait()
    before.close()


def _settle_before_training(environ: Mapping[str, str], options: SlurmOptions) -> None:
    if rank_in_step(environ):
        threading.Event().wait(OTHER_TASKS_WAIT_S)
        return
    try:
        verdict = settle_preemption(environ, options, when=BEFORE_TRAINING)
    except SlurmError as error:
        _log.warning("Nothing says which job this is, so it is not requeued: %s", error)
        return
    if verdict is not None and verdict.action is Action.STAY:
        threading.Event().wait(options.stay_s)
