"""What a check has found, and how it is shown."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tf_preempt._version import __version__
from tf_preempt.errors import TfPreemptError

__all__ = [
    "Finding",
    "Status",
    "as_json",
    "as_text",
    "exit_status",
    "from_error",
    "from_values",
    "to_values",
]

_STATUS_WIDTH = 7
_NAME_WIDTH = 10


class Status(str, enum.Enum):
    """How a check came out; `INFO` is neither good nor bad."""

    OK = "ok"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    def __str__(self) -> str:
        return self.value

    @property
    def is_trouble(self) -> bool:
        """Whether somebody should do something about it."""
        return self in (Status.WARNING, Status.ERROR)


@dataclasses.dataclass(frozen=True)
class Finding:
    """The outcome of one check.

    Args:
        status: how it came out.
        name: of the check, one word; several findings may have the same.
        message: what was found, for people; one line.
        hint: the cure; every warning and error has one.
        values: the same for programs: numbers with their units in the names, text, lists and None.

    Raises:
        ValueError: a warning or an error has no cure.
    """

    status: Status
    name: str
    message: str
    hint: str | None = None
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.status.is_trouble and not self.hint:
            raise ValueError(f"{self.status} {self.name!r} without a cure: {self.message}")


def from_error(name: str, error: Exception, *, hint: str, status: Status = Status.ERROR) -> Finding:
    """A finding that says what an exception says.

    Args:
        name: of the check.
        error: the exception; its own hint is taken where it has one.
        hint: the cure where it has none.
        status: how bad it is.
    """
    own = getattr(error, "hint", None)
    text = " ".join(str(error).split("\nHINT: ")[0].split())
    if not isinstance(error, TfPreemptError):
        text = f"{type(error).__name__}: {text}"
    return Finding(status, name, text, own or hint)


def exit_status(findings: Sequence[Finding]) -> int:
    """0 if nothing is wrong (warnings do not count), else 1."""
    return int(any(finding.status is Status.ERROR for finding in findings))


def as_text(findings: Sequence[Finding], *, prefix: str = "") -> str:
    """One line for each finding, and one more for its cure.

    Args:
        findings: in the order in which they are shown.
        prefix: put before each line.
    """
    lines = []
    for finding in findings:
        lines.append(
            f"{prefix}{finding.status:<{_STATUS_WIDTH}} {finding.name:<{_NAME_WIDTH}} {finding.message}"
        )
        if finding.hint:
            lines.append(f"{prefix}{'':<{_STATUS_WIDTH}} {'':<{_NAME_WIDTH}} HINT: {finding.hint}")
    return "".join(f"{line}\n" for line in lines)


def as_json(findings: Sequence[Finding], others: Mapping[int, Sequence[Finding]], *, rank: int | None) -> str:
    """The findings as one JSON object on one line.

    Args:
        findings: of the task that prints them, in order.
        others: of other tasks, by their rank.
        rank: of the task that prints them; None if it stands outside the cluster.
    """
    checks = [{"rank": rank, **to_values(finding)} for finding in findings]
    for other, found in sorted(others.items()):
        checks += [{"rank": other, **to_values(finding)} for finding in found]
    everything = [*findings, *(finding for found in others.values() for finding in found)]
    report = {
        "format": 1,
        "tf_preempt": __version__,
        "rank": rank,
        "exit_status": exit_status(everything),
        "checks": checks,
    }
    return json.dumps(report) + "\n"


def to_values(finding: Finding) -> dict[str, Any]:
    """A finding as JSON has it."""
    return {
        "name": finding.name,
        "status": str(finding.status),
        "message": finding.message,
        "hint": finding.hint,
        "values": dict(finding.values),
    }


def from_values(values: object) -> Finding | None:
    """A finding that another task has sent; None if it is none."""
    if not isinstance(values, dict):
        return None
    try:
        return Finding(
            Status(values["status"]),
            str(values["name"]),
            str(values["message"]),
            None if values["hint"] is None else str(values["hint"]),
            dict(values["values"]),
        )
    except (KeyError, TypeError, ValueError):
        return None
