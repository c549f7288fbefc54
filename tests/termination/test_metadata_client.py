"""The client gets an answer, or an error of its own kind, in the time agreed, whatever the server does."""

from __future__ import annotations

import os
import threading
import time

import pytest

from tf_preempt.errors import ConfigError, TfPreemptError
from tf_preempt.termination.metadata_client import (
    Endpoint,
    MetadataClient,
    MetadataError,
    MetadataStatusError,
)
from tf_preempt.testing import FakeMetadataServer

GOOGLE = {"Metadata-Flavor": "Google"}
KEY = "/computeMetadata/v1/instance/maintenance-event"


@pytest.fixture
def server():
    with FakeMetadataServer() as server:
        yield server


def client_of(server, **options):
    endpoint = Endpoint.from_environ({"X": server.address}, "X", "unused")
    return MetadataClient(endpoint, headers=GOOGLE, expected_headers=GOOGLE, **options)


def test_an_answer_has_status_headers_and_text(server):
    answer = client_of(server).request("GET", KEY, query={"alt": "a b"}, headers={"X-One": "1"})
    assert (answer.status, answer.text) == (200, "NONE")
    assert answer.headers["etag"]
    (request,) = server.requests()
    assert (request.query, request.headers["x-one"]) == ({"alt": "a b"}, "1")
    assert request.headers["metadata-flavor"] == "Google"


def test_a_body_is_sent(server):
    client = client_of(server)
    with pytest.raises(MetadataStatusError):
        client.request("POST", KEY, body=b"words")
    assert server.requests()[0].body == b"words"


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("slow", "timed out"),
        ("never", "timed out"),
        ("garbage", "failed: "),
        ("cut", "early"),
        ("redirect", "HTTP status 302"),
        ("huge", "more than 262144 bytes"),
        ("stranger", "metadata-flavor: None; expected 'Google'"),
        ("nonsense", "utf-8"),
        ("404", "HTTP status 404"),
        ("429", "HTTP status 429"),
        ("500", "HTTP status 500"),
        ("503", "HTTP status 503"),
    ],
)
def test_a_server_that_misbehaves_costs_one_request_and_little_time(server, how, words):
    server.misbehave(how)
    began = time.monotonic()
    with pytest.raises(MetadataError, match=words) as caught:
        client_of(server, timeout_s=0.5 if how in ("slow", "never") else 20).request("GET", KEY)
    assert time.monotonic() - began < 15
    assert server.asked() == 1  # nothing was followed, nothing was tried twice
    assert f"GET {KEY}" in str(caught.value)
    assert server.address in str(caught.value)
    assert isinstance(caught.value, TfPreemptError)
    status = {"redirect": 302}.get(how) or (int(how) if how.isdigit() else None)
    assert getattr(caught.value, "status", None) == status


def test_statuses_that_are_answers_are_given_back(server):
    server.misbehave("404")
    assert client_of(server).request("GET", KEY, statuses=(200, 404)).status == 404


def test_a_server_that_is_not_there_is_an_error(free_port):
    client = MetadataClient(Endpoint(host="127.0.0.1", port=free_port))
    with pytest.raises(MetadataError, match=f"127.0.0.1:{free_port}.*refused"):
        client.request("GET", KEY)


def test_a_proxy_in_the_environment_is_not_used(server, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert client_of(server).request("GET", KEY).text == "NONE"


def open_sockets():
    links = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:
            pass  # that of the listing itself
    return {link for link in links if link.startswith("socket:")}


@pytest.mark.parametrize("how", [None, "never", "garbage", "redirect", "huge", "cut", "503"])
def test_no_socket_stays_open(server, how):
    client = client_of(server, timeout_s=0.3)
    if how is not None:
        server.misbehave(how)
    before = open_sockets()
    for _ in range(3):
        try:
            client.request("GET", KEY)
        except MetadataError:
            pass
    server.close()  # its own ends are gone then
    assert client._socket is None
    assert open_sockets() <= before


@pytest.mark.parametrize("how", ["never", "slow"])
def test_closing_ends_a_request_that_waits_at_once(server, how):
    server.misbehave(how)
    client = client_of(server, timeout_s=60)
    errors = []

    def run():
        try:
            client.request("GET", KEY)
        except MetadataError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    server.wait_until_asked()
    began = time.monotonic()
    client.close()
    thread.join(30)
    assert time.monotonic() - began < 5
    assert len(errors) == 1


def test_a_closed_client_asks_nothing(server):
    client = client_of(server)
    client.close()
    client.close()
    with pytest.raises(MetadataError, match="closed"):
        client.request("GET", KEY)
    assert server.asked() == 0


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("10.0.0.1", "10.0.0.1", 80),
        ("10.0.0.1:8080", "10.0.0.1", 8080),
        (" metadata:81 ", "metadata", 81),
        ("http://10.0.0.1", "10.0.0.1", 80),
        ("http://10.0.0.1:1338/", "10.0.0.1", 1338),
        ("http://[fd00:ec2::254]", "fd00:ec2::254", 80),
        ("[::1]:8080", "::1", 8080),
    ],
)
def test_an_address_in_the_environment(text, host, port):
    assert Endpoint.from_environ({"HOST": text}, "HOST", "x") == Endpoint(host=host, port=port, origin="HOST")


@pytest.mark.parametrize("environ", [{}, {"HOST": ""}, {"HOST": " "}])
def test_the_fixed_address_where_the_environment_has_none(environ):
    assert Endpoint.from_environ(environ, "HOST", "169.254.169.254") == Endpoint(host="169.254.169.254")


@pytest.mark.parametrize(
    "text",
    [
        "https://10.0.0.1",
        "10.0.0.1:x",
        "10.0.0.1:0",
        "10.0.0.1:99999",
        "http://",
        "http://10.0.0.1/latest",
        "http://10.0.0.1?a=b",
        "user@10.0.0.1",
        "[::1",
        "x y",
        "x/y",
    ],
)
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ConfigError, match="HOST=") as caught:
        Endpoint.from_environ({"HOST": text}, "HOST", "169.254.169.254")
    assert repr(text) in str(caught.value)
    assert "HOST" in caught.value.hint
