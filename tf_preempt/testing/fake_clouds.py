"""What the metadata servers of three clouds answer, as documented: requests in, replies out, no network.

References (seen 2026-11):
    https://cloud.google.com/compute/docs/metadata/querying-metadata
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/configuring-instance-metadata-service.html
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
    https://learn.microsoft.com/en-us/azure/virtual-machines/linux/scheduled-events
    See also the watchers in tf_preempt.termination.
"""

from __future__ import annotations

import dataclasses
import datetime
import email.utils
import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["FakeAws", "FakeAzure", "FakeGce", "Reply", "Request"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What a client asks.

    Args:
        method: ``GET``, ``PUT`` or ``POST``.
        path: without the query.
        query: its last value for each name.
        headers: by their names in lower case.
        body: what was sent along.
    """

    method: str
    path: str
    query: Mapping[str, str] = dataclasses.field(default_factory=dict)
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    body: bytes = b""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reply:
    """What the server answers.

    Args:
        status: the HTTP status.
        headers: of the answer.
        body: of the answer.
    """

    status: int = 200
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    body: bytes = b""


class _FakeCloud:
    """Values that somebody changes while others ask for them.

    Args:
        changed: held while values are read or written, and told of each change.
        clock: seconds since the epoch.
    """

    def __init__(self, changed: threading.Condition, clock: Callable[[], float] = time.time) -> None:
        self._changed = changed
        self._clock = clock


class FakeGce(_FakeCloud):
    """Google's server: ``/computeMetadata/v1/instance/...``."""

    ROOT = "/computeMetadata/v1/instance/"

    def __init__(self, changed: threading.Condition, clock: Callable[[], float] = time.time) -> None:
        super().__init__(changed, clock)
        nothing = '{ "error": "no notifications have been received yet, try again later" }'
        self._values = {"maintenance-event": "NONE", "preempted": "FALSE", "upcoming-maintenance": nothing}
        self._changes = dict.fromkeys(self._values, 0)

    def put(self, key: str, value: str | None) -> None:
        """Gives a key a value, or takes the key away.

        Args:
            key: below ``instance/``, such as ``"maintenance-event"``.
            value: as the server writes it; None: there is no such key.
        """
        with self._changed:
            if value is None:
                self._values.pop(key, None)
            else:
                self._values[key] = value
            self._changes[key] = self._changes.get(key, 0) + 1
            self._changed.notify_all()

    def maintain(self, value: str = "TERMINATE_ON_HOST_MAINTENANCE") -> None:
        """Says that the host is about to be maintained, as ``simulate-maintenance-event`` does."""
        self.put("maintenance-event", value)

    def preempt(self) -> None:
        """Says that the Spot VM is taken away."""
        self.put("preempted", "TRUE")

    def appoint(self, *, in_s: float, status: str = "PENDING", kind: str = "SCHEDULED") -> None:
        """Tells the appointment of a maintenance.

        Args:
            in_s: seconds until it begins.
            status: ``PENDING``, ``ONGOING`` or ``COMPLETE``.
            kind: ``SCHEDULED`` or ``UNSCHEDULED``.
        """
        value = {
            "can_reschedule": "true",
            "maintenance_status": status,
            "type": kind,
            "window_start_time": _rfc3339(self._clock() + in_s),
            "window_end_time": _rfc3339(self._clock() + in_s + 3600),
        }
        self.put("upcoming-maintenance", json.dumps(value))

    def reply(self, request: Request) -> Reply | None:
        """The answer; None while the client wants to wait for another value."""
        headers = {"Metadata-Flavor": "Google", "Server": "Metadata Server for VM"}
        if request.headers.get("metadata-flavor") != "Google":
            return Reply(status=403, headers=headers, body=b"Missing required header: Metadata-Flavor")
        key = request.path.removeprefix(self.ROOT)
        if request.method != "GET" or key not in self._values:
            return Reply(status=404, headers=headers, body=b"Not Found")
        etag = f"{self._changes[key]:016x}"
        if request.query.get("wait_for_change") == "true" and request.query.get("last_etag") == etag:
            return None
        kind = "application/json" if request.query.get("alt") == "json" else "application/text"
        return Reply(headers={**headers, "ETag": etag, "Content-Type": kind}, body=self._values[key].encode())


class FakeAws(_FakeCloud):
    """Amazon's server, version 2 only: ``/latest/...``."""

    ROOT = "/latest/"
    _TOKEN_PATH = "/latest/api/token"
    _TTL = "x-aws-ec2-metadata-token-ttl-seconds"

    def __init__(self, changed: threading.Condition, clock: Callable[[], float] = time.time) -> None:
        super().__init__(changed, clock)
        self._values: dict[str, Any] = {}
        self._tokens: dict[str, float] = {}

    def put(self, key: str, value: Any) -> None:
        """Gives a key a value, or takes the key away.

        Args:
            key: below ``meta-data/``, such as ``"spot/instance-action"``.
            value: what becomes JSON; None: there is no such key.
        """
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def interrupt(self, action: str = "terminate", *, in_s: float = 120.0) -> None:
        """Says that the Spot instance is taken away.

        Args:
            action: ``terminate``, ``stop`` or ``hibernate``.
            in_s: seconds until then.
        """
        self.put("spot/instance-action", {"action": action, "time": _rfc3339(self._clock() + in_s)})

    def recommend_rebalance(self) -> None:
        """Says that the Spot instance may well be taken away."""
        self.put("events/recommendations/rebalance", {"noticeTime": _rfc3339(self._clock())})

    def schedule(
        self, code: str = "instance-stop", *, in_s: float, state: str = "active", event_id: str = "event-1"
    ) -> None:
        """Tells the appointment of a maintenance, the only one.

        Args:
            code: ``instance-reboot``, ``system-reboot``, ``system-maintenance``, ``instance-retirement`` or
                ``instance-stop``.
            in_s: seconds until it begins.
            state: ``active``, ``completed`` or ``canceled``.
            event_id: by which it is known.
        """
        begins = datetime.datetime.fromtimestamp(self._clock() + in_s, datetime.timezone.utc)
        # "%b" would be in the language of the machine.
        not_before = email.utils.format_datetime(begins, usegmt=True).partition(", ")[2]
        event = {"NotBefore": not_before, "Code": code, "EventId": event_id, "State": state}
        self.put(
            "events/maintenance/scheduled", [{**event, "Description": "The instance is scheduled for it"}]
        )

    def expire_tokens(self) -> None:
        """Makes every token invalid that was given so far."""
        with self._changed:
            self._tokens.clear()

    def reply(self, request: Request) -> Reply | None:
        """The answer."""
        if request.path == self._TOKEN_PATH:
            return self._give_token(request)
        expires = self._tokens.get(request.headers.get("x-aws-ec2-metadata-token", ""))
        if expires is None or expires <= self._clock():
            return Reply(status=401, body=b"Unauthorized")
        value = self._values.get(request.path.removeprefix("/latest/meta-data/"))
        if request.method != "GET" or value is None:
            return Reply(status=404, body=b"Not Found")
        return Reply(headers={"Content-Type": "text/plain"}, body=json.dumps(value).encode())

    def _give_token(self, request: Request) -> Reply:
        ttl_s = request.headers.get(self._TTL, "")
        if request.method != "PUT":
            return Reply(status=405)
        if not (ttl_s.isdigit() and 1 <= int(ttl_s) <= 21600):
            return Reply(status=400, body=b"Bad Request")
        token = secrets.token_urlsafe(40)
        self._tokens[token] = self._clock() + int(ttl_s)
        return Reply(headers={self._TTL: ttl_s, "Content-Type": "text/plain"}, body=token.encode())


class FakeAzure(_FakeCloud):
    """Microsoft's server: ``/metadata/...``.

    Attributes:
        vm_name: the name of this VM.
        acknowledged: ids of the events that were acknowledged, in order.
    """

    ROOT = "/metadata/"

    def __init__(self, changed: threading.Condition, clock: Callable[[], float] = time.time) -> None:
        super().__init__(changed, clock)
        self.vm_name = "worker-0"
        self.acknowledged: list[str] = []
        self._events: dict[str, dict[str, Any]] = {}
        self._incarnation = 1

    def schedule(
        self,
        kind: str = "Preempt",
        *,
        in_s: float = 30.0,
        resources: tuple[str, ...] | None = None,
        event_id: str = "event-1",
    ) -> None:
        """Announces an event.

        Args:
            kind: ``Freeze``, ``Reboot``, ``Redeploy``, ``Preempt`` or ``Terminate``.
            in_s: seconds until it begins.
            resources: names of the VMs that it is for; None: of this one.
            event_id: by which it is known.
        """
        event = {
            "EventId": event_id,
            "EventType": kind,
            "ResourceType": "VirtualMachine",
            "Resources": list(resources if resources is not None else (self.vm_name,)),
            "EventStatus": "Scheduled",
            "NotBefore": email.utils.formatdate(self._clock() + in_s, usegmt=True),
            "Description": "",
            "EventSource": "Platform",
            "DurationInSeconds": -1,
        }
        with self._changed:
            self._events[event_id] = event
            self._incarnation += 1
            self._changed.notify_all()

    def begin(self, event_id: str = "event-1") -> None:
        """Says that an event that was announced has begun."""
        with self._changed:
            self._events[event_id] |= {"EventStatus": "Started", "NotBefore": ""}
            self._incarnation += 1
            self._changed.notify_all()

    def clear(self) -> None:
        """Takes all events away."""
        with self._changed:
            self._events.clear()
            self._incarnation += 1
            self._changed.notify_all()

    def reply(self, request: Request) -> Reply | None:
        """The answer."""
        if request.headers.get("metadata") != "true" or "api-version" not in request.query:
            return Reply(status=400, body=b'{"error":"Bad request"}')
        if (request.method, request.path) == ("GET", "/metadata/instance/compute/name"):
            return Reply(headers={"Content-Type": "text/plain"}, body=self.vm_name.encode())
        if request.path != "/metadata/scheduledevents":
            return Reply(status=404, body=b'{"error":"Not found"}')
        if request.method == "POST":
            return self._acknowledge(request.body)
        document = {"DocumentIncarnation": self._incarnation, "Events": list(self._events.values())}
        return Reply(headers={"Content-Type": "application/json"}, body=json.dumps(document).encode())

    def _acknowledge(self, body: bytes) -> Reply:
        try:
            ids = [str(request["EventId"]) for request in json.loads(body)["StartRequests"]]
        except (ValueError, KeyError, TypeError):
            return Reply(status=400, body=b'{"error":"Bad request"}')
        if not all(event_id in self._events for event_id in ids):
            return Reply(status=400, body=b'{"error":"Unknown event"}')
        for event_id in ids:
            self.acknowledged.append(event_id)
            self.begin(event_id)
        return Reply()


def _rfc3339(when: float) -> str:
    return datetime.datetime.fromtimestamp(when, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
