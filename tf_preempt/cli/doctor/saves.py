"""Whether a save, as earlier runs have measured it, fits into the notice that the platform gives."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tf_preempt.checkpointing.manifest import readable_manifests
from tf_preempt.cli.doctor.finding import Finding, Status, from_error
from tf_preempt.errors import TfPreemptError
from tf_preempt.goodput.events import read_events

__all__ = ["Notice", "SaveTimes", "check_saves", "read_save_times"]

_NEWEST = 20
# The running step has to end before the save begins, and a disk that many use is not always as fast.
_ROOM = 2.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Notice:
    """How long before its end a program hears of it, where a preemption or a reclaimed machine is the reason.

    Args:
        seconds: at least so many.
        origin: who says so, such as ``GraceTime 60 s + KillWait 30 s``.
        cure: how it can be made longer.
    """

    seconds: float
    origin: str
    cure: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class SaveTimes:
    """What the newest saves in a directory took, from their start to the commit.

    Args:
        seconds: of each, in seconds, the newest last.
        size_bytes: of the newest checkpoint; None if there is none.
    """

    seconds: tuple[float, ...] = ()
    size_bytes: int | None = None

    @property
    def slowest_s(self) -> float | None:
        """Seconds of the slowest; None if there is none."""
        return max(self.seconds, default=None)


def read_save_times(directory: str) -> tuple[SaveTimes, list[Finding]]:
    """Reads what commits took, from the manifests that are there and the events of those that are gone.

    Args:
        directory: the checkpoint directory; one that does not exist has no saves.

    Returns:
        The times, and what could not be read.
    """
    findings: list[Finding] = []
    by_checkpoint: dict[str, float] = {}
    size_bytes = None
    try:
        for event in read_events(directory):
            if event["kind"] == "commit" and isinstance(event.get("seconds"), int | float):
                by_checkpoint[str(event.get("checkpoint"))] = float(event["seconds"])
    except Exception as error:  # noqa: BLE001 - a URL's errors are TensorFlow's
        findings.append(_unreadable(error))
    try:
        manifests, damaged = readable_manifests(directory)
    except Exception as error:  # noqa: BLE001 - as above
        again = _unreadable(error)
        if again.hint not in [finding.hint for finding in findings]:  # one cure mends both
            findings.append(again)
        return SaveTimes(seconds=_newest(by_checkpoint)), findings
    for manifest in reversed(manifests):
        if isinstance(manifest.seconds, int | float):
            by_checkpoint.setdefault(manifest.prefix, float(manifest.seconds))
        size_bytes = sum(record.bytes for record in manifest.files)
    findings += [
        Finding(
            Status.WARNING,
            "saves",
            f"{item.name} cannot be read: {' '.join(item.problem.split())}",
            "it is set aside at the next start, and an older checkpoint is used",
        )
        for item in damaged
    ]
    return SaveTimes(seconds=_newest(by_checkpoint), size_bytes=size_bytes), findings


def _newest(by_checkpoint: Mapping[str, float]) -> tuple[float, ...]:
    return tuple(by_checkpoint.values())[-_NEWEST:]


def _unreadable(error: Exception) -> Finding:
    status = Status.ERROR if isinstance(error, TfPreemptError) else Status.WARNING
    return from_error("saves", error, hint="let this user read the checkpoint directory", status=status)


def check_saves(times: SaveTimes, notice: Notice | None, *, otherwise: str) -> Finding:
    """Compares the slowest of the newest saves with the notice.

    Args:
        times: what saves took.
        notice: what the platform gives; None if that is not known, or nothing preempts here.
        otherwise: what is said where there is no `notice`.
    """
    slowest = times.slowest_s
    values: dict[str, Any] = {
        "slowest_s": slowest,
        "commits": len(times.seconds),
        "bytes": times.size_bytes,
        "notice_s": notice.seconds if notice else None,
    }
    if slowest is None:
        then = "whether a save fits into the notice" + (f" ({notice.origin})" if notice else "")
        message = f"no commit in this directory yet: {then} shows after the first"
        return Finding(Status.INFO, "saves", message, values=values)
    size = "" if times.size_bytes is None else f" (the newest has {times.size_bytes / 1e6:.1f} MB)"
    took = f"the slowest of {len(times.seconds)} commit(s) took {slowest:.2f} s{size}"
    if notice is None:
        return Finding(Status.INFO, "saves", f"{took}; {otherwise}", values=values)
    told = f"notice {notice.seconds:g} s or more ({notice.origin})"
    if slowest * _ROOM <= notice.seconds:
        return Finding(Status.OK, "saves", f"{took}; {told}", values=values)
    fits = slowest <= notice.seconds
    problem = "tight, as the running step ends first" if fits else "it does not fit"
    return Finding(
        Status.WARNING if fits else Status.ERROR,
        "saves",
        f"{took}; {told}: {problem}.",
        f"{notice.cure}, or save to a faster directory",
        values,
    )
