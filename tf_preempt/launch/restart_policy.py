"""Whether a program that has ended is started again, and after how long; computes only.

Three things end a series of restarts.  A permanent error: it would come back.  The budget: somebody should
have a look.  And no progress: a program that is preempted every hour gets somewhere each time, one that
crashes at the same step does not, and their exit statuses may be the same.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Sequence

from tf_preempt.errors import ConfigError
from tf_preempt.goodput.status_file import Status
from tf_preempt.termination.exit_codes import (
    PERMANENT,
    RESTART_CODES,
    Outcome,
    classify,
    describe,
    shell_status,
)

__all__ = ["Incarnation", "Restart", "RestartPolicy", "Stop"]

_ENOUGH_DOUBLINGS = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class Incarnation:
    """How one life of the program ended.

    Args:
        returncode: as ``subprocess`` gives it, negative for a signal.
        status: what it last said about its progress; None: it said nothing.
    """

    returncode: int
    status: Status | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Restart:
    """Start the program again.

    Args:
        delay_s: seconds to wait before that.
        reason: why, for the log.
    """

    delay_s: float
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stop:
    """Leave it.

    Args:
        exit_code: the exit status for whoever started us.
        reason: why, for the log.
    """

    exit_code: int
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class RestartPolicy:
    """When to start a program again.

    Args:
        max_restarts: how often at most, in total.
        backoff_initial_s: seconds to wait before a restart after progress.
        backoff_max_s: most seconds to wait; without progress the wait doubles up to this.
        jitter: the part of the wait that is random, 0 to 1, so that many jobs that a platform has ended
            together do not come back together.
        max_no_progress: stop after so many incarnations in a row that committed no step.  Incarnations of a
            program that never tells its progress do not count.
        restart_codes: further exit statuses with which the program asks to be started again.
        random: gives the next random number from 0 to 1.

    Raises:
        ConfigError: a number is out of its range.
    """

    max_restarts: int = 10
    backoff_initial_s: float = 1.0
    backoff_max_s: float = 60.0
    jitter: float = 0.5
    max_no_progress: int = 2
    restart_codes: frozenset[int] = frozenset()
    random: Callable[[], float] = dataclasses.field(default=random.random, compare=False, repr=False)

    def __post_init__(self) -> None:
        _check("max_restarts", self.max_restarts, self.max_restarts >= 0, "0 or more")
        _check("max_no_progress", self.max_no_progress, self.max_no_progress >= 1, "1 or more")
        _check("jitter", self.jitter, 0 <= self.jitter <= 1, "from 0 to 1")
        initial, longest = self.backoff_initial_s, self.backoff_max_s
        _check("backoff_initial_s", initial, 0 <= initial < math.inf, "0 or more seconds")
        _check(
            "backoff_max_s", longest, initial <= longest < math.inf, f"at least backoff_initial_s={initial}"
        )
        for code in sorted(self.restart_codes):
            _check("restart_codes", code, 1 <= code <= 255, "exit statuses from 1 to 255")

    def decide(self, history: Sequence[Incarnation]) -> Restart | Stop:
        """What to do after the last incarnation in `history` has ended.

        A program that is given up because it gets nowhere ends with 1 (an outer supervisor should not go on
        with it either); one that used up its restarts, with its own status.

        Args:
            history: all incarnations so far, oldest first.

        Raises:
            ConfigError: `history` is empty.
        """
        if not history:
            raise ConfigError("history (an argument of decide) is empty: nothing has ended yet.")
        last = history[-1]
        reason = self._reason(last)
        if classify(last.returncode, restart_codes=self.restart_codes) is not Outcome.RESTART:
            return Stop(exit_code=shell_status(last.returncode), reason=reason)
        progress = _progress(history)
        stalled = _count_at_end(progress, lambda made: made is False)
        if stalled >= self.max_no_progress:
            return Stop(exit_code=PERMANENT, reason=f"{reason}; no progress {stalled} times in a row")
        if len(history) > self.max_restarts:
            used_up = f"{reason}; all {self.max_restarts} restarts are used up"
            return Stop(exit_code=shell_status(last.returncode), reason=used_up)
        return Restart(delay_s=self._delay_s(_count_at_end(progress, lambda made: not made)), reason=reason)

    def _delay_s(self, without_progress: int) -> float:
        doublings = min(max(without_progress - 1, 0), _ENOUGH_DOUBLINGS)
        longest = min(self.backoff_max_s, self.backoff_initial_s * 2.0**doublings)
        return longest * (1 - self.jitter * self.random())

    def _reason(self, incarnation: Incarnation) -> str:
        code, status = incarnation.returncode, incarnation.status
        meaning = {
            Outcome.SUCCESS: "finished",
            Outcome.INTERRUPTED: "Ctrl-C",
            Outcome.PERMANENT: "permanent error",
            Outcome.RESTART: self._why_again(code),
        }[classify(code, restart_codes=self.restart_codes)]
        committed = status.committed_step if status else None
        step = "" if committed is None else f", committed step {committed}"
        return f"{describe(code)} = {meaning}{step}"

    def _why_again(self, code: int) -> str:
        if code < 0:
            return "may work when tried again"
        if code in self.restart_codes or code in RESTART_CODES:
            return "preempted"
        return f"{describe(128 - code)}, or preempted"  # a shell or srun tells so of what it has started


def _progress(history: Sequence[Incarnation]) -> list[bool | None]:
    """Whether each incarnation got further; None while the program is not known to tell at all."""
    tells = False
    progress: list[bool | None] = []
    for incarnation in history:
        tells = tells or incarnation.status is not None
        progress.append(_got_further(incarnation.status) if tells else None)
    return progress


def _got_further(status: Status | None) -> bool:
    # A commit at the step that was restored counts: a validation or an epoch's end got further without a
    # step.  One at step 0 does not.
    if status is None or status.commits == 0 or status.committed_step is None:
        return False
    return status.committed_step >= max(1, status.restored_step or 0)


def _count_at_end(progress: Sequence[bool | None], matches: Callable[[bool | None], bool]) -> int:
    count = 0
    for made in reversed(progress):
        if not matches(made):
            break
        count += 1
    return count


def _check(name: str, value: object, fine: bool, expected: str) -> None:
    if not fine:
        raise ConfigError(f"{name}={value!r} (an argument of RestartPolicy) must be {expected}.")
