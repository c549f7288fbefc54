"""When the notice of an announced event is due: once, shortly before, and not again after a restart."""

from __future__ import annotations

import enum
from collections.abc import Collection, Hashable

__all__ = ["Appointments", "Verdict"]

# A program that has left for a notice may have been started again on the same VM.  What is due at its first
# look it has heard before: it trains on, and leaves once more, so long before the end.
_SECOND_LEAD_S = 30.0


class Verdict(enum.Enum):
    """What to do about an event."""

    DUE = "due"
    LATER = "later"
    UNDER_WAY = "under way"
    TOLD = "told"


class Appointments:
    """Remembers which events were told, and which were due already when the watch began."""

    def __init__(self) -> None:
        self._told: set[Hashable] = set()
        self._old: set[Hashable] = set()

    def verdict(self, event: Hashable, left_s: float | None, lead_s: float, *, is_first: bool) -> Verdict:
        """Says what to do about an event; `DUE` and `UNDER_WAY` are said once.

        Args:
            event: by which it is known.
            left_s: seconds until it begins; None if it has begun.
            lead_s: seconds between its notice and its beginning.
            is_first: whether the watch has just begun.
        """
        if event in self._told:
            return Verdict.TOLD
        has_begun = left_s is None or left_s <= 0
        if is_first and has_begun:
            self._told.add(event)
            return Verdict.UNDER_WAY
        if is_first and left_s is not None and left_s <= lead_s:
            self._old.add(event)
        if left_s is not None and left_s > self._lead_s(event, lead_s):
            return Verdict.LATER
        self._told.add(event)
        return Verdict.DUE

    def due_in_s(self, event: Hashable, left_s: float, lead_s: float) -> float | None:
        """Seconds until the notice of an event is due, 0 if it is now; None if it was told.

        Args:
            event: by which it is known.
            left_s: seconds until it begins.
            lead_s: seconds between its notice and its beginning.
        """
        if event in self._told:
            return None
        return max(0.0, left_s - self._lead_s(event, lead_s))

    def keep(self, events: Collection[Hashable]) -> None:
        """Forgets all others."""
        self._told.intersection_update(events)
        self._old.intersection_update(events)

    def _lead_s(self, event: Hashable, lead_s: float) -> float:
        return min(lead_s, _SECOND_LEAD_S) if event in self._old else lead_s
