"""Waits for the end of process trees: passes signals on, and loses patience when it must.

Trees that belong together end together.  When one has died, or when we were told to end, the others are given
some time to save and leave by themselves; then SIGTERM reminds them, then SIGKILL ends them.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Sequence

from tf_preempt.errors import ConfigError
from tf_preempt.launch.inbox import Cleared, Exited, Inbox, Message, Signalled
from tf_preempt.launch.process_tree import ProcessTree
from tf_preempt.termination.exit_codes import describe

__all__ = ["Escalation", "TreeWatch"]

# After SIGTERM: long enough for a worker to notice that its peers are gone and to leave properly.
_LAST_CHANCE_S = 15.0
# After SIGKILL: a process that hangs in the kernel's I/O may stay for ever, and must not keep us.
_AFTER_KILL_S = 10.0

_logger = logging.getLogger("tf_preempt")


@dataclasses.dataclass
class Escalation:
    """What to do next to those who do not leave, and when; knows nothing of processes.

    Args:
        stop_timeout_s: seconds from `begin` to SIGTERM.

    Raises:
        ConfigError: `stop_timeout_s` is no number of 0 or more.
    """

    stop_timeout_s: float
    _deadline: float | None = None
    _next: signal.Signals | None = signal.SIGTERM

    def __post_init__(self) -> None:
        if not 0 <= self.stop_timeout_s < math.inf:
            raise ConfigError(f"stop_timeout_s={self.stop_timeout_s} must be 0 or more seconds.")

    def begin(self, now: float) -> None:
        """Starts the countdown; again does nothing."""
        if self._deadline is None:
            self._deadline = now + self.stop_timeout_s

    def hurry(self, now: float) -> None:
        """Makes SIGKILL due."""
        if self._next is not None:
            self._deadline, self._next = now, signal.SIGKILL

    def remaining_s(self, now: float) -> float | None:
        """Seconds until something is due; None: nothing ever will be, unless `begin` is called."""
        return None if self._deadline is None or self._next is None else max(0.0, self._deadline - now)

    def due(self, now: float) -> signal.Signals | None:
        """The signal to send now, once; None: not yet, or nothing more to do."""
        if self.remaining_s(now) != 0.0:
            return None
        due = self._next
        if due is signal.SIGTERM:
            self._deadline, self._next = now + min(_LAST_CHANCE_S, self.stop_timeout_s), signal.SIGKILL
        else:
            self._next = None
        return due


class TreeWatch:
    """Waits for process trees to end, all or none.

    Args:
        trees: what was started.
        inbox: where signals to this process arrive; ends of the trees are put there too.
        stop_timeout_s: how long the trees may take to leave by themselves, after one of them has died or a
            signal has asked all of them to end.
        clock: monotonic time in seconds.

    Raises:
        ConfigError: `stop_timeout_s` is negative.
    """

    ENDING_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
    """Signals that ask a program to end; others are only passed on."""

    def __init__(
        self,
        trees: Sequence[ProcessTree],
        inbox: Inbox,
        *,
        stop_timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._trees = trees
        self._inbox = inbox
        self._clock = clock
        self._escalation = Escalation(stop_timeout_s)
        self._give_up_at: float | None = None
        self._alive = set(range(len(trees)))
        self._not_cleared = set(range(len(trees)))
        self._threads = [
            threading.Thread(target=self._wait_for_tree, args=(i,), name=f"tf_preempt wait {i}", daemon=True)
            for i in range(len(trees))
        ]
        self.ending_signal: int | None = None
        """The first signal that asked this process to end while it was waiting."""
        for thread in self._threads:
            thread.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until nothing is left of any tree; says whether that is so.

        Args:
            timeout_s: seconds; None: as long as it takes, but no longer than 10 seconds after SIGKILL: what
                is there then hangs in the kernel.
        """
        deadline = None if timeout_s is None else self._clock() + timeout_s
        while self._not_cleared:
            if signum := self._escalation.due(self._clock()):
                self._signal_those_left(signum)
            now = self._clock()
            end = self._give_up_at if deadline is None else deadline
            waits = [self._escalation.remaining_s(now), None if end is None else end - now]
            message = self._inbox.get(min((wait for wait in waits if wait is not None), default=None))
            if message is not None:
                self._handle(message)
            elif end is not None and self._clock() >= end:
                return False
        for thread in self._threads:
            thread.join()
        return True

    def forward(self, signum: int) -> None:
        """Passes a signal on to all programs alive; one that asks for the end starts the countdown."""
        for i in sorted(self._alive):
            self._trees[i].send_signal(signum)
        if signum in self.ENDING_SIGNALS:
            self._escalation.begin(self._clock())

    def kill(self) -> None:
        """Ends everything now."""
        self._escalation.hurry(self._clock())

    def _handle(self, message: Message) -> None:
        if isinstance(message, Signalled):
            self._on_signal(message.signum)
        elif isinstance(message, Exited):
            self._alive.discard(message.tree)
            self._on_exit(message.tree)
        else:
            self._not_cleared.discard(message.tree)

    def _on_signal(self, signum: int) -> None:
        if signum == signal.SIGINT and self.ending_signal == signal.SIGINT:
            _logger.warning("Ctrl-C again: killing what is left")
            self.kill()
            return
        _logger.info(
            "passing %s on%s",
            signal.Signals(signum).name,
            f", and waiting for the program to leave, {self._escalation.stop_timeout_s:g} s at most"
            if signum in self.ENDING_SIGNALS
            else "",
        )
        if signum in self.ENDING_SIGNALS and self.ending_signal is None:
            self.ending_signal = signum
        self.forward(signum)

    def _on_exit(self, tree: int) -> None:
        code = self._trees[tree].returncode
        if code and self._alive and self._escalation.remaining_s(self._clock()) is None:
            _logger.info(
                "worker %d ended: %s; the others have %g s to leave",
                tree,
                describe(code),
                self._escalation.stop_timeout_s,
            )
            self._escalation.begin(self._clock())

    def _signal_those_left(self, signum: signal.Signals) -> None:
        left = [process.pid for i in sorted(self._not_cleared) for process in self._trees[i].members()]
        _logger.warning("sending %s to what has not left: processes %s", signum.name, left)
        for i in sorted(self._not_cleared):
            if signum == signal.SIGKILL:
                self._trees[i].kill()
            else:
                self._trees[i].signal_all(signum)
        if signum == signal.SIGKILL:
            self._give_up_at = self._clock() + _AFTER_KILL_S

    def _wait_for_tree(self, i: int) -> None:
        self._trees[i].wait()
        self._inbox.put(Exited(i))
        # A shell that died of the signal it got has not passed it on; what it started gets it here.
        self._trees[i].stop(self._escalation.stop_timeout_s)
        self._inbox.put(Cleared(i))
