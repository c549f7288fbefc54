"""EC2 instances: what Amazon's metadata server says of the end of this instance.

Spot interruptions come two minutes ahead.  Maintenance has an appointment, often days ahead; its notice comes
shortly before it, because a program that leaves earlier is started again on the same instance.  A rebalance
recommendation says that an interruption is more likely than usual, not that there will be one: it is logged,
and is a notice only if asked for.

A notice that is due already when the watch begins is put off until 30 s before its time: a program that has
left for it, and was started again on the same instance, would leave again and again.

References (seen 2026-11):
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/configuring-instance-metadata-service.html (version 2:
    tokens, their time to live)
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
    (instance-action; two minutes; to be asked for every five seconds)
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/rebalance-recommendations.html
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/viewing_scheduled_events.html
    https://docs.aws.amazon.com/sdkref/latest/guide/feature-imds-credentials.html
    (AWS_EC2_METADATA_SERVICE_ENDPOINT)
"""

from __future__ import annotations

import http.client
import json
import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from tf_preempt.termination.appointments import Appointments, Verdict
from tf_preempt.termination.background import BackgroundWatcher
from tf_preempt.termination.metadata_client import (
    Answer,
    Endpoint,
    MetadataClient,
    MetadataError,
    MetadataStatusError,
)
from tf_preempt.termination.notice import TerminationNotice
from tf_preempt.termination.timestamps import parse_http_date, parse_rfc3339

__all__ = ["AwsWatcher"]

_log = logging.getLogger("tf_preempt")

ENDPOINT_VARIABLE = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
_HOST = "169.254.169.254"
_TOKEN_PATH = "/latest/api/token"
_META_DATA = "/latest/meta-data/"
_TOKEN_HEADER = "X-aws-ec2-metadata-token"
_TTL_HEADER = "X-aws-ec2-metadata-token-ttl-seconds"
_TTL_S = 21600

_PAUSE_S = 5.0
_PAUSE_MAINTENANCE_S = 15.0
_APPOINTMENT_LEAD_S = 120.0
_ANSWERS = (http.client.OK, http.client.NOT_FOUND)


class AwsWatcher(BackgroundWatcher):
    """Gives a notice when this instance is interrupted, stopped, rebooted or retired.

    Args:
        rebalance_is_notice: whether a rebalance recommendation is a notice (without a deadline).
        lead_s: seconds between the notice of a scheduled maintenance and its beginning.
        environ: the environment variables.
        pause_s: seconds between two looks for an interruption.
        maintenance_pause_s: seconds between two looks for scheduled maintenance; less than `lead_s`.
        timeout_s: seconds for an answer.
        first_retry_s: seconds until the next try after a failure.
        clock: seconds since the epoch.
        monotonic: seconds of the clock in which a notice's deadline is told.

    Environment:
        AWS_EC2_METADATA_SERVICE_ENDPOINT: URI of another metadata server, as Amazon's libraries read it.

    Raises:
        ConfigError: AWS_EC2_METADATA_SERVICE_ENDPOINT is no address.
    """

    SPOT_SOURCE = "aws-spot"
    REBALANCE_SOURCE = "aws-rebalance"
    MAINTENANCE_SOURCE = "aws-maintenance"

    def __init__(
        self,
        *,
        rebalance_is_notice: bool = False,
        lead_s: float = _APPOINTMENT_LEAD_S,
        environ: Mapping[str, str] = os.environ,
        pause_s: float = _PAUSE_S,
        maintenance_pause_s: float = _PAUSE_MAINTENANCE_S,
        timeout_s: float = 2.0,
        first_retry_s: float = 1.0,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        endpoint = Endpoint.from_environ(environ, ENDPOINT_VARIABLE, _HOST)
        self._client = MetadataClient(endpoint, timeout_s=timeout_s)
        super().__init__(first_retry_s=first_retry_s)
        self._rebalance_is_notice = rebalance_is_notice
        self._lead_s = lead_s
        self._pause_s = pause_s
        self._maintenance_pause_s = maintenance_pause_s
        self._clock = clock
        self._monotonic = monotonic
        self._token: str | None = None
        self._token_ends = 0.0
        self._appointments = Appointments()
        self._recommended: str | None = None
        self._maintenance_due = 0.0
        self._start()

    def _look(self) -> float:
        self._look_for_interruption()
        if self._monotonic() >= self._maintenance_due:
            self._look_for_recommendation()
            self._look_for_maintenance()
            self._maintenance_due = self._monotonic() + self._maintenance_pause_s
        return self._pause_s

    def _cancel(self) -> None:
        self._client.close()

    def _look_for_interruption(self) -> None:
        value = self._get("spot/instance-action")
        if value is None:
            return
        action, when = _field(value, "action"), _field(value, "time")
        self._consider(
            self.SPOT_SOURCE,
            f"Spot interruption: {action} at {when}",
            starts=_seconds(parse_rfc3339, when),
            lead_s=math.inf,
        )

    def _look_for_recommendation(self) -> None:
        value = self._get("events/recommendations/rebalance")
        when, before = None if value is None else _field(value, "noticeTime"), self._recommended
        self._recommended = when
        if when is None or when == before:
            return
        if self._rebalance_is_notice and not self._is_first_try:
            self._give(TerminationNotice(source=self.REBALANCE_SOURCE, reason="rebalance recommendation"))
        else:
            _log.warning(
                "Amazon says that this Spot instance is more likely than usual to be interrupted; training "
                "goes on."
            )

    def _look_for_maintenance(self) -> None:
        events = self._get("events/maintenance/scheduled")
        if events is None:
            return
        if not isinstance(events, list):
            raise MetadataError(f"events/maintenance/scheduled is {str(events)[:80]!r}; expected a list.")
        for event in events:
            if _field(event, "State") == "active":
                code, not_before = _field(event, "Code"), _field(event, "NotBefore")
                self._consider(
                    self.MAINTENANCE_SOURCE,
                    f"scheduled maintenance: {code} at {not_before}",
                    starts=_seconds(parse_http_date, not_before),
                    lead_s=self._lead_s,
                )

    def _consider(self, source: str, reason: str, *, starts: float, lead_s: float) -> None:
        """Gives a notice when it is time for it, once."""
        left_s = starts - self._clock()
        verdict = self._appointments.verdict((source, reason), left_s, lead_s, is_first=self._is_first_try)
        if verdict is Verdict.UNDER_WAY:
            _log.warning(
                "%s: under way already, since before this program began; training goes on until another "
                "notice comes.",
                reason,
            )
        elif verdict is Verdict.DUE:
            self._give(TerminationNotice(source=source, reason=reason, deadline=self._monotonic() + left_s))

    def _get(self, key: str) -> Any:
        """The value of a key; None if there is none."""
        try:
            answer = self._ask(key)
        except MetadataStatusError as error:
            if error.status != http.client.UNAUTHORIZED:
                raise
            self._token = None  # it ended early: the instance was stopped meanwhile, or its clock set
            answer = self._ask(key)
        if answer.status == http.client.NOT_FOUND:
            return None
        try:
            return json.loads(answer.text)
        except ValueError as error:
            raise MetadataError(f"{key} is {answer.text[:80]!r}; expected JSON.") from error

    def _ask(self, key: str) -> Answer:
        headers = {_TOKEN_HEADER: self._valid_token()}
        return self._client.request("GET", _META_DATA + key, headers=headers, statuses=_ANSWERS)

    def _valid_token(self) -> str:
        now = self._monotonic()
        if self._token is None or now >= self._token_ends:
            answer = self._request_token()
            if not answer.text.isascii() or not answer.text.isprintable() or not answer.text.strip():
                raise MetadataError(f"The token is {answer.text[:80]!r}; expected letters and digits.")
            self._token = answer.text
            self._token_ends = now + _TTL_S / 2
        return self._token

    def _request_token(self) -> Answer:
        try:
            return self._client.request("PUT", _TOKEN_PATH, headers={_TTL_HEADER: str(_TTL_S)})
        except MetadataStatusError:
            raise
        except MetadataError as error:
            # Tokens do not travel further than the instance allows: into no container, by default.
            raise MetadataError(
                str(error), hint="In a container, set HttpPutResponseHopLimit of the instance to 2."
            ) from error


def _field(value: object, name: str) -> str:
    text = value.get(name) if isinstance(value, dict) else None
    if not isinstance(text, str):
        raise MetadataError(f"The metadata server says {str(value)[:120]!r}; expected an object with {name}.")
    return text


def _seconds(parse: Callable[[str], float], text: str) -> float:
    try:
        return parse(text)
    except ValueError as error:
        raise MetadataError(f"The metadata server says {text!r}; expected a time.") from error
