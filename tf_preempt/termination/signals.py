"""Signals as a source of notices, seen at once even while the main thread is inside TensorFlow.

Python runs signal handlers between two bytecodes of the main thread.  Inside one long TensorFlow call that is
seconds after the signal.  The interpreter's handler in C, however, runs at once, and writes the signal's
number to a file descriptor if asked to (``signal.set_wakeup_fd``); a thread that reads it knows within
milliseconds.  `_signal_hub` owns that descriptor for the whole process.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

from tf_preempt.errors import ConfigError
from tf_preempt.termination import _signal_hub
from tf_preempt.termination.notice import TerminationNotice
from tf_preempt.termination.watcher import TerminationWatcher

_CANNOT_BE_CAUGHT = frozenset({"SIGKILL", "SIGSTOP"})
# The kernel sends these for a faulty instruction and repeats it when the handler returns: an endless loop.
_FAULTS = frozenset({"SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV"})
_CLOSED = -1


def parse_signals(signals: Sequence[str | signal.Signals]) -> tuple[signal.Signals, ...]:
    """Turns names of signals into numbers, each once, in the order given.

    Args:
        signals: names such as ``"SIGTERM"``, or members of ``signal.Signals``.

    Raises:
        ConfigError: it is no sequence of names, a name is unknown on this system, or the signal cannot be
            caught (SIGKILL, SIGSTOP) or must not be (SIGSEGV and the like).
    """
    if isinstance(signals, str) or not isinstance(signals, Sequence):
        raise ConfigError(
            f"signals={signals!r}; expected a sequence of signal names.",
            hint=f"Write signals=({signals!r},)."
            if isinstance(signals, str)
            else "Write signals=('SIGTERM',).",
        )
    return tuple(dict.fromkeys(_parse_signal(one) for one in signals))


def pass_on(number: signal.Signals) -> None:
    """Gives a watched signal, while it stays watched, the effect back that it had before; from any thread.

    Args:
        number: the signal.
    """
    _signal_hub.HUB.pass_on(number)


def _parse_signal(one: object) -> signal.Signals:
    name = one.name if isinstance(one, signal.Signals) else one
    if not isinstance(name, str) or name not in signal.Signals.__members__:
        raise ConfigError(
            f"signals contains {one!r}, which is not the name of a signal on this system.",
            hint="Use names such as 'SIGTERM' or 'SIGUSR1'; `kill -l` lists them.",
        )
    if name in _CANNOT_BE_CAUGHT:
        raise ConfigError(
            f"signals contains {name!r}, which no program can catch.",
            hint="Name the signal that comes before it, usually 'SIGTERM'; periodic saves cover the rest.",
        )
    if name in _FAULTS:
        raise ConfigError(
            f"signals contains {name!r}, which reports a fault of this program and is no notice.",
            hint="Leave it out; faulthandler shows where such a fault comes from.",
        )
    return signal.Signals[name]


class SignalWatcher(TerminationWatcher):
    """Gives a notice for every signal of the given kinds that reaches this process.

    From construction to `close` the signals do not end the process.  A handler that was installed from Python
    before stays in effect: it is called as well, in the main thread, where Python would have called it.
    (``signal.default_int_handler``, which only stands for the default action, is not.)  `close` puts earlier
    handlers back.  Several watchers, of the same or of different signals, can be open at once and be closed
    in any order and from any thread.

    A child made by ``os.fork`` starts without the watcher: its signals act as they did before.

    Args:
        signals: names of the signals, at least one.

    Raises:
        ConfigError: a signal is unknown or cannot be caught, there is none, or this is not the main thread.
        OSError: no file descriptor is left.

    References:
        https://docs.python.org/3/library/signal.html#signal.set_wakeup_fd
    """

    def __init__(self, signals: Sequence[str | signal.Signals] = ("SIGTERM",)) -> None:
        self.signals = frozenset(parse_signals(signals))
        if not self.signals:
            raise ConfigError(
                "SignalWatcher: signals is empty; expected at least one name.",
                hint="Leave the watcher out to watch no signal.",
            )
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        os.set_blocking(self._write_fd, False)
        try:
            _signal_hub.HUB.subscribe(self)
        except BaseException:
            self.abandon()
            raise

    def poll(self) -> TerminationNotice | None:
        """Takes the oldest signal that was not taken yet.

        Returns:
            A notice without a deadline: a signal does not say how long there is.
        """
        if self._read_fd == _CLOSED:
            return None
        try:
            number = os.read(self._read_fd, 1)
        except BlockingIOError:
            return None
        if not number:
            return None
        name = signal.Signals(number[0]).name
        return TerminationNotice(source=name, reason=f"the process received {name}", deadline=None)

    def fileno(self) -> int | None:
        """The descriptor that is readable while a signal waits to be polled; None after `close`."""
        return None if self._read_fd == _CLOSED else self._read_fd

    def close(self) -> None:
        """Puts earlier handlers back; signals that were not polled yet are dropped.

        In another thread than the main one Python does not let handlers be changed.  Then the signal's
        earlier effect is restored at once all the same, and the handler itself when the next signal comes.
        """
        _signal_hub.HUB.unsubscribe(self)
        self.abandon()

    def deliver(self, signum: int) -> None:
        """Takes a signal from the hub."""
        try:
            os.write(self._write_fd, bytes((signum,)))
        except BlockingIOError:
            pass  # tens of thousands of signals wait to be polled already

    def abandon(self) -> None:
        """Closes the descriptors and leaves the signals alone: all that a forked child has to do."""
        read_fd, self._read_fd = self._read_fd, _CLOSED
        write_fd, self._write_fd = self._write_fd, _CLOSED
        for fd in (read_fd, write_fd):
            if fd != _CLOSED:
                os.close(fd)
