"""The role that every source of notices plays, and the one thread that listens to all of them."""

from __future__ import annotations

import abc
import dataclasses
import logging
import math
import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from tf_preempt.errors import ConfigError
from tf_preempt.termination.notice import TerminationNotice

if TYPE_CHECKING:
    from typing_extensions import Self

_log = logging.getLogger("tf_preempt")

_LONGEST_BACKOFF_S = 60.0
_JOIN_TIMEOUT_S = 5.0


class TerminationWatcher(abc.ABC):
    """One source of notices: signals, a metadata server, a function.

    A watcher is polled from one thread (`TerminationMonitor`'s), which it shares with all other watchers.
    So `poll` returns at once.  A source that can only be waited for (a hanging GET) waits in a thread of its
    own and makes its `fileno` readable when there is something to poll.

    Example::

        class FileWatcher(TerminationWatcher):
            def poll(self):
                if os.path.exists("/run/leave"):
                    return TerminationNotice(source="file", reason="/run/leave exists")
                return None
    """

    @abc.abstractmethod
    def poll(self) -> TerminationNotice | None:
        """Takes the next notice from the source, without waiting.

        Each notice is given once: a platform that goes on saying the same gives one notice.

        Returns:
            The next notice, None if there is none (any more).

        Raises:
            Exception: anything; the monitor logs it and asks again later, less and less often.
        """

    def fileno(self) -> int | None:
        """A file descriptor that is readable while `poll` has something; None if it has to be polled."""
        return None

    def on_saved(self) -> None:  # noqa: B027 - most sources need no answer
        """Hears, in the main thread, that all is committed and the program leaves.

        It comes also after `close`, and where another source has given the notice.

        Raises:
            Exception: anything; the monitor logs it, and the program leaves all the same.
        """

    def close(self) -> None:  # noqa: B027 - most watchers hold nothing that has to be given back
        """Gives back what the watcher holds; calling it again is fine."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class LentWatcher(TerminationWatcher):
    """A watcher that belongs to somebody else, who closes it.

    Args:
        lent: the watcher.
    """

    def __init__(self, lent: TerminationWatcher) -> None:
        self.lent = lent

    def poll(self) -> TerminationNotice | None:
        """Polls the watcher.

        Raises:
            Exception: whatever it raises.
        """
        return self.lent.poll()

    def fileno(self) -> int | None:
        """The watcher's file descriptor."""
        return self.lent.fileno()

    def on_saved(self) -> None:
        """Lets the watcher hear of it.

        Raises:
            Exception: whatever it raises.
        """
        self.lent.on_saved()


@dataclasses.dataclass(eq=False)
class _Turn:
    """When a watcher is asked next: the pure part of the monitor.

    Args:
        watcher: whose turn it is.
        interval_s: seconds between two polls while all is well.
        due: when to ask next, in seconds of the monitor's clock.
        failures: polls that have failed in a row.
        broken: its file descriptor reported an error instead of something to read.
    """

    watcher: TerminationWatcher
    interval_s: float
    due: float = 0.0
    failures: int = 0
    broken: bool = False

    @property
    def name(self) -> str:
        watcher = self.watcher.lent if isinstance(self.watcher, LentWatcher) else self.watcher
        return type(watcher).__name__

    def rests(self, now: float) -> bool:
        """Whether the pause after a failure is not over."""
        return self.failures > 0 and self.due > now

    def succeeded(self, now: float) -> None:
        self.failures = 0
        self.due = now + self.interval_s

    def failed(self, now: float) -> float:
        """Returns the seconds until the next try: the interval, doubled per failure, at most a minute."""
        self.failures += 1
        # The exponent is bounded because a float overflows long before a week of failures is over.
        doubled = self.interval_s * 2.0 ** min(self.failures, 32)
        pause = max(self.interval_s, min(doubled, _LONGEST_BACKOFF_S))
        self.due = now + pause
        return pause


class TerminationMonitor:
    """Listens to watchers in one daemon thread and passes every notice on.

    The thread waits on the watchers' file descriptors, so that their notices arrive at once, and polls the
    watchers without one.  A watcher that raises is logged once, asked again after 2, 4, 8, ... intervals (at
    most a minute) and logged again when it recovers; it disturbs neither training nor the other watchers.

    Example::

        with TerminationMonitor([SignalWatcher()], on_notice=notices.put):
            train()

    Args:
        watchers: the sources; closed together with the monitor.
        on_notice: called in the monitor's thread with every notice; a second SIGTERM is a second notice.
            While it runs no other notice is taken.  What it raises is logged and survived.  It may call
            `close`.
        poll_interval_s: seconds between two polls of a watcher that has no file descriptor.
        clock: the monotonic clock, in seconds.

    Raises:
        ConfigError: `poll_interval_s` is not a positive, finite number.
    """

    def __init__(
        self,
        watchers: Sequence[TerminationWatcher],
        on_notice: Callable[[TerminationNotice], None],
        *,
        poll_interval_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not (poll_interval_s > 0 and math.isfinite(poll_interval_s)):
            raise ConfigError(
                f"TerminationMonitor: poll_interval_s={poll_interval_s!r}; expected a positive number.",
                hint="Use poll_interval_s=1.0; sources with a file descriptor are heard at once anyway.",
            )
        self._turns = [_Turn(watcher, poll_interval_s) for watcher in watchers]
        self._on_notice = on_notice
        self._clock = clock
        self._lock = threading.RLock()
        self._closing = threading.Event()
        self._watchers_closed = False
        self._thread: threading.Thread | None = None
        self._wake_fd: int | None = None

    def start(self) -> Self:
        """Starts the thread; a monitor that already runs is left as it is.

        Returns:
            The monitor itself.

        Raises:
            RuntimeError: the monitor has been closed.
        """
        with self._lock:
            if self._closing.is_set():
                raise RuntimeError("This TerminationMonitor has been closed; make a new one.")
            if self._thread is None:
                # The thread owns both ends, and closes them when it ends: close() may be called from it.
                read_fd, self._wake_fd = os.pipe()
                self._thread = threading.Thread(
                    target=self._run, args=(read_fd,), name="tf_preempt-termination", daemon=True
                )
                self._thread.start()
        return self

    def close(self) -> None:
        """Stops the thread and closes the watchers; from any thread, any number of times.

        Waits at most five seconds for a watcher or an `on_notice` that is just running.
        """
        with self._lock:
            self._closing.set()
            if self._wake_fd is not None:
                os.write(self._wake_fd, b"\0")
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_JOIN_TIMEOUT_S)
            if thread.is_alive():
                _log.warning(
                    "The termination monitor's thread is still in a watcher or in on_notice after %.0f s; "
                    "it ends when that returns.",
                    _JOIN_TIMEOUT_S,
                )
        self._close_watchers()

    def tell_saved(self) -> None:
        """Tells all watchers that all is committed and the program leaves."""
        for turn in self._turns:
            try:
                turn.watcher.on_saved()
            except Exception:  # noqa: BLE001 - the others have to hear of it all the same
                _log.exception("%s failed after the save; the program leaves all the same.", turn.name)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _close_watchers(self) -> None:
        with self._lock:
            if self._watchers_closed:
                return
            self._watchers_closed = True
        for turn in self._turns:
            try:
                turn.watcher.close()
            except Exception:  # noqa: BLE001 - the other watchers have to be closed all the same
                _log.exception("%s could not be closed.", turn.name)

    def _run(self, wake_read_fd: int) -> None:
        try:
            while not self._closing.is_set():
                for turn in self._wait(wake_read_fd):
                    if not self._closing.is_set():
                        self._ask(turn)
        finally:
            with self._lock:
                write_fd, self._wake_fd = self._wake_fd, None
            for fd in (wake_read_fd, write_fd):
                if fd is not None:
                    os.close(fd)

    def _wait(self, wake_read_fd: int) -> list[_Turn]:
        """Sleeps until a descriptor is readable or a poll is due; returns whose turn it is."""
        # Registered anew each time: a watcher that backs off must not wake us, and one may open another
        # descriptor after it lost a connection.  This runs about once a second, or when there is news.
        poller = select.poll()
        poller.register(wake_read_fd, select.POLLIN)
        now = self._clock()
        by_fd: dict[int, _Turn] = {}
        polled: list[_Turn] = []
        for turn in self._turns:
            if not turn.rests(now):
                self._register(turn, poller, by_fd, polled)
        timed = [turn for turn in self._turns if turn in polled or turn.rests(now)]
        pause_s = min((max(0.0, turn.due - now) for turn in timed), default=None)
        events = dict(poller.poll(None if pause_s is None else math.ceil(pause_s * 1000)))
        if events.pop(wake_read_fd, 0):
            os.read(wake_read_fd, 512)  # close() in a forked child wakes us too, and must not keep us awake
        for fd, flags in events.items():
            by_fd[fd].broken = not flags & select.POLLIN
        now = self._clock()
        return [by_fd[fd] for fd in events] + [turn for turn in polled if turn.due <= now]

    def _register(
        self, turn: _Turn, poller: select.poll, by_fd: dict[int, _Turn], polled: list[_Turn]
    ) -> None:
        try:
            fd = turn.watcher.fileno()
            if fd is None:
                polled.append(turn)
            else:
                poller.register(fd, select.POLLIN)
                by_fd[fd] = turn
        except BaseException as error:  # noqa: BLE001 - SystemExit would end this thread without a word
            self._report_failure(turn, error)

    def _ask(self, turn: _Turn) -> None:
        """Takes one notice; what is left in a descriptor makes it readable again at once."""
        try:
            notice = turn.watcher.poll()
            if notice is None and turn.broken:
                raise OSError(f"the file descriptor of {turn.name} is closed")
        except BaseException as error:  # noqa: BLE001 - as above
            self._report_failure(turn, error)
            return
        finally:
            turn.broken = False
        if turn.failures:
            _log.info("%s works again after %d failures.", turn.name, turn.failures)
        turn.succeeded(self._clock())
        if notice is not None:
            self._pass_on(notice)

    def _report_failure(self, turn: _Turn, error: BaseException) -> None:
        first = not turn.failures
        pause_s = turn.failed(self._clock())
        if first:
            _log.warning(
                "%s failed; training goes on and other sources of notices stay watched.  Next try in %.1f s, "
                "then less and less often.",
                turn.name,
                pause_s,
                exc_info=error,
            )
        else:
            _log.debug("%s failed again (%r); next try in %.1f s.", turn.name, error, pause_s)

    def _pass_on(self, notice: TerminationNotice) -> None:
        try:
            self._on_notice(notice)
        except BaseException:  # noqa: BLE001 - as above
            _log.exception("The reaction to the notice %r failed; the watchers stay active.", notice)
