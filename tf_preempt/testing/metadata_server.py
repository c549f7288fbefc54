"""A metadata server on this machine: what does a training do when its VM is taken away?"""

from __future__ import annotations

import contextlib
import http.server
import socket
import threading
import time
import urllib.parse
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, get_args

from tf_preempt.errors import ConfigError
from tf_preempt.testing.fake_clouds import FakeAws, FakeAzure, FakeGce, Reply, Request

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["FakeMetadataServer", "Misbehaviour"]

Misbehaviour = Literal[
    "slow", "never", "404", "429", "500", "503", "garbage", "nonsense", "cut", "redirect", "huge", "stranger"
]

ELSEWHERE = "/elsewhere"
_VARIABLES = {
    "gce": ("GCE_METADATA_HOST", "{}"),
    "aws": ("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://{}"),
    "azure": ("TF_PREEMPT_AZURE_METADATA_HOST", "{}"),
}
_HUGE_BYTES = 64 * 1024 * 1024
_CHUNK_BYTES = 64 * 1024
_SECONDS_PER_BYTE = 0.2


class FakeMetadataServer:
    """Answers like the metadata servers of Google, Amazon and Microsoft, on a port that the kernel chose.

    Example::

        with FakeMetadataServer() as server:
            program = subprocess.Popen(["python", "train.py"], env={**os.environ, **server.environ("gce")})
            server.wait_until_asked("maintenance-event")
            server.gce.maintain()
            assert program.wait() == 143

    Attributes:
        gce: what Google's server says: `maintain`, `preempt`, `appoint`, `put`.
        aws: what Amazon's says: `interrupt`, `recommend_rebalance`, `schedule`, `put`, `expire_tokens`.
        azure: what Microsoft's says: `schedule`, `begin`, `clear`; `acknowledged` and `vm_name`.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.RLock())
        self.gce = FakeGce(self._changed)
        self.aws = FakeAws(self._changed)
        self.azure = FakeAzure(self._changed)
        self._requests: list[Request] = []
        self._waiting: list[Request] = []
        self._misbehaviour: tuple[Misbehaviour, str] | None = None
        self._closing = False
        self._server = _Server(self)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), name="FakeMetadataServer", daemon=True
        )
        self._thread.start()

    @property
    def address(self) -> str:
        """``127.0.0.1:port``."""
        return f"127.0.0.1:{self._server.server_address[1]}"

    def environ(self, cloud: str) -> dict[str, str]:
        """The variables that make a program take this machine for a cloud's, and this server for its own.

        Args:
            cloud: ``"gce"``, ``"aws"`` or ``"azure"``.

        Raises:
            ConfigError: it is none of these.
        """
        if cloud not in _VARIABLES:
            raise ConfigError(
                f"FakeMetadataServer.environ: cloud={cloud!r}; expected one of {', '.join(_VARIABLES)}.",
                hint="environ('gce') is for Compute Engine and TPU VMs.",
            )
        variable, form = _VARIABLES[cloud]
        return {"TF_PREEMPT_CLOUD": cloud, variable: form.format(self.address)}

    def misbehave(self, how: Misbehaviour, *, path: str = "") -> None:
        """Answers wrongly from now on.

        Args:
            how: ``"slow"`` (a byte each 0.2 s), ``"never"``, an HTTP status, ``"garbage"`` (no HTTP),
                ``"nonsense"`` (HTTP, but a body without meaning), ``"cut"`` (the end is missing),
                ``"redirect"``, ``"huge"`` (64 MB), or ``"stranger"`` (not the headers of a metadata server).
            path: only where the path of the request contains this.

        Raises:
            ConfigError: `how` is none of these.
        """
        if how not in get_args(Misbehaviour):
            raise ConfigError(
                f"FakeMetadataServer.misbehave: how={how!r}; expected one of "
                f"{', '.join(get_args(Misbehaviour))}.",
                hint="misbehave('never') is a server that hangs.",
            )
        self._set_misbehaviour((how, path))

    def behave(self) -> None:
        """Answers rightly again; requests that were never to be answered are answered now."""
        self._set_misbehaviour(None)

    def asked(self, path: str = "") -> int:
        """How many requests have come whose path contains `path`."""
        with self._changed:
            return sum(path in request.path for request in self._requests)

    def requests(self, path: str = "") -> list[Request]:
        """The requests that have come whose path contains `path`, in order."""
        with self._changed:
            return [request for request in self._requests if path in request.path]

    def wait_until_asked(self, path: str = "", *, times: int = 1, timeout_s: float = 30.0) -> None:
        """Waits until so many requests have come, since the server was made.

        Args:
            path: what their path contains.
            times: how many.
            timeout_s: seconds after which it is given up.

        Raises:
            TimeoutError: there were fewer.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self.asked(path) >= times, timeout_s):
                raise TimeoutError(
                    f"{self.asked(path)} requests for {path!r} came within {timeout_s} s; expected {times}."
                )

    def wait_until_waiting(self, path: str = "", *, timeout_s: float = 30.0) -> None:
        """Waits until a client waits for an answer: for a change, or for one that never comes.

        Args:
            path: what the request's path contains.
            timeout_s: seconds after which it is given up.

        Raises:
            TimeoutError: none did.
        """
        with self._changed:
            if not self._changed.wait_for(
                lambda: any(path in request.path for request in self._waiting), timeout_s
            ):
                raise TimeoutError(f"No client waited for {path!r} within {timeout_s} s.")

    def close(self) -> None:
        """Ends all answers and gives the port back; calling it again is fine."""
        with self._changed:
            if self._closing:
                return
            self._closing = True
            self._changed.notify_all()
        self._server.shutdown()
        self._server.hang_up()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # ------------------------------------------------------------------------------- the server's threads

    def _set_misbehaviour(self, misbehaviour: tuple[Misbehaviour, str] | None) -> None:
        with self._changed:
            self._misbehaviour = misbehaviour
            self._changed.notify_all()

    def _misbehaviour_for(self, request: Request) -> Misbehaviour | None:
        if self._misbehaviour is None or self._misbehaviour[1] not in request.path:
            return None
        return self._misbehaviour[0]

    def _take(self, request: Request) -> tuple[Misbehaviour | None, Reply] | None:
        """What to answer; the server's threads wait here.  None: nothing, as the server closes."""
        with self._changed:
            self._requests.append(request)
            self._changed.notify_all()
            with self._as_waiting(request):
                self._changed.wait_for(lambda: self._closing or self._misbehaviour_for(request) != "never")
                reply = self._wait_for_reply(request)
                how = self._misbehaviour_for(request)
            return None if self._closing else (how if how != "never" else None, reply)

    def _wait_for_reply(self, request: Request) -> Reply:
        waits_s = float(request.query.get("timeout_sec", "inf"))
        ends = time.monotonic() + waits_s
        while (reply := self._reply(request)) is None:
            left_s = ends - time.monotonic()
            # A server that begins to misbehave does so to those who wait already, too.
            if self._closing or left_s <= 0 or self._misbehaviour_for(request) is not None:
                query = {name: value for name, value in request.query.items() if name != "wait_for_change"}
                reply = self._reply(
                    Request(method="GET", path=request.path, query=query, headers=request.headers)
                )
                return reply if reply is not None else Reply(status=503)
            self._changed.wait(None if left_s == float("inf") else left_s)
        return reply

    def _reply(self, request: Request) -> Reply | None:
        for cloud in (self.gce, self.aws, self.azure):
            if request.path.startswith(cloud.ROOT):
                return cloud.reply(request)
        return Reply(body=b"TRUE") if request.path == ELSEWHERE else Reply(status=404)

    @contextlib.contextmanager
    def _as_waiting(self, request: Request) -> Iterator[None]:
        self._waiting.append(request)
        self._changed.notify_all()
        try:
            yield
        finally:
            self._waiting.remove(request)


class _Server(http.server.ThreadingHTTPServer):
    # Every thread is waited for when the server closes, so that a test leaves none behind.
    daemon_threads = False
    block_on_close = True

    def __init__(self, fake: FakeMetadataServer) -> None:
        self.fake = fake
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone is no news."""

    def hang_up(self) -> None:
        """Ends the connections on which a thread still reads or writes."""
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        self._serve()

    do_PUT = do_POST = do_GET  # noqa: N815 - as above

    def log_message(self, *args: Any) -> None:
        """Says nothing."""

    def _serve(self) -> None:
        self.close_connection = True
        parts = urllib.parse.urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        request = Request(
            method=self.command,
            path=parts.path,
            query=dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True)),
            headers={name.lower(): value for name, value in self.headers.items()},
            body=self.rfile.read(length),
        )
        taken = self.server.fake._take(request)
        if taken is not None:
            self._answer(*taken)

    def _answer(self, how: Misbehaviour | None, reply: Reply) -> None:
        if how == "garbage":
            self.wfile.write(b"\x16\x03\x01\x00\xff no HTTP \x00\r\n\r\n")
        elif how == "redirect":
            self._send(
                Reply(status=302, headers={"Location": f"http://{self.server.fake.address}{ELSEWHERE}"})
            )
        elif how == "stranger":
            self._send(Reply(status=reply.status, headers={"Server": "proxy"}, body=reply.body))
        elif how == "nonsense":
            self._send(Reply(headers=reply.headers, body=b"\xff<html>Hello</html>"))
        elif how == "huge":
            self._send(Reply(headers=reply.headers), length=_HUGE_BYTES)
            for _ in range(_HUGE_BYTES // _CHUNK_BYTES):
                self.wfile.write(b"x" * _CHUNK_BYTES)
        elif how == "cut":
            self._send(reply, length=len(reply.body) + 10)
        elif how == "slow":
            self._drip(reply)
        elif how is not None and how.isdigit():
            self._send(Reply(status=int(how), headers=reply.headers, body=b"Sorry"))
        else:
            self._send(reply)

    def _send(self, reply: Reply, *, length: int | None = None) -> None:
        self._begin(reply, len(reply.body) if length is None else length)
        self.wfile.write(reply.body)

    def _drip(self, reply: Reply) -> None:
        self._begin(reply, len(reply.body) + 1000)
        for byte in reply.body + b" " * 1000:
            with self.server.fake._changed:
                if self.server.fake._changed.wait_for(
                    lambda: self.server.fake._closing, timeout=_SECONDS_PER_BYTE
                ):
                    return
            self.wfile.write(bytes((byte,)))

    def _begin(self, reply: Reply, length: int) -> None:
        self.send_response_only(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.send_header("Connection", "close")
        self.end_headers()
