"""Azure VMs: what Microsoft's metadata server says of the end of this VM, in its scheduled events.

An event may be for other VMs than this one, as all VMs of a set are told of all.  One that only freezes the
VM for some seconds is no notice.  An event that begins much later gives its notice shortly before it begins,
because a program that leaves earlier is started again on the same VM; for the same reason, one that is due
already when the watch begins is put off until 30 s before.

References (seen 2026-11):
    https://learn.microsoft.com/en-us/azure/virtual-machines/linux/scheduled-events (events;
    the first answer may take two minutes; StartRequests)
    https://learn.microsoft.com/en-us/azure/virtual-machines/instance-metadata-service (the name of the VM)
    https://github.com/ClusterLabs/resource-agents/blob/main/heartbeat/azure-events-az.in (the body of an
    acknowledgement)
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from tf_preempt.termination.appointments import Appointments, Verdict
from tf_preempt.termination.background import BackgroundWatcher
from tf_preempt.termination.metadata_client import Endpoint, MetadataClient, MetadataError
from tf_preempt.termination.notice import TerminationNotice
from tf_preempt.termination.timestamps import parse_http_date

__all__ = ["AzureWatcher"]

_log = logging.getLogger("tf_preempt")

ENDPOINT_VARIABLE = "TF_PREEMPT_AZURE_METADATA_HOST"
_HOST = "169.254.169.254"
_HEADERS = {"Metadata": "true"}
_NAME_PATH = "/metadata/instance/compute/name"
_NAME_QUERY = {"api-version": "2021-02-01", "format": "text"}
_EVENTS_PATH = "/metadata/scheduledevents"
_EVENTS_QUERY = {"api-version": "2020-07-01"}

_ENDING = frozenset({"Reboot", "Redeploy", "Preempt", "Terminate"})
_PAUSE_S = 5.0
_APPOINTMENT_LEAD_S = 120.0
# The first request of a VM turns the service on.
_FIRST_TIMEOUT_S = 130.0


class AzureWatcher(BackgroundWatcher):
    """Gives a notice when this VM is evicted, deleted, rebooted or moved to another host.

    Args:
        lead_s: seconds between the notice and the beginning of the event, where it is announced earlier.
        acknowledges: once all is saved and the program leaves, Azure is told that it need not wait for the
            announced time: the VM may be gone at once, with all else that runs there.
        environ: the environment variables.
        pause_s: seconds between two looks.
        first_timeout_s: seconds for the first list of events.
        timeout_s: seconds for any other answer.
        first_retry_s: seconds until the next try after a failure.
        clock: seconds since the epoch.
        monotonic: seconds of the clock in which a notice's deadline is told.

    Environment:
        TF_PREEMPT_AZURE_METADATA_HOST: ``host`` or ``host:port`` of another metadata server.

    Raises:
        ConfigError: TF_PREEMPT_AZURE_METADATA_HOST is no address.
    """

    SOURCE = "azure-scheduled-event"

    def __init__(
        self,
        *,
        lead_s: float = _APPOINTMENT_LEAD_S,
        acknowledges: bool = False,
        environ: Mapping[str, str] = os.environ,
        pause_s: float = _PAUSE_S,
        first_timeout_s: float = _FIRST_TIMEOUT_S,
        timeout_s: float = 5.0,
        first_retry_s: float = 1.0,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._endpoint = Endpoint.from_environ(environ, ENDPOINT_VARIABLE, _HOST)
        self._client = MetadataClient(self._endpoint, headers=_HEADERS, timeout_s=timeout_s)
        super().__init__(first_retry_s=first_retry_s)
        self._lead_s = lead_s
        self._acknowledges = acknowledges
        self._pause_s = pause_s
        self._first_timeout_s = first_timeout_s
        self._timeout_s = timeout_s
        self._clock = clock
        self._monotonic = monotonic
        self._name: str | None = None
        self._is_first = True
        self._appointments = Appointments()
        self._harmless: set[str] = set()
        self._noticed: tuple[str, ...] = ()
        self._start()

    def on_saved(self) -> None:
        """Acknowledges the events of which notices were given, if that is wanted."""
        if not self._acknowledges:
            return
        try:
            ids = self.acknowledge()
        except MetadataError as error:
            _log.warning("Azure was not told that all is saved, and waits for the announced time: %s", error)
        else:
            _log.info("Azure was told that all is saved (events: %s).", ", ".join(ids) or "none")

    def acknowledge(self) -> tuple[str, ...]:
        """Tells Azure that it need not wait any longer for the events of which notices were given.

        To be called after the save: the VM may be gone at once.  Waits for the answer.

        Returns:
            The ids of the events, none if there was nothing to acknowledge.

        Raises:
            MetadataError: Azure did not take it; it waits for the end of the announced time then.
        """
        ids = self._noticed
        # Not the watcher's client, which one thread uses, and which is closed together with the watcher.
        client = MetadataClient(self._endpoint, headers=_HEADERS, timeout_s=self._timeout_s)
        if ids:
            body = json.dumps({"StartRequests": [{"EventId": event_id} for event_id in ids]}).encode()
            client.request(
                "POST",
                _EVENTS_PATH,
                query=_EVENTS_QUERY,
                headers={"Content-Type": "application/json"},
                body=body,
            )
        return ids

    def _look(self) -> float:
        name = self._vm_name()
        timeout_s = self._first_timeout_s if self._is_first else self._timeout_s
        answer = self._client.request("GET", _EVENTS_PATH, query=_EVENTS_QUERY, timeout_s=timeout_s)
        events = _events_of(answer.text, name)
        for event in events:
            self._consider(event)
        present = {event["EventId"] for event in events}
        self._appointments.keep(present)
        self._harmless &= present
        self._noticed = tuple(event_id for event_id in self._noticed if event_id in present)
        self._is_first = False
        return self._pause_s

    def _cancel(self) -> None:
        self._client.close()

    def _vm_name(self) -> str:
        if self._name is None:
            name = self._client.request("GET", _NAME_PATH, query=_NAME_QUERY).text.strip()
            if not name or not name.isprintable():
                raise MetadataError(f"The name of this VM is {name[:80]!r}; expected letters and digits.")
            self._name = name
        return self._name

    def _consider(self, event: Mapping[str, Any]) -> None:
        event_id, kind, status = event["EventId"], event["EventType"], event.get("EventStatus")
        if kind not in _ENDING:
            if event_id not in self._harmless:
                _log.info("This VM is about to stand still for a moment (%s); it goes on by itself.", kind)
            self._harmless.add(event_id)
            return
        starts = None if status == "Started" else _starts_of(event)
        left_s = None if starts is None else starts - self._clock()
        verdict = self._appointments.verdict(event_id, left_s, self._lead_s, is_first=self._is_first_try)
        if verdict is Verdict.UNDER_WAY:
            _log.warning(
                "%s of the VM is under way already; training goes on until another notice comes.", kind
            )
        elif verdict is Verdict.DUE:
            self._noticed = (*self._noticed, event_id)
            deadline = None if left_s is None else self._monotonic() + left_s
            self._give(
                TerminationNotice(
                    source=self.SOURCE, reason=f"{kind} of the VM is {status}", deadline=deadline
                )
            )


def _events_of(text: str, vm_name: str) -> list[dict[str, Any]]:
    """The events of one VM."""
    try:
        events = json.loads(text)["Events"]
        mine = [
            event
            for event in events
            if vm_name.lower() in {str(resource).lower() for resource in event["Resources"]}
        ]
        if not all(
            isinstance(event["EventId"], str) and isinstance(event["EventType"], str) for event in mine
        ):
            raise TypeError("EventId")
    except (ValueError, KeyError, TypeError) as error:
        raise MetadataError(f"scheduledevents is {text[:120]!r}; expected a list of events.") from error
    return mine


def _starts_of(event: Mapping[str, Any]) -> float | None:
    """Seconds since the epoch; None if it is not told, and then it begins at once."""
    text = event.get("NotBefore")
    if not text:
        return None
    try:
        return parse_http_date(str(text))
    except ValueError as error:
        raise MetadataError(f"An event has NotBefore={text!r}; expected a date.") from error
