"""What a drill is asked for."""

from __future__ import annotations

import dataclasses
import math
import signal
from collections.abc import Sequence

from tf_preempt.errors import ConfigError

__all__ = ["SIGNALS", "DrillOptions"]

SIGNALS = {"TERM": signal.SIGTERM, "KILL": signal.SIGKILL}
"""The signals that a drill sends, by their short names: with notice, and without."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrillOptions:
    """How a training program is disturbed.

    Args:
        command: the program and its arguments.
        kills: how many signals are sent.
        seed: the same seed plans the same signals to the same workers at the same places.
        signals: which, of ``"TERM"`` and ``"KILL"``; each comes about equally often.
        at_steps: training steps (of the whole program, counted from its start) after which the signals are
            sent, one each; None: chosen by the seed.
        workers: how many worker processes the program is started as; None: as one, without a cluster.
        restart_codes: further exit statuses, 1 to 255, with which the program asks to be started again.
        trust_deterministic: leaves out the second undisturbed training, which tells whether the program gives
            the same result twice at all.
        stall_timeout_s: a program that neither prints nor does anything for so long has failed.

    Raises:
        ConfigError: a value is out of its range.
    """

    command: Sequence[str]
    kills: int = 3
    seed: int = 0
    signals: tuple[str, ...] = ("TERM", "KILL")
    at_steps: tuple[int, ...] | None = None
    workers: int | None = None
    restart_codes: frozenset[int] = frozenset()
    trust_deterministic: bool = False
    stall_timeout_s: float = 600.0

    def __post_init__(self) -> None:
        _check("command", self.command, bool(self.command), "a program and its arguments")
        _check("kills", self.kills, _is_count(self.kills, 1), "a whole number of 1 or more")
        _check("seed", self.seed, _is_count(self.seed, 0), "a whole number of 0 or more")
        known = bool(self.signals) and all(name in SIGNALS for name in self.signals)
        _check("signals", self.signals, known, f"one or more of {', '.join(SIGNALS)}")
        workers_fine = self.workers is None or _is_count(self.workers, 1)
        _check("workers", self.workers, workers_fine, "a whole number of 1 or more, or None")
        codes_fine = all(_is_count(code, 1) and code <= 255 for code in self.restart_codes)
        _check("restart_codes", self.restart_codes, codes_fine, "exit statuses from 1 to 255")
        patient = 0 < self.stall_timeout_s < math.inf
        _check("stall_timeout_s", self.stall_timeout_s, patient, "a number of seconds, more than 0")
        self._check_at_steps()

    def _check_at_steps(self) -> None:
        if self.at_steps is None:
            return
        fine = len(self.at_steps) == self.kills and all(_is_count(step, 0) for step in self.at_steps)
        hint = "at_steps=[12, 40] sends two signals, with kills=2 or without kills"
        _check("at_steps", self.at_steps, fine, f"{self.kills} steps (kills), each 0 or more", hint)


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _check(name: str, value: object, fine: bool, expected: str, hint: str | None = None) -> None:
    if not fine:
        raise ConfigError(f"{name}={value!r} (of the drill) must be {expected}.", hint=hint)
