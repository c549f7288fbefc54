"""The time limit of a Slurm job as a source of notices: it is known before, and no signal need tell it."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable

from tf_preempt._slurm import SlurmRun
from tf_preempt._slurm_control import JobRecord, SlurmControl
from tf_preempt.errors import SlurmError
from tf_preempt.termination.notice import TerminationNotice
from tf_preempt.termination.slurm import TIME_LIMIT_SOURCE
from tf_preempt.termination.watcher import TerminationWatcher

__all__ = ["TimeLimitWatcher", "lead_s"]

_log = logging.getLogger("tf_preempt")

_PART_OF_LIMIT = 0.1
_LEAST_LEAD_S = 10.0
_MOST_LEAD_S = 60.0
_SAVES_IN_LEAD = 3
# Of a job without a limit, or one that is years away, nobody needs to hear more often than this.
_LONGEST_WAIT_S = 12 * 3600.0
# A controller that does not answer is asked again after so long, and then after twice as long each time.
_FIRST_RETRY_S = 60.0
_LONGEST_RETRY_S = 3600.0
_CLOSED = -1


def lead_s(limit_s: float | None, save_s: float | None) -> float:
    """How long before the end a training begins to leave, in seconds.

    Args:
        limit_s: the job's time limit in seconds; None if it is not known.
        save_s: what the last save took, in seconds; None if there was none.
    """
    part = _MOST_LEAD_S if limit_s is None else _PART_OF_LIMIT * limit_s
    return max(_LEAST_LEAD_S, min(part, _MOST_LEAD_S)) + _SAVES_IN_LEAD * (save_s or 0.0)


class TimeLimitWatcher(TerminationWatcher):
    """Gives one notice some time before a job's time limit ends it.

    The controller is asked when the watcher starts and again when the moment seems to have come, as somebody
    may have changed the limit: not per step, and from a thread of its own, as it may answer late.  Where it
    does not answer, and the environment has no end either, it is asked again, less and less often.

    Args:
        run: which run of which job this is; its `end_time` counts where the controller does not answer.
        control: the controller.
        lead_s: how many seconds before the end the notice comes; None: see the function `lead_s`.
        save_seconds: says what a save takes, in seconds, or None.
        clock: seconds since the epoch.
        monotonic: seconds of the clock in which a notice's deadline is told.
    """

    def __init__(
        self,
        run: SlurmRun,
        control: SlurmControl,
        *,
        lead_s: float | None = None,
        save_seconds: Callable[[], float | None] = lambda: None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run = run
        self._control = control
        self._lead_s = lead_s
        self._save_seconds = save_seconds
        self._clock = clock
        self._monotonic = monotonic
        self._closing = threading.Event()
        self._end_time: float | None = None
        self._retry_s = _FIRST_RETRY_S
        self._said: str | None = None
        self._read_fd, write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        self._thread = threading.Thread(
            target=self._watch, args=(write_fd,), name="tf_preempt-time-limit", daemon=True
        )
        self._thread.start()

    def poll(self) -> TerminationNotice | None:
        """Takes the notice, once it is there."""
        if self._read_fd == _CLOSED:
            return None
        try:
            if not os.read(self._read_fd, 1):
                return None
        except BlockingIOError:
            return None
        left_s = max(0.0, (self._end_time or 0.0) - self._clock())
        return TerminationNotice(
            source=TIME_LIMIT_SOURCE,
            reason=f"the job's time limit ends it in {left_s:.0f} s",
            deadline=self._monotonic() + left_s,
        )

    def fileno(self) -> int | None:
        """The descriptor that is readable while the notice waits to be polled; None after `close`."""
        return None if self._read_fd == _CLOSED else self._read_fd

    def close(self) -> None:
        """Ends the thread; where it is just asking the controller, it ends after the answer."""
        self._closing.set()
        if self._thread is not threading.current_thread():
            self._thread.join(0.2)
        read_fd, self._read_fd = self._read_fd, _CLOSED
        if read_fd != _CLOSED:
            os.close(read_fd)

    def _watch(self, write_fd: int) -> None:
        try:
            if self._wait_for_end():
                os.write(write_fd, b"\0")
                self._closing.wait()  # a closed writing end would look like an error to who reads
        except BrokenPipeError:
            pass  # closed meanwhile
        finally:
            os.close(write_fd)

    def _wait_for_end(self) -> bool:
        """Returns True when the time has come, False when the watcher is closed."""
        while not self._closing.is_set():
            record = self._ask()
            end, limit_s = self._end_of(record)
            if end is None:
                self._closing.wait(self._next_try_s() if record is None else _LONGEST_WAIT_S)
                continue
            lead = self._lead_s if self._lead_s is not None else lead_s(limit_s, self._save_seconds())
            wait_s = end - lead - self._clock()
            if wait_s <= 0:
                self._end_time = end
                return not self._closing.is_set()
            self._closing.wait(min(wait_s, _LONGEST_WAIT_S))
        return False

    def _ask(self) -> JobRecord | None:
        """The controller's answer; None if it gives none."""
        try:
            return self._control.job(self._run.job_id)
        except SlurmError as error:
            self._say(f"Slurm could not be asked for the job's end: {str(error).splitlines()[0]}")
            return None

    def _end_of(self, record: JobRecord | None) -> tuple[float | None, float | None]:
        """The end of this run, in seconds since the epoch, and its time limit in seconds."""
        if record is None:
            return self._run.end_time, None
        if record.preempt_time is not None or (record.restarts or 0) > self._run.restart_count:
            # This run's end is near for another reason, of which a signal tells.
            return self._run.end_time, record.limit_s
        if record.end_time is None:
            self._say(f"Slurm tells no end of job {self._run.job_id}, so that no time limit is watched.")
        return record.end_time or self._run.end_time, record.limit_s

    def _next_try_s(self) -> float:
        wait_s, self._retry_s = self._retry_s, min(2 * self._retry_s, _LONGEST_RETRY_S)
        return wait_s

    def _say(self, words: str) -> None:
        if words != self._said:
            self._said = words
            _log.info("%s", words)
