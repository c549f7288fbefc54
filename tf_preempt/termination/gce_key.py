"""A key of Google's metadata server, asked with requests that are answered when its value changes.

References (seen 2026-11):
    https://cloud.google.com/compute/docs/metadata/querying-metadata (header, ETag, wait_for_change,
    last_etag, timeout_sec)
    https://github.com/GoogleCloudPlatform/python-docs-samples/blob/main/compute/metadata/main.py (503 while
    the VM is maintained)
    https://googleapis.dev/python/google-auth/latest/reference/google.auth.environment_vars.html
    (GCE_METADATA_HOST)
"""

from __future__ import annotations

import abc
import http.client
import os
import time
from collections.abc import Callable, Mapping

from tf_preempt.termination.background import BackgroundWatcher
from tf_preempt.termination.metadata_client import Answer, Endpoint, MetadataClient

__all__ = ["ENDPOINT_VARIABLE", "INSTANCE", "GceKeyWatcher"]

ENDPOINT_VARIABLE = "GCE_METADATA_HOST"
INSTANCE = "/computeMetadata/v1/instance/"
# By address, so that no name server has to answer while the VM goes away.
_HOST = "169.254.169.254"
_FLAVOR = {"Metadata-Flavor": "Google"}

_HANG_S = 60.0
_SPARE_S = 10.0
# A server that answers at once although nothing has changed must not be asked without a pause.
_LEAST_PAUSE_S = 0.1
_PAUSE_S = 1.0
# No VM begins to have a key while it runs; this finds out about one that was not told at first.
_PAUSE_WITHOUT_KEY_S = 60.0


class GceKeyWatcher(BackgroundWatcher):
    """Waits for the changes of one key.

    Args:
        environ: the environment variables.
        hang_s: seconds after which the server is to answer although nothing has changed.
        timeout_s: seconds more than that for the answer to come.
        first_retry_s: seconds until the next try after a failure.
        without_key_s: seconds until a key is asked for again that this VM does not have.
        clock: seconds since the epoch.
        monotonic: seconds of the clock in which a notice's deadline is told.

    Environment:
        GCE_METADATA_HOST: ``host`` or ``host:port`` of another server, as Google's libraries read it.

    Raises:
        ConfigError: GCE_METADATA_HOST is no address.
    """

    _key: str
    _query: Mapping[str, str] = {}
    _statuses: tuple[int, ...] = (200,)

    def __init__(
        self,
        *,
        environ: Mapping[str, str] = os.environ,
        hang_s: float = _HANG_S,
        timeout_s: float = _SPARE_S,
        first_retry_s: float = 1.0,
        without_key_s: float = _PAUSE_WITHOUT_KEY_S,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        endpoint = Endpoint.from_environ(environ, ENDPOINT_VARIABLE, _HOST)
        self._client = MetadataClient(
            endpoint, headers=_FLAVOR, expected_headers=_FLAVOR, timeout_s=timeout_s
        )
        super().__init__(first_retry_s=first_retry_s)
        self._hang_s = hang_s
        self._timeout_s = timeout_s
        self._without_key_s = without_key_s
        self._clock = clock
        self._monotonic = monotonic
        self._etag: str | None = None
        self._answered: float | None = None
        # The earliest moment at which the value can have become what it is, on the clock of deadlines.
        self._since: float | None = None
        self._start()

    @abc.abstractmethod
    def _interpret(self, answer: Answer) -> None:
        """Takes the value of the key."""

    def _longest_hang_s(self) -> float:
        return self._hang_s

    def _look(self) -> float:
        began = self._monotonic()
        before, self._etag = self._etag, None  # after a failure the value is asked for without waiting
        answer = self._ask(before)
        now = self._monotonic()
        self._since = now if before is not None else self._answered
        self._interpret(answer)
        self._answered = now
        if answer.status != http.client.OK:
            return self._without_key_s
        self._etag = answer.headers.get("etag")
        if self._etag is not None and self._etag != before:
            return _LEAST_PAUSE_S
        return max(_LEAST_PAUSE_S, _PAUSE_S - (self._monotonic() - began))

    def _ask(self, etag: str | None) -> Answer:
        query, timeout_s = dict(self._query), self._timeout_s
        if etag is not None:
            hang_s = max(1, int(self._longest_hang_s()))
            query |= {"wait_for_change": "true", "last_etag": etag, "timeout_sec": str(hang_s)}
            timeout_s += hang_s
        return self._client.request(
            "GET", INSTANCE + self._key, query=query, timeout_s=timeout_s, statuses=self._statuses
        )

    def _cancel(self) -> None:
        self._client.close()

    def _at(self, when: float) -> float:
        """The moment, told in seconds since the epoch, on the clock of deadlines."""
        return self._monotonic() + when - self._clock()
