"""Compute Engine and TPU VMs: what Google's metadata server says of the end of this VM.

Three keys tell of it, and each has a watcher: ``maintenance-event`` (the host is about to be maintained),
``preempted`` (a Spot VM is taken away), ``upcoming-maintenance`` (maintenance with an appointment, as TPU VMs
and some GPU VMs have it).

What a key says already when the watch begins is no notice, except 30 s before an appointment: a program that
has left for it, and was started again on the same VM, would leave again and again, for up to an hour.

References (seen 2026-11):
    https://cloud.google.com/compute/docs/metadata/getting-live-migration-notice (maintenance-event; 60 s,
    only if the key is asked for)
    https://cloud.google.com/compute/docs/gpus/gpu-host-maintenance (one hour for VMs with GPUs)
    https://cloud.google.com/compute/docs/instances/preemptible (preempted; 30 s)
    https://cloud.google.com/tpu/docs/view-maintenance-notifications (upcoming maintenance)
"""

from __future__ import annotations

import http.client
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from tf_preempt.termination.appointments import Appointments, Verdict
from tf_preempt.termination.gce_appointment import Maintenance, parse_maintenance
from tf_preempt.termination.gce_key import INSTANCE, GceKeyWatcher
from tf_preempt.termination.metadata_client import Answer, MetadataError
from tf_preempt.termination.notice import TerminationNotice

__all__ = ["GceMaintenanceWatcher", "GcePreemptionWatcher", "GceUpcomingMaintenanceWatcher"]

_log = logging.getLogger("tf_preempt")

_MAINTENANCE_NOTICE_S = 60.0
_GPU_MAINTENANCE_NOTICE_S = 3600.0
_PREEMPTION_NOTICE_S = 30.0
# By TensorFlow's custom the hour of a GPU is trained in; less than this is for saving.
_TRAINS_ON_FROM_S = 600.0
# An appointment days ahead is no reason to leave: the notice comes so long before it.
_APPOINTMENT_LEAD_S = 120.0

_GPU_DIRECTORY = "/proc/driver/nvidia/gpus"


class GceMaintenanceWatcher(GceKeyWatcher):
    """Gives a notice when the host of this VM is about to be maintained and the VM has to stop for it.

    A VM that is moved to another host meanwhile (`MIGRATE_ON_HOST_MAINTENANCE`) goes on: that is logged only.

    The deadline is an hour after the value has changed on a VM with a GPU, else 60 s; the appointment in
    ``upcoming-maintenance``, if there is one earlier.  Where it is long, it is trained in: see
    `TerminationNotice.trains_on`.

    Args:
        has_gpu: whether this VM has a GPU; by default, whether NVIDIA's driver knows of one.
        trains_on_from_s: seconds that have to be left for that.
        **arguments: see `GceKeyWatcher`.

    Raises:
        ConfigError: GCE_METADATA_HOST is no address.
    """

    SOURCE = "gce-maintenance"
    _key = "maintenance-event"
    _VALUES = (
        "NONE",
        "MIGRATE_ON_HOST_MAINTENANCE",
        "TERMINATE_ON_HOST_MAINTENANCE",
        "SHUTDOWN_ON_HOST_MAINTENANCE",
    )

    def __init__(
        self,
        *,
        has_gpu: Callable[[], bool] | None = None,
        trains_on_from_s: float = _TRAINS_ON_FROM_S,
        **arguments: Any,
    ) -> None:
        self._has_gpu = has_gpu if has_gpu is not None else _has_gpu
        self._trains_on_from_s = trains_on_from_s
        self._value = "NONE"
        super().__init__(**arguments)

    def _interpret(self, answer: Answer) -> None:
        value = answer.text.strip()
        if value not in self._VALUES:
            raise MetadataError(f"{self._key} is {value[:80]!r}; expected one of {', '.join(self._VALUES)}.")
        is_news, self._value = value not in (self._value, "NONE"), value
        if is_news and value == "MIGRATE_ON_HOST_MAINTENANCE":
            _log.info(
                "This VM is about to be moved to another host; it stands still for a moment and goes on."
            )
        elif is_news and self._is_first_try:
            _log.warning(
                "The host of this VM is to be maintained (%s, since before this program began); training "
                "goes on until another notice comes.",
                value,
            )
        elif is_news:
            deadline = self._deadline()
            left_s = 0.0 if deadline is None else deadline - self._monotonic()
            trains_on = left_s >= self._trains_on_from_s
            self._give(
                TerminationNotice(source=self.SOURCE, reason=value, deadline=deadline, trains_on=trains_on)
            )

    def _deadline(self) -> float | None:
        notice_s = _GPU_MAINTENANCE_NOTICE_S if self._has_gpu() else _MAINTENANCE_NOTICE_S
        now = self._monotonic()
        latest = (now if self._since is None else self._since) + notice_s
        appointment = self._appointment()
        if appointment is not None and now < appointment < latest:
            return appointment
        return None if self._since is None else latest

    def _appointment(self) -> float | None:
        try:
            answer = self._client.request(
                "GET",
                INSTANCE + GceUpcomingMaintenanceWatcher._key,
                query=GceUpcomingMaintenanceWatcher._query,
                timeout_s=min(1.0, self._timeout_s),
            )
            maintenance = parse_maintenance(answer.text)
        except MetadataError as error:
            _log.debug("No appointment for the maintenance: %s", error)
            return None
        if maintenance is None or maintenance.starts is None:
            return None
        return self._at(maintenance.starts)


def _has_gpu() -> bool:
    # A GPU without this driver is of no use to a training.
    try:
        return bool(os.listdir(_GPU_DIRECTORY))
    except OSError:
        return False


class GcePreemptionWatcher(GceKeyWatcher):
    """Gives a notice when this Spot or preemptible VM is taken away, 30 s before at most.

    Args:
        **arguments: see `GceKeyWatcher`.

    Raises:
        ConfigError: GCE_METADATA_HOST is no address.
    """

    SOURCE = "gce-preempted"
    _key = "preempted"

    def __init__(self, **arguments: Any) -> None:
        self._value = "FALSE"
        super().__init__(**arguments)

    def _interpret(self, answer: Answer) -> None:
        value = answer.text.strip()
        if value not in ("FALSE", "TRUE"):
            raise MetadataError(f"{self._key} is {value[:80]!r}; expected FALSE or TRUE.")
        before, self._value = self._value, value
        if value == "TRUE" and self._is_first_try:
            _log.warning("This VM is being preempted, since before this program began; training goes on.")
        elif value == "TRUE" and before != value:
            deadline = None if self._since is None else self._since + _PREEMPTION_NOTICE_S
            self._give(TerminationNotice(source=self.SOURCE, reason="the VM is preempted", deadline=deadline))


class GceUpcomingMaintenanceWatcher(GceKeyWatcher):
    """Gives a notice before an appointed maintenance of this VM begins, or when one begins at once.

    Args:
        lead_s: seconds between the notice and the appointment.
        **arguments: see `GceKeyWatcher`.

    Raises:
        ConfigError: GCE_METADATA_HOST is no address.
    """

    SOURCE = "gce-upcoming-maintenance"
    _key = "upcoming-maintenance"
    _query: Mapping[str, str] = {"alt": "json"}
    # Machine types without appointments do not have the key.
    _statuses = (200, 404)

    def __init__(self, *, lead_s: float = _APPOINTMENT_LEAD_S, **arguments: Any) -> None:
        self._lead_s = lead_s
        self._next: Maintenance | None = None
        self._appointments = Appointments()
        super().__init__(**arguments)

    def _longest_hang_s(self) -> float:
        if self._next is None or self._next.starts is None or self._next.status != "PENDING":
            return self._hang_s
        left_s = self._next.starts - self._clock()
        due_in_s = self._appointments.due_in_s(self._next.starts, left_s, self._lead_s)
        return self._hang_s if due_in_s is None else min(self._hang_s, due_in_s)

    def _interpret(self, answer: Answer) -> None:
        self._next = parse_maintenance(answer.text) if answer.status == http.client.OK else None
        self._appointments.keep([] if self._next is None else [self._next.starts])
        if self._next is None or self._next.status not in ("PENDING", "ONGOING"):
            return
        starts, what = self._next.starts, f"{self._next.kind} maintenance of the VM"
        if self._next.status == "ONGOING":
            left_s = None
        elif starts is not None:
            left_s = starts - self._clock()
        else:
            return  # it is planned, and nobody says when
        verdict = self._appointments.verdict(starts, left_s, self._lead_s, is_first=self._is_first_try)
        if verdict is Verdict.UNDER_WAY:
            _log.warning("%s is under way already; training goes on until another notice comes.", what)
        elif verdict is Verdict.DUE:
            deadline = None if left_s is None else self._monotonic() + left_s
            self._give(
                TerminationNotice(
                    source=self.SOURCE, reason=f"{what} is {self._next.status}", deadline=deadline
                )
            )
