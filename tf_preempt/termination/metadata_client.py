"""Asks the metadata server of a cloud's VM: one address, one answer, never longer than agreed.

A metadata server is at a fixed address that only the VM itself reaches.  Whatever else answers there (a
captive portal, a server on another machine) must not be taken for it, and none of its misbehaviours may
cost more than one request.  So there are no redirects, no proxies, no names to resolve unless an environment
variable gives one, a limit to the time of a whole request, and one to the size of its answer.
"""

from __future__ import annotations

import dataclasses
import http.client
import re
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from tf_preempt.errors import ConfigError, TfPreemptError

__all__ = ["Answer", "Endpoint", "MetadataClient", "MetadataError", "MetadataStatusError"]

_HTTP_PORT = 80
_MOST_BYTES = 256 * 1024
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class MetadataError(TfPreemptError, OSError):
    """The metadata server cannot be asked, or what it answers is not what its documentation says."""


class MetadataStatusError(MetadataError):
    """The metadata server answers with an HTTP status that is no answer to the question.

    Args:
        message: what was asked, and what came back.
        status: the HTTP status.
        hint: the cure.
    """

    def __init__(self, message: str, *, status: int, hint: str | None = None) -> None:
        self.status = status
        super().__init__(message, hint=hint)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where a metadata server listens.

    Args:
        host: name or address.
        port: TCP port, 1 to 65535.
        origin: who said so, for messages.
    """

    host: str
    port: int = _HTTP_PORT
    origin: str = "its fixed address"

    @classmethod
    def from_environ(cls, environ: Mapping[str, str], variable: str, default: str) -> Endpoint:
        """The address in an environment variable, or the platform's fixed one.

        Args:
            environ: the environment variables.
            variable: which of them may hold ``host``, ``host:port`` or ``http://host:port``.
            default: the host that counts where it is not set or empty.

        Raises:
            ConfigError: the variable holds something else.
        """
        text = environ.get(variable, "").strip()
        if not text:
            return cls(host=default)
        try:
            parts = urllib.parse.urlsplit(text if "://" in text else f"http://{text}")
            host, port = parts.hostname, parts.port
        except ValueError:
            parts, host, port = urllib.parse.SplitResult("", "", "", "", ""), None, None
        is_host = host is not None and re.fullmatch(r"[A-Za-z0-9._:-]+", host)
        is_plain = parts.scheme == "http" and parts.path in ("", "/") and not (parts.query or parts.fragment)
        if not host or not is_host or not is_plain or parts.username is not None or port == 0:
            raise ConfigError(
                f"{variable}={text!r} (an environment variable) is no address of a metadata server; expected "
                "host, host:port or http://host:port.",
                hint=f"Unset {variable}, unless you want another server than {default} to be asked.",
            )
        return cls(host=host, port=port or _HTTP_PORT, origin=variable)

    def __str__(self) -> str:
        return f"{self.host}:{self.port} ({self.origin})"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """What a metadata server has answered.

    Args:
        status: the HTTP status.
        headers: by their names in lower case.
        text: the body.
    """

    status: int
    headers: Mapping[str, str]
    text: str


class _TimedSocket(socket.socket):
    """A socket with one moment after which it neither sends nor receives.

    An ordinary time-out counts anew for every packet, so that a server which sends a byte now and then would
    never be given up.
    """

    deadline: float

    def connect(self, address: Any) -> None:
        self._arm()
        super().connect(address)

    def sendall(self, *args: Any) -> None:
        self._arm()
        super().sendall(*args)

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        self._arm()
        return super().recv_into(*args, **kwargs)

    def _arm(self) -> None:
        left_s = self.deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        self.settimeout(left_s)


class _Connection(http.client.HTTPConnection):
    """Connects with a `_TimedSocket`, which is shown to `on_socket` before it waits for anything."""

    def __init__(
        self, endpoint: Endpoint, *, deadline: float, on_socket: Callable[[socket.socket], None]
    ) -> None:
        super().__init__(endpoint.host, endpoint.port)
        self._deadline = deadline
        self._on_socket = on_socket

    def connect(self) -> None:
        error: OSError | None = None
        for family, kind, protocol, _, address in socket.getaddrinfo(
            self.host, self.port, type=socket.SOCK_STREAM
        ):
            candidate = _TimedSocket(family, kind, protocol)
            candidate.deadline = self._deadline
            self.sock = candidate
            try:
                self._on_socket(candidate)
                candidate.connect(address)
                return
            except OSError as caught:
                candidate.close()
                error = caught
        raise error or OSError(f"{self.host} has no address")


class MetadataClient:
    """Sends requests to one metadata server, each over a connection of its own.

    One thread asks; `close` may be called from another one and ends a request that is just waiting.

    Example::

        client = MetadataClient(Endpoint(host="169.254.169.254"), headers={"Metadata-Flavor": "Google"})
        answer = client.request("GET", "/computeMetadata/v1/instance/preempted")

    Args:
        endpoint: where the server listens.
        headers: sent with every request.
        expected_headers: which a successful answer has to carry, by name, with these values.
        timeout_s: seconds for a whole request, if it does not say otherwise.
        most_bytes: the largest body that is read; a larger one is an error.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        headers: Mapping[str, str] = _NO_HEADERS,
        expected_headers: Mapping[str, str] = _NO_HEADERS,
        timeout_s: float = 5.0,
        most_bytes: int = _MOST_BYTES,
    ) -> None:
        self.endpoint = endpoint
        self._headers = dict(headers)
        self._expected = {name.lower(): value for name, value in expected_headers.items()}
        self._timeout_s = timeout_s
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._closed = False

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] = _NO_HEADERS,
        headers: Mapping[str, str] = _NO_HEADERS,
        body: bytes | None = None,
        timeout_s: float | None = None,
        statuses: tuple[int, ...] = (200,),
    ) -> Answer:
        """Asks once.

        Args:
            method: ``GET``, ``PUT`` or ``POST``.
            path: of the request, beginning with ``/``.
            query: appended to the path, encoded.
            headers: in addition to the client's.
            body: what is sent along.
            timeout_s: seconds for this request.
            statuses: which HTTP statuses are answers.

        Raises:
            MetadataStatusError: the answer has another status; a redirect, for instance, is not followed.
            MetadataError: the server cannot be reached, does not answer in time, answers too much or no
                HTTP, lacks the header by which it is known, or the client was closed.
        """
        target = f"{path}?{urllib.parse.urlencode(query)}" if query else path
        what = f"{method} {path} of the metadata server at {self.endpoint}"
        deadline = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        connection = _Connection(self.endpoint, deadline=deadline, on_socket=self._take)
        try:
            connection.request(method, target, body, {**self._headers, **headers, "Connection": "close"})
            answer = self._read(connection.getresponse(), what)
        except (OSError, http.client.HTTPException, UnicodeDecodeError) as error:
            if isinstance(error, MetadataError):
                raise
            raise MetadataError(f"{what} failed: {str(error) or type(error).__name__}.") from error
        finally:
            with self._lock:
                self._socket = None
            connection.close()
        self._check(answer, what, statuses)
        return answer

    def close(self) -> None:
        """Ends a request that is waiting, with an error, and refuses others; calling it again is fine."""
        with self._lock:
            self._closed = True
            if self._socket is not None:
                try:
                    self._socket.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # not connected yet, or no more

    def _take(self, candidate: socket.socket) -> None:
        with self._lock:
            if self._closed:
                raise MetadataError("The metadata client is closed.")
            self._socket = candidate

    def _read(self, response: http.client.HTTPResponse, what: str) -> Answer:
        with response:
            body = response.read(self._most_bytes + 1)
            missing = response.length
        if len(body) > self._most_bytes:
            raise MetadataError(f"{what} answered more than {self._most_bytes} bytes.")
        if missing:
            raise MetadataError(f"{what} ended its answer {missing} bytes early.")
        headers = {name.lower(): value for name, value in response.getheaders()}
        # An error page may be in any encoding; an answer may not.
        errors = "strict" if response.status == http.client.OK else "replace"
        return Answer(status=response.status, headers=headers, text=body.decode("utf-8", errors))

    def _check(self, answer: Answer, what: str, statuses: tuple[int, ...]) -> None:
        if answer.status not in statuses:
            raise MetadataStatusError(
                f"{what} answered with HTTP status {answer.status}.", status=answer.status
            )
        for name, value in self._expected.items():
            if answer.status == http.client.OK and answer.headers.get(name) != value:
                raise MetadataError(
                    f"{what} came with {name}: {answer.headers.get(name)!r}; expected {value!r}: something "
                    "else than the metadata server has answered."
                )
