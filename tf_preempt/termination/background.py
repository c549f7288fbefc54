"""Watchers that have to wait for an answer: each has a thread of its own, which no answer can end."""

from __future__ import annotations

import abc
import collections
import http.client
import logging
import os
import threading

from tf_preempt.termination.metadata_client import MetadataStatusError
from tf_preempt.termination.notice import TerminationNotice
from tf_preempt.termination.watcher import TerminationWatcher

__all__ = ["BackgroundWatcher"]

_log = logging.getLogger("tf_preempt")

_LONGEST_PAUSE_S = 30.0
# What a server says that is busy, or is being moved together with the VM: it will answer soon.
_LONGEST_PAUSE_BUSY_S = 5.0
_BUSY = (http.client.SERVICE_UNAVAILABLE, http.client.TOO_MANY_REQUESTS)
_JOIN_TIMEOUT_S = 1.0
_CLOSED = -1


class BackgroundWatcher(TerminationWatcher):
    """Looks for notices again and again in its own daemon thread, from construction to `close`.

    A look that fails is logged once, repeated after 1, 2, 4, ... `first_retry_s` (at most 30 s, or 5 s where
    the server says that it is busy) and logged again when it succeeds.

    A class of this kind defines `_look` and `_cancel`, and calls `_start` at the end of its constructor.

    Args:
        first_retry_s: seconds until the next look after the first failure.
    """

    def __init__(self, *, first_retry_s: float = 1.0) -> None:
        self._first_retry_s = first_retry_s
        self._failures = 0
        self._has_looked = False
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._notices: collections.deque[TerminationNotice] = collections.deque()
        self._read_fd, self._write_fd = os.pipe()
        self._thread = threading.Thread(
            target=self._run, name=f"tf_preempt-{type(self).__name__}", daemon=True
        )

    @property
    def _is_first_try(self) -> bool:
        """Whether this is the first look, so that what it finds was there before the training."""
        return not self._has_looked

    @abc.abstractmethod
    def _look(self) -> float:
        """Asks once, in the watcher's thread, passes what is new to `_give`, and may wait.

        Returns:
            Seconds until the next look.

        Raises:
            Exception: anything; see the class.
        """

    @abc.abstractmethod
    def _cancel(self) -> None:
        """Ends a look that is waiting; called from another thread."""

    def poll(self) -> TerminationNotice | None:
        """Takes the oldest notice that was not taken yet."""
        with self._lock:
            if self._read_fd == _CLOSED or not self._notices:
                return None
            os.read(self._read_fd, 1)
            return self._notices.popleft()

    def fileno(self) -> int | None:
        """The descriptor that is readable while a notice waits to be polled; None after `close`."""
        return None if self._read_fd == _CLOSED else self._read_fd

    def close(self) -> None:
        """Ends the thread, also where it waits for an answer; notices that were not polled are dropped."""
        self._closing.set()
        self._cancel()
        if self._thread is not threading.current_thread() and self._thread.is_alive():
            self._thread.join(_JOIN_TIMEOUT_S)
        with self._lock:
            descriptors = (self._read_fd, self._write_fd)
            self._read_fd = self._write_fd = _CLOSED
        for fd in descriptors:
            if fd != _CLOSED:
                os.close(fd)

    def _start(self) -> None:
        self._thread.start()

    def _give(self, notice: TerminationNotice) -> None:
        """Makes a notice ready to be polled."""
        with self._lock:
            if self._write_fd != _CLOSED:
                self._notices.append(notice)
                os.write(self._write_fd, b"\0")

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                pause_s = self._look()
            except BaseException as error:  # noqa: BLE001 - nothing may end this thread without a word
                if self._closing.is_set():
                    return
                pause_s = self._report_failure(error)
            else:
                self._report_success()
            self._has_looked = True
            self._closing.wait(pause_s)

    def _report_failure(self, error: BaseException) -> float:
        """Returns the seconds until the next look."""
        longest = _LONGEST_PAUSE_S
        if isinstance(error, MetadataStatusError) and error.status in _BUSY:
            longest = _LONGEST_PAUSE_BUSY_S
        # The exponent is bounded because a float overflows long before a week of failures is over.
        pause_s = min(self._first_retry_s * 2.0 ** min(self._failures, 32), longest)
        self._failures += 1
        if self._failures == 1:
            _log.warning(
                "%s failed; training goes on and other sources of notices stay watched.  This one is asked "
                "again, less and less often.  %s",
                type(self).__name__,
                error,
            )
            _log.debug("%s failed.", type(self).__name__, exc_info=error)
        else:
            _log.debug("%s failed again (%r); next try in %.1f s.", type(self).__name__, error, pause_s)
        return pause_s

    def _report_success(self) -> None:
        if self._failures:
            _log.info("%s works again after %d failures.", type(self).__name__, self._failures)
            self._failures = 0
