"""When periodic checkpoints are made: pure decisions, no clock and no files.

Cadences that follow the step (`every N steps`, `epoch`) are known to all workers at the boundary itself, so
nobody has to be asked.  Cadences that follow the clock (`auto`, seconds) are decided by the chief, who then
opens a round: the workers' clocks differ.
"""

from __future__ import annotations

import dataclasses
import datetime
from typing import Literal

from tf_preempt.errors import ConfigError

SaveEvery = str | int | datetime.timedelta | None
"""What `save_every` takes: ``"auto"``, ``"epoch"``, a number of steps, a time span, or None for never."""

OVERHEAD_BUDGET = 0.01
# Where no save fits into a notice, what was done since the last periodic one is lost each time.
OVERHEAD_BUDGET_WITHOUT_NOTICE = 0.05
LONGEST_INTERVAL_S = 3600.0
SHORTEST_INTERVAL_S = 15.0
FIRST_SAVE_AFTER_S = 60.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cadence:
    """A parsed `save_every`.

    Args:
        kind: by what it goes.
        steps: for ``"steps"``.
        seconds: for ``"seconds"``.
    """

    kind: Literal["auto", "epoch", "steps", "seconds", "never"]
    steps: int = 0
    seconds: float = 0.0

    @classmethod
    def parse(cls, save_every: SaveEvery) -> Cadence:
        """Reads the argument `save_every`.

        Raises:
            ConfigError: it is none of the things it can be.
        """
        if save_every is None:
            return cls(kind="never")
        if save_every == "auto":
            return cls(kind="auto")
        if save_every == "epoch":
            return cls(kind="epoch")
        if isinstance(save_every, datetime.timedelta) and save_every.total_seconds() > 0:
            return cls(kind="seconds", seconds=save_every.total_seconds())
        if isinstance(save_every, int) and not isinstance(save_every, bool) and save_every > 0:
            return cls(kind="steps", steps=save_every)
        raise ConfigError(
            f"save_every={save_every!r}: expected 'auto', 'epoch', a positive number of steps, "
            "a positive datetime.timedelta, or None.",
            hint="save_every='auto' keeps the cost of saving at or under 1 % of training time",
        )

    @property
    def by_clock(self) -> bool:
        """Says whether the chief's clock decides."""
        return self.kind in ("auto", "seconds")

    def due_at_boundary(self, *, step: int, saved_step: int, new_epoch: bool) -> bool:
        """Says whether all workers save at this boundary without being asked.

        Args:
            step: training steps done.
            saved_step: training steps done at the last save.
            new_epoch: this is the first boundary of an epoch that this process has trained up to.
        """
        if self.kind == "steps":
            return step // self.steps > saved_step // self.steps
        return self.kind == "epoch" and new_epoch and step > saved_step

    def interval_s(self, save_seconds: float | None, *, fits: bool = True) -> float:
        """Seconds between two saves by the clock.

        Args:
            save_seconds: how long the last save held up training; None before the first.
            fits: whether a save fits into the shortest notice.
        """
        if self.kind == "seconds":
            return self.seconds
        if save_seconds is None:
            return FIRST_SAVE_AFTER_S
        budget = OVERHEAD_BUDGET if fits else OVERHEAD_BUDGET_WITHOUT_NOTICE
        return min(LONGEST_INTERVAL_S, max(SHORTEST_INTERVAL_S, save_seconds / budget))

    def describe(self) -> str:
        """The reason that a periodic save gives."""
        match self.kind:
            case "steps":
                return f"every {self.steps} steps"
            case "epoch":
                return "every epoch"
            case "seconds":
                return f"every {self.seconds:g} s"
            case _:
                return "periodic"
