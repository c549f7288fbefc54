"""What a user may say about leaving a Slurm job."""

from __future__ import annotations

import dataclasses
import math
import numbers
from typing import Literal

from tf_preempt.errors import ConfigError

__all__ = ["SlurmOptions"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlurmOptions:
    """How a training leaves a Slurm job, and whether the job is requeued.

    Example::

        TerminationConfig(slurm=SlurmOptions(max_requeues=20, time_limit_lead_s=300))

    Args:
        requeue: ``"auto"``: after the save the job is requeued where a rest of the training is left and
            nobody else does it; ``"never"``: the program leaves with the restart code, and the batch script
            decides.
        max_requeues: how often at most a job is requeued by this package; None: as often as it makes
            progress.  Counted in the checkpoint directory, for each job by itself.
        max_no_progress: the job is not requeued any more after so many runs in a row that saved nothing new.
        time_limit_lead_s: how many seconds before the time limit the training is saved and left, where no
            ``--signal`` comes earlier; None: a tenth of the limit, at least 10 and at most 60, and three
            times what a save takes.  0: the limit is not watched.
        stay_s: for how many seconds at most a process waits to be ended by Slurm, where that is what makes
            Slurm requeue the job and the job could not be requeued from here.

    Raises:
        ConfigError: a value is not of its kind.
    """

    requeue: Literal["auto", "never"] = "auto"
    max_requeues: int | None = None
    max_no_progress: int = 2
    time_limit_lead_s: float | None = None
    stay_s: float = 600.0

    def __post_init__(self) -> None:
        if self.requeue not in ("auto", "never"):
            raise _wrong("requeue", self.requeue, "'auto' or 'never'")
        if self.max_requeues is not None:
            _check_count("max_requeues", self.max_requeues, 0)
        _check_count("max_no_progress", self.max_no_progress, 1)
        if self.time_limit_lead_s is not None:
            _check_seconds("time_limit_lead_s", self.time_limit_lead_s)
        _check_seconds("stay_s", self.stay_s)


def _check_count(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise _wrong(name, value, f"a whole number of at least {least}")


def _check_seconds(name: str, value: object) -> None:
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not 0 <= float(value) < math.inf:  # type: ignore[arg-type]
        raise _wrong(name, value, "a number of seconds from 0")


def _wrong(name: str, value: object, expected: str) -> ConfigError:
    return ConfigError(
        f"SlurmOptions: {name}={value!r}; expected {expected}.",
        hint=f"leave {name} out to have {_DEFAULTS[name]!r}",
    )


_DEFAULTS = {field.name: field.default for field in dataclasses.fields(SlurmOptions)}
