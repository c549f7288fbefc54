"""What a platform said about the end of this worker."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable

from tf_preempt.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class TerminationNotice:
    """A platform's word that this worker will go away.

    Args:
        source: who said it, short and stable, for logs and events, such as ``"SIGTERM"``.
        reason: what was said, in a few words, for people.
        deadline: the moment after which the process may be gone, in seconds of ``time.monotonic``; None if
            the source does not tell.  Events and logs carry the seconds that are left instead, because
            this clock means nothing in another process.
        trains_on: the time until the deadline is long, and by the platform's custom it is trained in: what is
            done unless the user's `grace_period` says otherwise.

    Raises:
        ConfigError: `source` is empty, or `deadline` is not a finite number.
    """

    source: str
    reason: str
    deadline: float | None = None
    trains_on: bool = False

    def __post_init__(self) -> None:
        if not self.source:
            raise ConfigError("TerminationNotice: source is empty; expected a short name such as 'SIGTERM'.")
        if self.deadline is not None and not math.isfinite(self.deadline):
            raise ConfigError(
                f"TerminationNotice: deadline={self.deadline!r}; expected seconds of time.monotonic or None.",
                hint="Use deadline=None where the platform names no time.",
            )

    def remaining_s(self, clock: Callable[[], float] = time.monotonic) -> float | None:
        """Seconds until the deadline.

        Args:
            clock: the monotonic clock that `deadline` was read from, in seconds.

        Returns:
            Seconds left, 0.0 once the deadline has passed, None if there is no deadline.
        """
        return None if self.deadline is None else max(0.0, self.deadline - clock())
