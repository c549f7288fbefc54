"""When this worker asks for a round: on a notice, when a periodic save is due, when a grace period ends.

Everything here runs in background threads; the main thread only says how long the last save took.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from tf_preempt.checkpointing.cadence import Cadence
from tf_preempt.checkpointing.rounds import Request, RequestKind
from tf_preempt.checkpointing.startup import Cluster
from tf_preempt.termination.notice import TerminationNotice

_log = logging.getLogger("tf_preempt")
_GRACE_IN_SAVES = 3  # a grace period has to hold several saves; see TerminationConfig
_LEAVE_MARGIN_S = 1.0  # twice the agreement thread's poll


class Asking:
    """Decides when to ask and for what.

    Args:
        cluster: who takes part; the chief's clock decides on periodic saves.
        cadence: of periodic saves.
        grace_period: seconds from a notice to the end, used for training; None or 0: leave at once.
        ask: opens a round.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        cluster: Cluster,
        cadence: Cadence,
        grace_period: float | None,
        ask: Callable[[Request], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._cadence = cadence
        self._grace_period = grace_period
        self._ask_for = ask
        self._clock = clock
        self._saved_at = clock()
        self._save_seconds: float | None = None
        self._leave_by: float | None = None

    @property
    def save_seconds(self) -> float | None:
        """How long the last save held training up, in seconds; None if there was none."""
        return self._save_seconds

    def saved(self, seconds: float) -> None:
        """Notes a save that held training up for so many seconds and has just ended."""
        self._saved_at, self._save_seconds = self._clock(), seconds

    def on_notice(self, notice: TerminationNotice) -> None:
        """Asks all workers to save, and to leave at once or, in a grace period, to train on."""
        left = notice.remaining_s(self._clock)
        left = left if left is not None else self._grace_period
        if left is not None and self._may_train_on(left):
            by = self._clock() + left
            self._leave_by = by if self._leave_by is None else min(by, self._leave_by)
            self._ask("notice", notice.source, left)
        else:
            self._ask("leave", notice.source, left)

    def on_claim(self, request: Request) -> None:
        """Says what another worker was told; and that this one has reported where it is."""
        _log.info("The workers agree where to save (%s).", request.reason)
        if request.kind != "save" and request.worker != self._cluster.worker:
            _log.warning("Worker %d was given notice: %s.", request.worker, request.reason)

    def on_poll(self) -> None:
        """Asks for what has become due."""
        now = self._clock()
        if self._leave_by is not None:
            left = self._leave_by - now
            if left <= _LEAVE_MARGIN_S + _GRACE_IN_SAVES * (self._save_seconds or 0.0):
                self._leave_by = None
                self._ask("leave", "the end of the grace period", max(0.0, left))
        decides = self._cluster.is_chief and self._cadence.by_clock
        if decides and now - self._saved_at >= self._cadence.interval_s(self._save_seconds):
            self._saved_at = now
            self._ask("save", self._cadence.describe())

    def _may_train_on(self, left_s: float) -> bool:
        """Says whether the time that is left is used for training: only where a grace period is set."""
        if not self._grace_period:
            return False
        if self._save_seconds is not None and left_s < _GRACE_IN_SAVES * self._save_seconds:
            _log.warning(
                "%.1f s are left, less than %d times what a save takes (%.1f s): saving and leaving at once. "
                "HINT: set grace_period only where the platform gives several times that.",
                left_s,
                _GRACE_IN_SAVES,
                self._save_seconds,
            )
            return False
        return True

    def _ask(self, kind: RequestKind, reason: str, left_s: float | None = None) -> None:
        self._ask_for(Request(kind=kind, worker=self._cluster.worker, reason=reason, deadline_s=left_s))
