"""The fake metadata server answers as the clouds' documentation says, and as badly as it is asked to."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from typing import get_args

import pytest

from tf_preempt.errors import ConfigError
from tf_preempt.testing import FakeMetadataServer
from tf_preempt.testing.metadata_server import Misbehaviour

GOOGLE = {"Metadata-Flavor": "Google"}
AZURE = {"Metadata": "true"}
MAINTENANCE = "/computeMetadata/v1/instance/maintenance-event"
EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"


@pytest.fixture
def server():
    with FakeMetadataServer() as server:
        yield server


def ask(server, path, headers=None, *, method="GET", body=None, timeout=20.0):
    host, _, port = server.address.partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=timeout)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()
    finally:
        connection.close()


def in_thread(function, *args):
    answers = []
    thread = threading.Thread(target=lambda: answers.append(function(*args)))
    thread.start()
    return thread, answers


def test_googles_server_wants_its_header_and_sends_it(server):
    assert ask(server, MAINTENANCE)[0] == 403
    status, headers, body = ask(server, MAINTENANCE, GOOGLE)
    assert (status, headers["Metadata-Flavor"], body) == (200, "Google", b"NONE")
    assert headers["ETag"]


@pytest.mark.parametrize(
    ("path", "value"),
    [("preempted", b"FALSE"), ("upcoming-maintenance?alt=json", b"no notifications have been received yet")],
)
def test_googles_other_keys_say_at_first_that_there_is_nothing(server, path, value):
    status, _, body = ask(server, f"/computeMetadata/v1/instance/{path}", GOOGLE)
    assert status == 200
    assert value in body


def test_a_key_that_was_taken_away_is_not_found(server):
    server.gce.put("upcoming-maintenance", None)
    assert ask(server, "/computeMetadata/v1/instance/upcoming-maintenance", GOOGLE)[0] == 404


def test_a_client_that_waits_is_answered_at_the_change(server):
    etag = ask(server, MAINTENANCE, GOOGLE)[1]["ETag"]
    thread, answers = in_thread(
        ask, server, f"{MAINTENANCE}?wait_for_change=true&last_etag={etag}&timeout_sec=60", GOOGLE
    )
    server.wait_until_waiting("maintenance-event")
    assert answers == []
    server.gce.preempt()  # of another key
    server.gce.maintain()
    thread.join(20)
    ((status, headers, body),) = answers
    assert (status, body) == (200, b"TERMINATE_ON_HOST_MAINTENANCE")
    assert headers["ETag"] != etag


@pytest.mark.parametrize("query", ["wait_for_change=true", "wait_for_change=true&last_etag=old"])
def test_a_client_that_does_not_know_the_value_need_not_wait(server, query):
    assert ask(server, f"{MAINTENANCE}?{query}", GOOGLE)[2] == b"NONE"


def test_a_wait_ends_after_the_seconds_that_the_client_named(server):
    etag = ask(server, MAINTENANCE, GOOGLE)[1]["ETag"]
    began = time.monotonic()
    status, headers, body = ask(
        server, f"{MAINTENANCE}?wait_for_change=true&last_etag={etag}&timeout_sec=1", GOOGLE
    )
    assert time.monotonic() - began >= 0.9
    assert (status, headers["ETag"], body) == (200, etag, b"NONE")


def token(server, ttl="60"):
    headers = {"X-aws-ec2-metadata-token-ttl-seconds": ttl}
    return ask(server, "/latest/api/token", headers, method="PUT")


def test_amazons_server_wants_a_token(server):
    server.aws.interrupt(in_s=120)
    path = "/latest/meta-data/spot/instance-action"
    assert ask(server, path)[0] == 401
    status, _, text = token(server)
    assert status == 200
    status, _, body = ask(server, path, {"X-aws-ec2-metadata-token": text.decode()})
    assert (status, json.loads(body)["action"]) == (200, "terminate")
    server.aws.expire_tokens()
    assert ask(server, path, {"X-aws-ec2-metadata-token": text.decode()})[0] == 401


@pytest.mark.parametrize("ttl", ["", "0", "21601", "x"])
def test_amazons_server_refuses_a_token_for_such_a_time(server, ttl):
    assert token(server, ttl)[0] == 400


def test_amazons_server_has_nothing_to_say_at_first(server):
    headers = {"X-aws-ec2-metadata-token": token(server)[2].decode()}
    for key in ("spot/instance-action", "events/recommendations/rebalance", "events/maintenance/scheduled"):
        assert ask(server, f"/latest/meta-data/{key}", headers)[0] == 404


def test_amazons_dates_are_those_of_its_documentation(server):
    server.aws.schedule(in_s=0)
    headers = {"X-aws-ec2-metadata-token": token(server)[2].decode()}
    (event,) = json.loads(ask(server, "/latest/meta-data/events/maintenance/scheduled", headers)[2])
    day, month, year, _, zone = event["NotBefore"].split()
    assert (day.isdigit(), month.isalpha(), year.isdigit(), zone) == (True, True, True, "GMT")
    assert event["State"] == "active"


def test_microsofts_server_wants_its_header_and_a_version(server):
    assert ask(server, EVENTS)[0] == 400
    assert ask(server, EVENTS.partition("?")[0], AZURE)[0] == 400
    status, _, body = ask(server, EVENTS, AZURE)
    assert (status, json.loads(body)["Events"]) == (200, [])


def test_microsofts_events_are_announced_acknowledged_and_begun(server):
    server.azure.schedule("Reboot", in_s=900)
    first = json.loads(ask(server, EVENTS, AZURE)[2])
    assert first["Events"][0]["Resources"] == ["worker-0"]
    body = json.dumps({"StartRequests": [{"EventId": "event-1"}]})
    assert ask(server, EVENTS, AZURE, method="POST", body=body)[0] == 200
    second = json.loads(ask(server, EVENTS, AZURE)[2])
    assert (second["Events"][0]["EventStatus"], second["Events"][0]["NotBefore"]) == ("Started", "")
    assert second["DocumentIncarnation"] > first["DocumentIncarnation"]
    assert server.azure.acknowledged == ["event-1"]


@pytest.mark.parametrize("body", ["", "{}", '{"StartRequests": [{"EventId": "other"}]}'])
def test_an_acknowledgement_of_nothing_is_refused(server, body):
    assert ask(server, EVENTS, AZURE, method="POST", body=body)[0] == 400
    assert server.azure.acknowledged == []


@pytest.mark.parametrize("status", [404, 429, 500, 503])
def test_it_gives_a_status_that_is_asked_for(server, status):
    server.misbehave(str(status))
    assert ask(server, MAINTENANCE, GOOGLE)[0] == status
    server.behave()
    assert ask(server, MAINTENANCE, GOOGLE)[0] == 200


def test_it_misbehaves_only_where_it_was_told_to(server):
    server.misbehave("500", path="preempted")
    assert ask(server, MAINTENANCE, GOOGLE)[0] == 200
    assert ask(server, "/computeMetadata/v1/instance/preempted", GOOGLE)[0] == 500


def test_it_sends_what_is_no_http(server):
    server.misbehave("garbage")
    with pytest.raises(http.client.BadStatusLine):
        ask(server, MAINTENANCE, GOOGLE)


def test_it_sends_another_body(server):
    server.misbehave("nonsense")
    assert b"NONE" not in ask(server, MAINTENANCE, GOOGLE)[2]


def test_it_ends_an_answer_early(server):
    server.misbehave("cut")
    with pytest.raises(http.client.IncompleteRead):
        ask(server, MAINTENANCE, GOOGLE)


def test_it_redirects_to_where_it_can_be_seen(server):
    server.misbehave("redirect")
    status, headers, _ = ask(server, MAINTENANCE, GOOGLE)
    assert (status, headers["Location"]) == (302, f"http://{server.address}/elsewhere")
    assert server.asked("elsewhere") == 0


def test_it_sends_a_huge_body(server):
    server.misbehave("huge")
    assert len(ask(server, MAINTENANCE, GOOGLE)[2]) > 60_000_000


def test_it_is_a_stranger(server):
    server.misbehave("stranger")
    assert "Metadata-Flavor" not in ask(server, MAINTENANCE, GOOGLE)[1]


def test_it_does_not_answer(server):
    server.misbehave("never")
    with pytest.raises(TimeoutError):
        ask(server, MAINTENANCE, GOOGLE, timeout=0.3)


def test_it_answers_so_slowly_that_a_client_with_a_time_out_for_each_packet_never_gives_up(server):
    server.misbehave("slow")
    host, _, port = server.address.partition(":")
    with socket.create_connection((host, int(port)), timeout=20) as client:
        client.sendall(f"GET {MAINTENANCE} HTTP/1.1\r\nHost: x\r\nMetadata-Flavor: Google\r\n\r\n".encode())
        head = client.makefile("rb")
        while head.readline() != b"\r\n":
            pass
        began = time.monotonic()
        assert head.read(3) == b"NON"
        assert time.monotonic() - began > 0.4


def test_a_client_that_was_never_answered_is_answered_when_it_behaves(server):
    server.misbehave("never")
    thread, answers = in_thread(ask, server, MAINTENANCE, GOOGLE)
    server.wait_until_waiting("maintenance-event")
    server.behave()
    thread.join(20)
    assert answers[0][2] == b"NONE"


@pytest.mark.parametrize("how", get_args(Misbehaviour))
def test_it_closes_at_once_whatever_it_is_doing(how):
    server = FakeMetadataServer()
    server.misbehave(how)
    host, _, port = server.address.partition(":")
    with socket.create_connection((host, int(port)), timeout=20) as client:
        client.sendall(f"GET {MAINTENANCE} HTTP/1.1\r\nHost: x\r\nMetadata-Flavor: Google\r\n\r\n".encode())
        server.wait_until_asked("maintenance-event")
        began = time.monotonic()
        server.close()
        assert time.monotonic() - began < 5
    server.close()


def test_it_closes_although_a_client_has_asked_nothing():
    server = FakeMetadataServer()
    host, _, port = server.address.partition(":")
    with socket.create_connection((host, int(port)), timeout=20):
        server.close()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda server: server.misbehave("badly"), "how='badly'; expected one of slow, never"),
        (lambda server: server.environ("ibm"), "cloud='ibm'; expected one of gce, aws, azure"),
    ],
)
def test_what_it_does_not_know_is_refused(server, call, words):
    with pytest.raises(ConfigError, match=words) as caught:
        call(server)
    assert caught.value.hint


def test_waiting_for_a_request_that_does_not_come_ends(server):
    with pytest.raises(TimeoutError, match="0 requests for 'preempted'"):
        server.wait_until_asked("preempted", timeout_s=0.01)
    with pytest.raises(TimeoutError, match="No client waited"):
        server.wait_until_waiting(timeout_s=0.01)


def test_requests_are_kept(server):
    ask(server, f"{MAINTENANCE}?alt=text", GOOGLE)
    (request,) = server.requests("maintenance")
    assert (request.method, request.path, request.query) == ("GET", MAINTENANCE, {"alt": "text"})
    assert request.headers["metadata-flavor"] == "Google"


def test_it_needs_no_tensorflow(run_script):
    result = run_script(
        "import sys\n"
        "from tf_preempt.testing import FakeMetadataServer\n"
        "print(sorted({'tensorflow', 'keras'} & set(sys.modules)))\n"
    )
    assert (result.rc, result.stdout) == (0, "[]\n"), result.stderr
