"""The process-wide owner of the signal wakeup descriptor, which knows whom each signal concerns.

A process has one wakeup descriptor and one Python-level handler per signal, but several parties that want
them: our watchers, asyncio, Jupyter, the user's own handlers.  So one object takes both once, hands every
byte to its subscribers and to the earlier owner of the descriptor, and puts everything back at the end.

::

    signal ──> C handler ──byte──> our pipe ──> thread "tf_preempt-signals" ──> subscribers that want it
                   │                                        └────────────────> earlier wakeup descriptor
                   └─ later, in the main thread: _Handler ──> earlier Python handler

The thread exists because bytes must be passed on whether or not a subscriber is being polled: an event loop
of asyncio that does not get its byte does not see Ctrl-C.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Collection
from types import FrameType
from typing import Any, Protocol

from tf_preempt.errors import ConfigError

_log = logging.getLogger("tf_preempt")

_NO_FD = -1
_STOP = b"\0"  # no signal has the number 0
_JOIN_TIMEOUT_S = 5.0

_EarlierHandler = Callable[[int, FrameType | None], Any] | int | None


class Subscriber(Protocol):
    """Somebody who wants to know of signals."""

    @property
    def signals(self) -> Collection[int]:
        """The numbers of the signals wanted; never changes."""

    def deliver(self, signum: int) -> None:
        """Takes note of one signal without waiting; called in the hub's thread."""

    def abandon(self) -> None:
        """Forgets about everything; called in a forked child."""


class _Handler:
    """The Python-level handler of one signal, and what was there before it.

    Without a Python-level handler the interpreter has no C handler that writes the byte.  A retired one is of
    no concern to us any more, and stands where it could not be removed: the close was in another thread, or
    somebody has installed a handler over it that may still call it.
    """

    def __init__(self, hub: SignalHub, signum: int) -> None:
        self._hub = hub
        self._signum = signum
        self._earlier: _EarlierHandler = signal.getsignal(signum)
        self.retired = False
        self.passes_on = False
        if self._earlier is None:
            _log.warning(
                "%s had a handler that was not installed from Python; it is out of effect from now on, and "
                "afterwards the signal has its default action.",
                signal.Signals(signum).name,
            )

    @property
    def earlier(self) -> _EarlierHandler:
        """What was there before."""
        return self._earlier

    @property
    def is_installed(self) -> bool:
        return signal.getsignal(self._signum) is self

    def restore(self) -> None:
        """Puts the earlier handler back, unless somebody else's has taken our place; main thread only."""
        self.retired = True
        if self.is_installed:
            signal.signal(self._signum, signal.SIG_DFL if self._earlier is None else self._earlier)

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        if self.retired and self.is_installed:
            self.restore()
            signal.raise_signal(signum)
            return
        if not self.retired:
            self._hub.ensure_delivery(signum)
        # default_int_handler only stands for SIGINT's default action, which being watched replaces.
        stands_for_default = self._earlier is signal.default_int_handler and not self.passes_on
        if callable(self._earlier) and not stands_for_default:
            self._earlier(signum, frame)
        elif (self.retired or self.passes_on) and self._earlier == signal.SIG_DFL:
            # Somebody's later handler calls what it found: without us it would have found the default action.
            signal.signal(signum, signal.SIG_DFL)
            signal.raise_signal(signum)


def is_left_to_us(signum: int) -> bool:
    """Says whether a signal's handler is this module's, with nothing of the program's behind it."""
    handler = signal.getsignal(signum)
    return isinstance(handler, _Handler) and handler.earlier == signal.SIG_DFL


class _EarlierFd:
    """The wakeup descriptor that was set before ours; it stays its owner's, who may close it at any time."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._identity = self._identify()

    def _identify(self) -> tuple[int, int] | None:
        if self._fd == _NO_FD:
            return None
        try:
            status = os.fstat(self._fd)
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def get(self) -> int:
        """The descriptor; -1 if there was none, or if its number belongs to something else by now."""
        return self._fd if self._identity is not None and self._identify() == self._identity else _NO_FD

    def write(self, numbers: bytes) -> None:
        fd = self.get()
        if fd == _NO_FD:
            return
        try:
            os.write(fd, numbers)
        except OSError:
            pass  # full, or closed just now: the interpreter's own handler would have dropped it too


class SignalHub:
    """Takes the wakeup descriptor with the first subscriber and gives it back with the last.

    There is one per process (`HUB`), because there is one wakeup descriptor per process.
    """

    def __init__(self) -> None:
        # Reentrant: a signal handler can interrupt the main thread anywhere, and handlers close watchers.
        self._lock = threading.RLock()
        self._subscribers: tuple[Subscriber, ...] = ()
        self._handlers: dict[int, _Handler] = {}
        self._read_fd = self._write_fd = _NO_FD
        self._earlier_fd = _EarlierFd(_NO_FD)
        self._diverted_fd = _NO_FD
        self._reader: threading.Thread | None = None
        self._fork_hook_registered = False
        self._forking = threading.local()

    def subscribe(self, subscriber: Subscriber) -> None:
        """Delivers the subscriber's signals to it from now on.

        Raises:
            ConfigError: this is not the main thread.
            OSError: no file descriptor is left.
        """
        if threading.current_thread() is not threading.main_thread():
            names = ", ".join(sorted(signal.Signals(signum).name for signum in subscriber.signals))
            raise ConfigError(
                f"signals={names} cannot be watched from thread {threading.current_thread().name!r}; Python "
                "lets only the main thread catch signals.",
                hint="Create the handler or callback in the main thread, or pass signals=() to watch none.",
            )
        with self._lock:
            if not self._subscribers:
                self._take_wakeup_fd()
            # Before the handlers, which take the default action away: no signal may fall in between.
            self._subscribers += (subscriber,)
            for signum in subscriber.signals:
                self._install_handler(signum)

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Ends the delivery, and undoes what was done for this subscriber alone; unknown ones are ignored."""
        with self._lock:
            if not any(one is subscriber for one in self._subscribers):
                return
            self._subscribers = tuple(one for one in self._subscribers if one is not subscriber)
            in_main_thread = threading.current_thread() is threading.main_thread()
            for signum, handler in list(self._handlers.items()):
                if not self._is_wanted(signum):
                    handler.retired = True
                    if in_main_thread:
                        handler.restore()
                        del self._handlers[signum]
            if self._subscribers:
                return
            reader = self._release_wakeup_fd(in_main_thread)
        # Not under the lock, which the thread takes for every delivery.
        if reader is not None:
            reader.join(_JOIN_TIMEOUT_S)

    def pass_on(self, signum: int) -> None:
        """Gives a signal its earlier effect back although it stays watched; from any thread."""
        with self._lock:
            handler = self._handlers.get(signum)
            if handler is not None:
                handler.passes_on = True

    def ensure_delivery(self, signum: int) -> None:
        """Writes the byte of a signal if somebody has taken the wakeup descriptor away from us.

        An event loop of asyncio does that when it installs a signal handler, and clears the descriptor when
        it ends.  The notice is late then, but not lost.  Called in the main thread, by the handler.
        """
        # Read once: another thread may be closing the last watcher, which leaves this descriptor valid.
        write_fd = self._write_fd
        if write_fd == _NO_FD:
            return
        current = signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
        if current == write_fd:
            return
        if current != _NO_FD:
            signal.set_wakeup_fd(current, warn_on_full_buffer=False)
        try:
            os.write(write_fd, bytes((signum,)))
        except BlockingIOError:
            pass

    def _is_wanted(self, signum: int) -> bool:
        return any(signum in subscriber.signals for subscriber in self._subscribers)

    def _install_handler(self, signum: int) -> None:
        handler = self._handlers.get(signum)
        is_hidden = callable(signal.getsignal(signum))
        if handler is not None and (handler.is_installed or (is_hidden and not handler.retired)):
            # Still there after a close in another thread; or hidden by somebody's later handler, which by
            # being a Python-level one makes the byte come as well.
            handler.retired = False
            if handler.is_installed:
                signal.signal(signum, handler)  # C code, such as TensorFlow's, may have taken it unseen
            return
        # A new object each time: a retired one may be what the present handler calls.
        handler = _Handler(self, signum)
        self._handlers[signum] = handler
        signal.signal(signum, handler)

    def _take_wakeup_fd(self) -> None:
        self._drop_diverted_fd()
        if not self._fork_hook_registered:
            os.register_at_fork(
                before=self._before_fork,
                after_in_parent=self._after_fork_in_parent,
                after_in_child=self._after_fork_in_child,
            )
            self._fork_hook_registered = True
        read_fd, write_fd = os.pipe()
        os.set_blocking(write_fd, False)
        self._earlier_fd = _EarlierFd(signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False))
        self._read_fd, self._write_fd = read_fd, write_fd
        self._reader = threading.Thread(
            target=self._read, args=(read_fd, self._earlier_fd), name="tf_preempt-signals", daemon=True
        )
        self._reader.start()

    def _release_wakeup_fd(self, in_main_thread: bool) -> threading.Thread | None:
        """Gives the wakeup descriptor back and tells the thread to end."""
        write_fd, self._write_fd = self._write_fd, _NO_FD
        reader, self._reader = self._reader, None
        is_free = in_main_thread and _replace_wakeup_fd(write_fd, self._earlier_fd.get())
        try:
            os.write(write_fd, _STOP)
        except BlockingIOError:
            pass  # closing the last write end ends the thread too
        if is_free:
            os.close(write_fd)
        else:
            self._divert(write_fd)
        return reader

    def _divert(self, write_fd: int) -> None:
        """Makes a descriptor that is still in use, by the interpreter or by others, lead to the earlier one.

        Closing it is out of the question: the next file to be opened would get its number, and signals would
        write into it.
        """
        earlier = self._earlier_fd.get()
        target = os.open(os.devnull, os.O_WRONLY) if earlier == _NO_FD else earlier
        os.dup2(target, write_fd, inheritable=False)
        if target != earlier:
            os.close(target)
        self._diverted_fd = write_fd

    def _drop_diverted_fd(self) -> None:
        """Closes what a close in another thread had to leave behind, now that this is the main thread."""
        fd, self._diverted_fd = self._diverted_fd, _NO_FD
        if fd != _NO_FD and _replace_wakeup_fd(fd, self._earlier_fd.get()):
            os.close(fd)

    def _read(self, read_fd: int, earlier_fd: _EarlierFd) -> None:
        """The thread: hands on every byte until the stop byte, or until the pipe has no writer."""
        try:
            numbers = b""
            while _STOP not in numbers:
                numbers = os.read(read_fd, 512)
                if not numbers:
                    return
                with self._lock:
                    for signum in numbers:
                        for subscriber in self._subscribers:
                            if signum in subscriber.signals:
                                subscriber.deliver(signum)
                earlier_fd.write(numbers.replace(_STOP, b""))
        finally:
            os.close(read_fd)

    def _before_fork(self) -> None:
        # A child that is terminated right after the fork still has our handler: its signal would be lost to
        # the child and look to the parent like one of its own.  Blocked, it waits until all is undone.
        self._lock.acquire()
        self._forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._handlers.keys())

    def _after_fork_in_parent(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._forking.mask)
        self._lock.release()

    def _after_fork_in_child(self) -> None:
        """Frees a forked child of all this: a signal to it must not look like one to the parent."""
        self._lock = threading.RLock()  # the old one is held
        for handler in self._handlers.values():
            handler.restore()
        for fd in (self._write_fd, self._diverted_fd):
            if fd != _NO_FD:
                _replace_wakeup_fd(fd, _NO_FD)
                os.close(fd)
        if self._write_fd != _NO_FD:
            os.close(self._read_fd)  # the thread would do it, but it exists in the parent only
        for subscriber in self._subscribers:
            subscriber.abandon()
        self._handlers, self._subscribers, self._reader = {}, (), None
        self._read_fd = self._write_fd = self._diverted_fd = _NO_FD
        self._earlier_fd = _EarlierFd(_NO_FD)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._forking.mask)


def _replace_wakeup_fd(ours: int, earlier: int) -> bool:
    """Sets the wakeup descriptor to the earlier one if it is still ours; main thread only.

    Returns:
        Whether it was ours.  If not, somebody has set another one since, and may want to come back to ours.
    """
    current = signal.set_wakeup_fd(_NO_FD)
    wanted = earlier if current == ours else current
    if wanted != _NO_FD:
        try:
            signal.set_wakeup_fd(wanted, warn_on_full_buffer=False)
        except (OSError, ValueError):
            pass  # its owner has closed it: then there is none
    return current == ours


HUB = SignalHub()
