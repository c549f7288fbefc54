"""What saves and steps take: how long before its end a countdown has to be over.

The last save has to be committed by then, not only begun.  Nothing here is asked in a step: saves are noted
by who makes them, steps are seen by the agreement thread, which looks at the boundary about twice a second.
"""

from __future__ import annotations

import math
from collections.abc import Callable

_KEPT = 3
# Before it lies the first step, which traces and compiles; Keras has a boundary before that one, too.
_FIRST_BOUNDARY = 2


class SaveTimes:
    """What whole saves take, from their beginning to the commit.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._earlier_s: float | None = None
        self._last: tuple[float, ...] = ()  # replaced, never changed: several threads read it
        self._running: dict[int, float] = {}

    @property
    def seconds(self) -> float | None:
        """The longest of the last three saves, or of an earlier life's last; None if there was none."""
        now = self._clock()
        known = self._last or (() if self._earlier_s is None else (self._earlier_s,))
        return max([*known, *(now - began for began in list(self._running.values()))], default=None)

    def expect(self, seconds: float) -> None:
        """Notes what a save took in an earlier life; counts until this one has made one.

        Args:
            seconds: as a manifest tells it; what is no time is ignored.
        """
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if is_number and math.isfinite(seconds) and seconds >= 0:
            self._earlier_s = float(seconds)

    def written(self, number: int, seconds: float) -> None:
        """Notes a save whose files are written, which took so many seconds; its commit is under way."""
        self._running[number] = self._clock() - seconds

    def ended(self, number: int, *, committed: bool) -> None:
        """Notes that a save is committed, or will never be."""
        began = self._running.pop(number, None)
        if began is not None and committed:
            self._last = (*self._last, self._clock() - began)[-_KEPT:]

    def rest_s(self) -> float:
        """Seconds that the commits under way will still take; the next save's comes after them."""
        whole, now = self.seconds or 0.0, self._clock()
        return sum(max(0.0, whole - (now - began)) for began in list(self._running.values()))


class StepTimes:
    """What the longest step took: all that lies between two boundaries, also a callback, but no save."""

    def __init__(self) -> None:
        self._longest_s = 0.0
        self._at = 0
        self._since: float | None = None
        self._looked = 0.0
        self._saved_s = 0.0

    def look(self, at: int, now: float) -> None:
        """Notes where the main thread is; to be called again and again.

        Args:
            at: the boundary.
            now: monotonic seconds.
        """
        if self._since is None:
            self._at, self._since = at, now
        elif at != self._at:
            if self._at >= _FIRST_BOUNDARY:
                self._longest_s = max(self._longest_s, self._bound_s(at - self._at, now))
            self._at, self._since, self._saved_s = at, now, 0.0
        self._looked = now

    def saved(self, seconds: float) -> None:
        """Notes a save at the present boundary, which is no part of a step."""
        self._saved_s += seconds

    def longest_s(self, now: float) -> float:
        """Seconds that a step takes at most, as far as is known; the running one counts as far as it is."""
        if self._since is None or self._at < _FIRST_BOUNDARY:
            return 0.0
        return max(self._longest_s, now - self._since - self._saved_s)

    def _bound_s(self, crossed: int, now: float) -> float:
        """No step since the last change can have taken longer; looks are too rare to tell more exactly."""
        since = self._since if self._since is not None else now
        gap_s = now - self._looked
        if crossed > 1 and since == self._looked:
            return gap_s / (crossed - 1)
        return max(0.0, now - since + gap_s - self._saved_s)
