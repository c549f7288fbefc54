"""What Google's metadata server says becomes one notice each, with the deadline of its documentation."""

from __future__ import annotations

import json
import time

import pytest

from tests.termination.metadata_cases import has_notice, notice_of, warnings_of
from tf_preempt.errors import ConfigError
from tf_preempt.termination.gce import (
    GceMaintenanceWatcher,
    GcePreemptionWatcher,
    GceUpcomingMaintenanceWatcher,
)
from tf_preempt.termination.gce_appointment import Maintenance, parse_maintenance
from tf_preempt.termination.metadata_client import MetadataError
from tf_preempt.testing import FakeMetadataServer

KINDS = (GceMaintenanceWatcher, GcePreemptionWatcher, GceUpcomingMaintenanceWatcher)


@pytest.fixture
def server():
    with FakeMetadataServer() as server:
        yield server


@pytest.fixture
def watch(server):
    """Makes watchers that ask the fake server, and closes them."""
    watchers = []

    def make(kind, *, waits=True, **options):
        if kind is GceMaintenanceWatcher:
            options = {"has_gpu": lambda: False, **options}
        watchers.append(kind(environ=server.environ("gce"), first_retry_s=0.01, **options))
        if waits:
            server.wait_until_waiting(kind._key)
        return watchers[-1]

    yield make
    for watcher in watchers:
        watcher.close()


@pytest.mark.parametrize("value", ["TERMINATE_ON_HOST_MAINTENANCE", "SHUTDOWN_ON_HOST_MAINTENANCE"])
@pytest.mark.parametrize(("has_gpu", "seconds"), [(False, 60.0), (True, 3600.0)])
def test_maintenance_that_ends_the_vm_is_a_notice(server, watch, value, has_gpu, seconds):
    watcher = watch(GceMaintenanceWatcher, has_gpu=lambda: has_gpu)
    server.gce.maintain(value)
    notice = notice_of(watcher)
    assert (notice.source, notice.reason) == ("gce-maintenance", value)
    assert seconds - 20 < notice.remaining_s() <= seconds


@pytest.mark.parametrize(
    ("has_gpu", "appointed_in_s", "trains_on"),
    [(True, None, True), (True, 1800, True), (True, 300, False), (False, None, False)],
)
def test_only_a_long_notice_of_maintenance_is_trained_in(server, watch, has_gpu, appointed_in_s, trains_on):
    if appointed_in_s is not None:
        server.gce.appoint(in_s=appointed_in_s)
    watcher = watch(GceMaintenanceWatcher, has_gpu=lambda: has_gpu)
    server.gce.maintain()
    assert notice_of(watcher).trains_on is trains_on


def test_no_other_notice_is_trained_in(server, watch):
    preemption, upcoming = watch(GcePreemptionWatcher), watch(GceUpcomingMaintenanceWatcher, lead_s=7200.0)
    server.gce.preempt()
    server.gce.appoint(in_s=3600)
    assert not notice_of(preemption).trains_on
    assert not notice_of(upcoming).trains_on


def test_a_vm_that_is_moved_goes_on(server, watch, caplog):
    caplog.set_level("INFO")
    watcher = watch(GceMaintenanceWatcher)
    server.gce.maintain("MIGRATE_ON_HOST_MAINTENANCE")
    server.wait_until_asked("maintenance-event", times=3)
    assert not has_notice(watcher)
    server.gce.maintain("NONE")
    server.gce.maintain("TERMINATE_ON_HOST_MAINTENANCE")
    assert notice_of(watcher).reason == "TERMINATE_ON_HOST_MAINTENANCE"
    assert sum("moved to another host" in message for message in caplog.messages) == 1


def test_a_maintenance_is_told_once_and_the_next_one_again(server, watch):
    watcher = watch(GceMaintenanceWatcher)
    server.gce.maintain()
    notice_of(watcher)
    asked = server.asked("maintenance-event")
    server.gce.maintain()  # the same value, with another ETag
    server.wait_until_asked("maintenance-event", times=asked + 2)
    assert not has_notice(watcher)
    asked = server.asked("maintenance-event")
    server.gce.maintain("NONE")
    server.wait_until_asked("maintenance-event", times=asked + 1)
    server.wait_until_waiting("maintenance-event")
    server.gce.maintain()
    notice_of(watcher)


@pytest.mark.parametrize(
    ("kind", "happen"),
    [
        (GceMaintenanceWatcher, lambda server: server.gce.maintain()),
        (GcePreemptionWatcher, lambda server: server.gce.preempt()),
    ],
)
def test_what_was_said_before_the_program_began_is_no_notice(server, watch, caplog, kind, happen):
    happen(server)
    watcher = watch(kind)
    assert not has_notice(watcher)
    assert ["since before this program began" in words for words in warnings_of(caplog)] == [True]
    happen(server)  # the same value, with another ETag
    server.wait_until_asked(kind._key, times=3)
    assert not has_notice(watcher)


@pytest.mark.parametrize(
    ("kind", "happen"),
    [
        (GceMaintenanceWatcher, lambda server: server.gce.maintain()),
        (GcePreemptionWatcher, lambda server: server.gce.preempt()),
    ],
)
def test_what_was_said_while_the_server_did_not_answer_at_first_is_a_notice_without_deadline(
    server, watch, kind, happen
):
    server.misbehave("503")
    watcher = watch(kind, waits=False)
    server.wait_until_asked(kind._key, times=2)
    happen(server)
    server.behave()
    notice = notice_of(watcher)
    assert (notice.deadline, notice.trains_on) == (None, False)


def test_an_appointment_is_the_deadline_of_a_maintenance(server, watch):
    server.gce.appoint(in_s=1800)
    watcher = watch(GceMaintenanceWatcher, has_gpu=lambda: True)
    server.gce.maintain()
    assert 1700 < notice_of(watcher).remaining_s() <= 1800


@pytest.mark.parametrize("in_s", [-60.0, 7200.0], ids=["past", "of another maintenance"])
def test_another_appointment_does_not_count(server, watch, in_s):
    server.gce.appoint(in_s=in_s)
    watcher = watch(GceMaintenanceWatcher, has_gpu=lambda: True)
    server.gce.maintain()
    assert 3500 < notice_of(watcher).remaining_s() <= 3600


@pytest.mark.parametrize("how", ["never", "404", "nonsense", "stranger"])
def test_a_notice_does_not_wait_for_an_appointment_that_cannot_be_told(server, watch, how):
    server.misbehave(how, path="upcoming")
    watcher = watch(GceMaintenanceWatcher)
    server.gce.maintain()
    assert notice_of(watcher).reason == "TERMINATE_ON_HOST_MAINTENANCE"


def test_after_a_failure_the_deadline_counts_from_the_last_answer_before_it(server, watch):
    watcher = watch(GceMaintenanceWatcher)
    answered = time.monotonic()
    server.misbehave("503")
    server.wait_until_asked("maintenance-event", times=5)
    server.gce.maintain()
    server.behave()
    assert notice_of(watcher).deadline <= answered + 60.0


def test_a_preemption_is_a_notice_of_half_a_minute(server, watch):
    watcher = watch(GcePreemptionWatcher)
    server.gce.preempt()
    notice = notice_of(watcher)
    assert notice.source == "gce-preempted"
    assert 10 < notice.remaining_s() <= 30
    server.gce.preempt()
    server.wait_until_asked("preempted", times=4)
    assert not has_notice(watcher)


def test_an_appointment_gives_its_notice_shortly_before(server, watch):
    watcher = watch(GceUpcomingMaintenanceWatcher)
    server.gce.appoint(in_s=100)
    notice = notice_of(watcher)
    assert (notice.source, notice.reason) == (
        "gce-upcoming-maintenance",
        "SCHEDULED maintenance of the VM is PENDING",
    )
    assert 70 < notice.remaining_s() <= 100


def test_an_appointment_that_is_far_is_no_notice_yet_and_becomes_one(server, watch):
    watcher = watch(GceUpcomingMaintenanceWatcher, lead_s=600.0)
    server.gce.appoint(in_s=602.5)
    server.wait_until_asked("upcoming", times=3)
    assert not has_notice(watcher)
    assert 590 < notice_of(watcher).remaining_s() <= 601.5


def test_a_client_waits_no_longer_than_until_the_appointment(server, watch):
    server.gce.appoint(in_s=150)
    watch(GceUpcomingMaintenanceWatcher)
    assert 20 <= int(server.requests("upcoming")[-1].query["timeout_sec"]) <= 30


def test_an_appointment_is_told_once_and_another_one_again(server, watch):
    watcher = watch(GceUpcomingMaintenanceWatcher)
    server.gce.appoint(in_s=60)
    notice_of(watcher)
    server.gce.put("upcoming-maintenance", "NONE")
    server.wait_until_asked("upcoming", times=4)
    server.gce.appoint(in_s=90)
    assert notice_of(watcher).remaining_s() > 60


def test_an_appointment_for_which_an_earlier_program_has_left_is_told_later(server, watch):
    now = [1796032800.0]
    server.gce._clock = lambda: now[0]
    server.gce.appoint(in_s=100)
    watcher = watch(GceUpcomingMaintenanceWatcher, clock=lambda: now[0], hang_s=1.0)
    assert not has_notice(watcher)
    now[0] += 75.0
    assert 20 < notice_of(watcher).remaining_s() <= 25


def test_a_maintenance_that_begins_at_once_is_a_notice(server, watch):
    watcher = watch(GceUpcomingMaintenanceWatcher)
    server.gce.appoint(in_s=0, status="ONGOING", kind="UNSCHEDULED")
    notice = notice_of(watcher)
    assert (notice.reason, notice.deadline) == ("UNSCHEDULED maintenance of the VM is ONGOING", None)


@pytest.mark.parametrize(("in_s", "status"), [(-60.0, "ONGOING"), (600.0, "ONGOING"), (-60.0, "PENDING")])
def test_a_program_started_in_a_maintenance_stays(server, watch, caplog, in_s, status):
    server.gce.appoint(in_s=in_s, status=status)
    watcher = watch(GceUpcomingMaintenanceWatcher)
    server.wait_until_asked("upcoming", times=2)
    assert not has_notice(watcher)
    assert len([words for words in warnings_of(caplog) if "is under way already" in words]) == 1


def test_a_maintenance_that_is_complete_is_no_notice_and_its_change_is_waited_for(server, watch):
    watcher = watch(GceUpcomingMaintenanceWatcher)
    server.gce.appoint(in_s=-60, status="COMPLETE")
    server.wait_until_asked("upcoming", times=3)
    assert not has_notice(watcher)
    assert server.requests("upcoming")[-1].query["timeout_sec"] == "60"


class WithoutThread(GceUpcomingMaintenanceWatcher):
    def _start(self):
        pass


def test_a_machine_type_without_appointments_is_asked_seldom_and_nothing_is_said(server, caplog):
    server.gce.put("upcoming-maintenance", None)
    with WithoutThread(environ=server.environ("gce")) as watcher:
        assert [watcher._look(), watcher._look()] == [60.0, 60.0]
        assert not has_notice(watcher)
    assert ["wait_for_change" in request.query for request in server.requests()] == [False, False]
    assert warnings_of(caplog) == []


def test_an_appointment_that_is_made_again_is_told_again(server):
    now = [1796032800.0]
    server.gce._clock = lambda: now[0]
    with WithoutThread(environ=server.environ("gce"), clock=lambda: now[0]) as watcher:
        watcher._look()
        watcher._has_looked = True
        for _ in range(2):
            server.gce.appoint(in_s=60)
            watcher._look()
            assert notice_of(watcher).source == "gce-upcoming-maintenance"
            server.gce.put("upcoming-maintenance", "NONE")
            watcher._look()


def test_a_notice_that_has_become_due_since_the_last_answer_is_not_waited_for(server):
    now = [1796032800.0]
    server.gce._clock = lambda: now[0]
    server.gce.appoint(in_s=121)
    with WithoutThread(environ=server.environ("gce"), clock=lambda: now[0]) as watcher:
        watcher._look()
        watcher._has_looked = True
        now[0] += 1.5
        assert watcher._longest_hang_s() == 0
        watcher._look()
        assert notice_of(watcher).source == "gce-upcoming-maintenance"
        assert watcher._longest_hang_s() == 60.0


@pytest.mark.parametrize("kind", KINDS)
def test_a_wait_in_which_nothing_changes_is_no_failure(server, watch, caplog, kind):
    caplog.set_level("DEBUG")
    watch(kind, hang_s=1.0, timeout_s=0.5)
    server.wait_until_asked(kind._key, times=3)
    assert [record.getMessage() for record in caplog.records if record.name == "tf_preempt"] == []


SNAKE = {"maintenance_status": "PENDING", "type": "SCHEDULED", "window_start_time": "2026-11-30T10:00:00Z"}
CAMEL = {
    "maintenanceStatus": "PENDING",
    "maintenanceType": "SCHEDULED",
    "windowStartTime": "2026-11-30T10:00:00Z",
}
PARSED = Maintenance(starts=1796032800.0, status="PENDING", kind="SCHEDULED")


@pytest.mark.parametrize(
    ("text", "maintenance"),
    [
        (json.dumps(SNAKE), PARSED),
        (json.dumps(CAMEL), PARSED),
        (json.dumps({"Upcoming maintenance": SNAKE}), PARSED),
        (json.dumps({"upcomingMaintenance": CAMEL}), PARSED),
        (json.dumps({**SNAKE, "window_start_time": "2026-11-30T11:00:00.123456789+01:00"}), PARSED),
        (
            json.dumps({"maintenance_status": "ongoing"}),
            Maintenance(starts=None, status="ONGOING", kind="unknown"),
        ),
        ("{ }", None),
        ("", None),
        ("NONE\n", None),
        ('"NONE"', None),
        ('{ "error": "no notifications have been received yet, try again later" }', None),
        ('{"upcomingMaintenance": {}}', None),
    ],
)
def test_all_forms_in_which_an_appointment_was_seen_are_read(text, maintenance):
    assert parse_maintenance(text) == maintenance


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<html>", "'<html>'; expected JSON"),
        ("[]", "expected a JSON object"),
        ('{"type": "SCHEDULED"}', "no maintenance_status"),
        (json.dumps({**SNAKE, "window_start_time": "soon"}), "window_start_time='soon'"),
        (json.dumps({**SNAKE, "window_start_time": 7}), "window_start_time=7"),
    ],
)
def test_what_is_no_appointment_is_refused(text, words):
    with pytest.raises(MetadataError, match=words):
        parse_maintenance(text)


@pytest.mark.parametrize("kind", KINDS)
def test_a_change_is_waited_for(server, watch, kind):
    watch(kind)
    first, second = server.requests(kind._key)[:2]
    assert "wait_for_change" not in first.query
    assert second.query["wait_for_change"] == "true"
    assert second.query["last_etag"]
    assert second.query["timeout_sec"] == "60"
    assert first.headers["metadata-flavor"] == second.headers["metadata-flavor"] == "Google"


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_answers_without_waiting_is_not_asked_without_a_pause(server, watch, kind, monkeypatch):
    monkeypatch.setattr(type(server.gce), "reply", _without_waiting(type(server.gce).reply))
    watcher = watch(kind, waits=False)
    server.wait_until_asked(kind._key, times=2)
    began, asked = time.monotonic(), server.asked(kind._key)
    server.wait_until_asked(kind._key, times=asked + 2)
    assert time.monotonic() - began > 0.9
    watcher.close()


def _without_waiting(reply):
    def at_once(self, request):
        query = {name: value for name, value in request.query.items() if name != "wait_for_change"}
        return reply(
            self, type(request)(method="GET", path=request.path, query=query, headers=request.headers)
        )

    return at_once


@pytest.mark.parametrize("kind", KINDS)
def test_an_address_that_is_none_is_refused_before_a_thread_runs(kind):
    with pytest.raises(ConfigError, match="GCE_METADATA_HOST='https://x'"):
        kind(environ={"GCE_METADATA_HOST": "https://x"})


def test_the_fixed_address_is_googles():
    with WithoutThread(environ={}) as watcher:
        assert (watcher._client.endpoint.host, watcher._client.endpoint.port) == ("169.254.169.254", 80)
