"""When this worker asks for a round: on a notice, when a periodic save is due, when a grace period ends.

Everything here runs in background threads; the main thread only says how long saves take.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from tf_preempt.checkpointing.cadence import Cadence
from tf_preempt.checkpointing.countdown import SaveTimes, StepTimes
from tf_preempt.checkpointing.rounds import Request, RequestKind
from tf_preempt.checkpointing.startup import Cluster
from tf_preempt.termination.notice import TerminationNotice
from tf_preempt.termination.shortest_notice import ShortestNotice

_log = logging.getLogger("tf_preempt")
_GRACE_IN_SAVES = 3  # a grace period has to hold several saves; see TerminationConfig
_LEAVE_MARGIN_S = 1.0  # twice the agreement thread's poll


class Asking:
    """Decides when to ask and for what.

    Args:
        cluster: who takes part; the chief's clock decides on periodic saves.
        cadence: of periodic saves.
        grace_period: seconds from a notice to the end, used for training; 0: leave at once; None: likewise,
            unless the notice is one to train on after.
        ask: opens a round.
        at: says at which boundary the main thread is.
        shortest: the shortest notice that is to be expected; None if nobody knows of one.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        cluster: Cluster,
        cadence: Cadence,
        grace_period: float | None,
        ask: Callable[[Request], None],
        *,
        at: Callable[[], int] = lambda: 0,
        shortest: ShortestNotice | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._cadence = cadence
        self._grace_period = grace_period
        self._ask_for = ask
        self._at = at
        self._shortest = shortest
        self._clock = clock
        self._saved_at = clock()
        self._held_seconds: float | None = None
        self._saves = SaveTimes(clock)
        self._steps = StepTimes()
        self._leave_by: float | None = None
        self._fits = True
        self._warned_of_short_grace = False

    @property
    def save_seconds(self) -> float | None:
        """How long a save takes up to its commit, in seconds; None if there was none, in no life."""
        return self._saves.seconds

    def expect(self, seconds: float) -> None:
        """Notes how long a save took in an earlier life, in seconds."""
        self._saves.expect(seconds)
        self._see_if_saves_fit()

    def saved(self, number: int, seconds: float) -> None:
        """Notes a save that held training up for so many seconds and has just been written."""
        self._saved_at, self._held_seconds = self._clock(), seconds
        self._steps.saved(seconds)
        self._saves.written(number, seconds)

    def committed(self, number: int, *, committed: bool = True) -> None:
        """Notes that a save is committed, or will never be."""
        self._saves.ended(number, committed=committed)
        self._see_if_saves_fit()

    def on_notice(self, notice: TerminationNotice) -> None:
        """Asks all workers to save, and to leave at once or, in a grace period, to train on."""
        left = self._left_s(notice)
        if left is not None and self._may_train_on(notice, left):
            by = self._clock() + left
            self._leave_by = by if self._leave_by is None else min(by, self._leave_by)
            _log.warning(
                "Training goes on after a save, for %.0f s at most; then it is saved again and left.",
                max(0.0, self._leave_by - self._clock() - self._needed_s()),
            )
            self._ask("notice", notice.source, left)
        else:
            self._ask("leave", notice.source, left)

    def on_interrupt(self, notice: TerminationNotice) -> None:
        """Asks all workers to save and leave at once, whatever time there may be."""
        self._ask("leave", notice.source)

    def on_claim(self, request: Request) -> None:
        """Says what another worker was told; and that this one has reported where it is."""
        _log.info("The workers agree where to save (%s).", request.reason)
        if request.kind != "save" and request.worker != self._cluster.worker:
            _log.warning("Worker %d was given notice: %s.", request.worker, request.reason)

    def on_poll(self) -> None:
        """Asks for what has become due."""
        now = self._clock()
        self._steps.look(self._at(), now)
        if self._leave_by is not None:
            left = self._leave_by - now
            if left <= self._needed_s():
                self._leave_by = None
                self._ask("leave", "the end of the grace period", max(0.0, left))
        decides = self._cluster.is_chief and self._cadence.by_clock
        if decides and now - self._saved_at >= self._cadence.interval_s(self._held_seconds, fits=self._fits):
            self._saved_at = now
            self._ask("save", self._cadence.describe())

    def _left_s(self, notice: TerminationNotice) -> float | None:
        """Seconds until the end: the notice's own, and no more than the user's grace period."""
        told = (notice.remaining_s(self._clock), self._grace_period or None)
        return min((seconds for seconds in told if seconds is not None), default=None)

    def _needed_s(self) -> float:
        """Seconds that it takes to ask, to end the running step, and to save and commit, with a margin."""
        save_s = self._saves.seconds or 0.0
        saving_s = _GRACE_IN_SAVES * (save_s + self._saves.rest_s())
        return _LEAVE_MARGIN_S + self._steps.longest_s(self._clock()) + saving_s

    def _may_train_on(self, notice: TerminationNotice, left_s: float) -> bool:
        """Says whether the time that is left is trained in: where the user, or else the platform, says so."""
        if not (notice.trains_on if self._grace_period is None else self._grace_period):
            return False
        needed_s = self._needed_s()
        if left_s > needed_s:
            return True
        if not self._warned_of_short_grace:
            self._warned_of_short_grace = True
            _log.warning(
                "%.1f s are left, and %.1f s are kept for leaving: %d times what a save takes (%.1f s), and "
                "the running step. Saving and leaving at once.\n"
                "HINT: set grace_period only where the platform gives several times what a save takes.",
                left_s,
                needed_s,
                _GRACE_IN_SAVES,
                self._saves.seconds or 0.0,
            )
        return False

    def _see_if_saves_fit(self) -> None:
        """Says beforehand, once, that a save on notice may come too late; periodic ones count then."""
        seconds, shortest = self._saves.seconds, self._shortest
        if not self._fits or seconds is None or shortest is None or seconds <= shortest.seconds:
            return
        self._fits = False
        if self._cluster.is_chief:
            more = " Periodic saves come more often." if self._cadence.kind == "auto" else ""
            _log.warning(
                "A save takes %.1f s, and the notice is %g s (%s): the save on notice may not be committed, "
                "and the last periodic one counts then.%s\nHINT: %s",
                seconds,
                shortest.seconds,
                shortest.origin,
                more,
                shortest.cure,
            )

    def _ask(self, kind: RequestKind, reason: str, left_s: float | None = None) -> None:
        self._ask_for(Request(kind=kind, worker=self._cluster.worker, reason=reason, deadline_s=left_s))
