"""A maintenance with an appointment, as Compute Engine and Cloud TPU tell it in ``upcoming-maintenance``.

References (seen 2026-11):
    https://cloud.google.com/tpu/docs/view-maintenance-notifications (the fields; the words for none)
    https://cloud.google.com/compute/docs/gpus/gpu-host-maintenance (the fields in snake case)
"""

from __future__ import annotations

import dataclasses
import json

from tf_preempt.termination.metadata_client import MetadataError
from tf_preempt.termination.timestamps import parse_rfc3339

__all__ = ["Maintenance", "parse_maintenance"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Maintenance:
    """A maintenance with an appointment.

    Args:
        starts: seconds since the epoch; None if it is not told.
        status: ``PENDING``, ``ONGOING`` or ``COMPLETE``.
        kind: ``SCHEDULED``, ``UNSCHEDULED`` or the like, for people.
    """

    starts: float | None
    status: str
    kind: str


def parse_maintenance(text: str) -> Maintenance | None:
    """Reads the value of ``upcoming-maintenance``, in any of the forms in which it was seen.

    Args:
        text: the value: JSON with names in snake case or camel case, perhaps one level deeper.

    Returns:
        None if no maintenance is planned: an empty object, ``NONE``, or the words of an error that says so.

    Raises:
        MetadataError: it is none of these.
    """
    if text.strip().strip('"') in ("", "NONE"):
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise MetadataError(f"upcoming-maintenance is {text[:80]!r}; expected JSON.") from error
    if isinstance(value, dict) and len(value) == 1 and isinstance(inner := next(iter(value.values())), dict):
        value = inner
    if not isinstance(value, dict):
        raise MetadataError(f"upcoming-maintenance is {text[:80]!r}; expected a JSON object.")
    fields = {name.replace("_", "").lower(): field for name, field in value.items()}
    if not fields or "error" in fields:
        return None
    status = str(fields.get("maintenancestatus", "")).upper()
    if not status:
        raise MetadataError(f"upcoming-maintenance is {text[:80]!r}, which has no maintenance_status.")
    kind = fields.get("type") or fields.get("maintenancetype") or "unknown"
    return Maintenance(starts=_seconds(fields.get("windowstarttime")), status=status, kind=str(kind))


def _seconds(text: object) -> float | None:
    """Seconds since the epoch of an RFC 3339 time; None if there is none."""
    if not text:
        return None
    try:
        return parse_rfc3339(str(text))
    except ValueError as error:
        raise MetadataError(
            f"upcoming-maintenance has window_start_time={text!r}; expected RFC 3339."
        ) from error
