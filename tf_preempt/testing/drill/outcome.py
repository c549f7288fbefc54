"""What a drill has found: a verdict, as lines for people and as an object for programs."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Any

from tf_preempt.testing.drill.causes import Cause
from tf_preempt.testing.drill.comparing import Comparison
from tf_preempt.testing.drill.kill_watch import Sent
from tf_preempt.testing.drill.options import DrillOptions

__all__ = ["FORMAT", "Outcome", "Verdict"]

FORMAT = 1
"""The format of `Outcome.to_json`."""

_MOST_LINES = 12
_FIRST = ("place", "weights", "seeds", "history", "metrics", "optimizer")


class Verdict(enum.Enum):
    """What came out."""

    IDENTICAL = "identical"
    """The disturbed training ended with every bit of the undisturbed one."""
    DIFFERENT = "different"
    """It did not."""
    NOT_REPEATABLE = "not_repeatable"
    """Two undisturbed trainings differ, so that nothing can be said of a disturbed one."""
    NOT_DISTURBED = "not_disturbed"
    """The training ended before a single signal could take effect."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a drill.

    Args:
        options: what was asked for.
        verdict: what came out.
        steps: training steps that the undisturbed program takes, all its trainings together.
        commits: how many checkpoints the undisturbed training committed.
        sent: the signals that were sent.
        unsent: how many could not be sent, or came when all was over.
        repeatable: whether two undisturbed trainings were the same; None: that was not tried.
        comparison: of the trainings that the verdict is about; None: nothing was compared.
        causes: likely ones.
        directory: where checkpoints and logs are; None: they were removed.
    """

    options: DrillOptions
    verdict: Verdict
    steps: int
    commits: int
    sent: Sequence[Sent] = ()
    unsent: int = 0
    repeatable: bool | None = None
    comparison: Comparison | None = None
    causes: Sequence[Cause] = ()
    directory: str | None = None

    def lines(self) -> list[str]:
        """The report for people."""
        told = {
            Verdict.IDENTICAL: self._identical,
            Verdict.DIFFERENT: self._different,
            Verdict.NOT_REPEATABLE: self._not_repeatable,
            Verdict.NOT_DISTURBED: self._not_disturbed,
        }
        return [*told[self.verdict](), *self._missed()]

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values; ``format`` tells a change of their meaning."""
        comparison = self.comparison
        return {
            "format": FORMAT,
            "verdict": self.verdict.value,
            "command": list(self.options.command),
            "seed": self.options.seed,
            "workers": self.options.workers or 1,
            "signals": list(self.options.signals),
            "kills": self.options.kills,
            "kills_made": self._made,
            "kills_missed": self.unsent,
            "sent": [
                {
                    "signal": sent.kill.signal.name,
                    "worker": sent.kill.worker,
                    "after_step": sent.after_step,
                    "struck": sent.struck,
                }
                for sent in self.sent
            ],
            "steps": self.steps,
            "commits": self.commits,
            "repeatable": self.repeatable,
            "compared": dict(comparison.compared) if comparison else {},
            "not_compared": comparison.not_compared if comparison else 0,
            "differences": [dict(one) for one in comparison.differences] if comparison else [],
            "fits_missing": list(comparison.fits_missing) if comparison else [],
            "random_states_differing": list(comparison.random) if comparison else [],
            "common_steps": comparison.common_steps if comparison else 0,
            "last_identical_step": comparison.last_alike if comparison else None,
            "first_different_step": comparison.first_unlike if comparison else None,
            "likely_causes": [dataclasses.asdict(cause) for cause in self.causes],
            "directory": self.directory,
        }

    @property
    def _made(self) -> int:
        return sum(sent.struck for sent in self.sent)

    def _identical(self) -> list[str]:
        return [
            f"identical: after {_count(self._made, 'interruption')}, {_count(self.steps, 'step')} ended with "
            "the bits of the undisturbed training",
            *self._compared(),
        ]

    def _different(self) -> list[str]:
        return [
            f"DIFFERENT: after {_count(self._made, 'interruption')}, the training did not end as the "
            "undisturbed one",
            *self._differences(),
            *self._since(),
            *self._likely(),
        ]

    def _not_repeatable(self) -> list[str]:
        return [
            "NOT REPEATABLE: two undisturbed trainings did not end alike, so an interrupted one "
            "cannot either; it was not tried",
            *self._differences(),
            *self._since(),
            *self._likely(),
        ]

    def _not_disturbed(self) -> list[str]:
        return [
            "NOT DISTURBED: the training ended before any signal could take effect, so that nothing was "
            "tried out",
        ]

    def _compared(self) -> list[str]:
        if self.comparison is None:
            return []
        parts = ", ".join(f"{count} {group}" for group, count in sorted(self.comparison.compared.items()))
        lines = [f"  compared: {parts}"]
        if self.comparison.not_compared:
            lines.append(f"  not compared: {_count(self.comparison.not_compared, 'position')} in data")
        return lines

    def _differences(self) -> list[str]:
        if self.comparison is None:
            return []
        found = sorted(self.comparison.differences, key=lambda one: _rank(one["group"]))
        lines = [f"  {_describe(one)}" for one in found[:_MOST_LINES]]
        if len(found) > _MOST_LINES:
            lines.append(f"  and {len(found) - _MOST_LINES} more; --json lists all")
        for fit in self.comparison.fits_missing:
            lines.append(f"  training {fit} of the program is complete in one of the two only")
        return [*lines, *self._compared()]

    def _since(self) -> list[str]:
        if self.comparison is None:
            return []
        alike, unlike = self.comparison.last_alike, self.comparison.first_unlike
        if unlike is None and alike is None:
            cure = "save_every=N in the program gives checkpoints at more steps"
            return [f"  since which step is not known: no checkpoints of one step; {cure}"]
        if unlike is None:
            return [f"  the variables were alike at step {alike}, the last that both have saved"]
        if alike is None:
            return [f"  the variables differ at step {unlike} already, the first that both have saved"]
        return [f"  the variables were alike at step {alike} and differ at step {unlike}"]

    def _likely(self) -> list[str]:
        return [_describe_cause(cause) for cause in self.causes]

    def _missed(self) -> list[str]:
        if not self.unsent:
            return []
        had = f"{self._made} of {_count(self.options.kills, 'signal')} took effect"
        if not self._commits_midway and "TERM" not in self.options.signals:
            why = "it commits nothing before its end, and SIGKILL waits for a commit"
            return [f"  {had}: {why}\n    HINT: save_every=N in the program, or --signals TERM,KILL"]
        cure = f"--kills {max(1, self._made)}, more steps, or a smaller save_every"
        return [f"  {had}: the training ended before\n    HINT: {cure}"]

    @property
    def _commits_midway(self) -> bool:
        """Says whether the undisturbed program committed anything before its end."""
        return self.commits > 1


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _describe_cause(cause: Cause) -> str:
    log = f"\n    the whole warning is in {cause.log}" if cause.log else ""
    return f"  likely: {cause.text}{log}\n    HINT: {cause.cure}"


def _rank(group: str) -> int:
    """What people look for comes first; of one kind, the order stays."""
    return _FIRST.index(group) if group in _FIRST else len(_FIRST)


def _units(ulp: int) -> str:
    # From some millions on, the exact number says nothing any more.
    return str(ulp) if ulp < 10**7 else f"{ulp:.0e}"


def _describe(one: Mapping[str, Any]) -> str:
    parts = [f"{one['group']} {one['name']}:"]
    if one["differing"] is not None and one["elements"] != 1:
        parts.append(f"{one['differing']} of {one['elements']} elements,")
    if one["max_abs"] is not None:
        parts.append(f"by up to {one['max_abs']:.3g}")
    if one["max_ulp"] is not None:
        parts.append(f"({_units(one['max_ulp'])} ulp)")
    if one["note"]:
        parts.append(one["note"])
    return " ".join(parts).rstrip(",:")
