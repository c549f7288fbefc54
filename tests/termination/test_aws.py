"""What Amazon's metadata server says becomes one notice each; its tokens are asked for and renewed."""

from __future__ import annotations

import pytest

from tests.termination.metadata_cases import has_notice, notice_of, warnings_of
from tf_preempt.errors import ConfigError
from tf_preempt.termination.aws import AwsWatcher
from tf_preempt.testing import FakeMetadataServer

ACTION = "spot/instance-action"
SCHEDULED = "maintenance/scheduled"


@pytest.fixture
def server():
    with FakeMetadataServer() as server:
        yield server


@pytest.fixture
def watch(server):
    watchers = []

    def make(**options):
        fast = {"pause_s": 0.01, "maintenance_pause_s": 0.01, "first_retry_s": 0.01}
        watchers.append(AwsWatcher(environ=server.environ("aws"), **{**fast, **options}))
        return watchers[-1]

    yield make
    for watcher in watchers:
        watcher.close()


def look_again(server, key=ACTION, times=2):
    """Waits until what was there is seen for certain."""
    server.wait_until_asked(key, times=server.asked(key) + times)


@pytest.mark.parametrize("action", ["terminate", "stop", "hibernate"])
def test_an_interruption_is_a_notice_of_two_minutes(server, watch, action):
    watcher = watch()
    look_again(server)
    server.aws.interrupt(action, in_s=120)
    notice = notice_of(watcher)
    assert notice.source == "aws-spot"
    assert notice.reason.startswith(f"Spot interruption: {action} at 2")
    assert 90 < notice.remaining_s() <= 121


def test_an_interruption_from_before_is_told_half_a_minute_before_its_time(server, watch):
    now = [1796032800.0]
    server.aws._clock = lambda: now[0]
    server.aws.interrupt(in_s=100)
    watcher = watch(clock=lambda: now[0])
    look_again(server, times=3)
    assert not has_notice(watcher)
    now[0] += 75
    look_again(server)
    assert 20 < notice_of(watcher).remaining_s() <= 25


def test_an_interruption_that_is_over_is_no_notice(server, watch, caplog):
    server.aws.interrupt("stop", in_s=-3600)
    watcher = watch()
    look_again(server, times=3)
    assert not has_notice(watcher)
    assert ["under way already" in words for words in warnings_of(caplog)] == [True]


def test_an_interruption_is_told_once(server, watch):
    watcher = watch()
    look_again(server)
    server.aws.interrupt(in_s=60)
    notice_of(watcher)
    look_again(server, times=3)
    assert not has_notice(watcher)
    server.aws.interrupt("stop", in_s=90)
    assert "stop" in notice_of(watcher).reason


@pytest.mark.parametrize("from_before", [True, False])
@pytest.mark.parametrize("is_notice", [True, False])
def test_a_recommendation_is_a_notice_only_if_asked_for(server, watch, caplog, is_notice, from_before):
    if from_before:
        server.aws.recommend_rebalance()
    watcher = watch(rebalance_is_notice=is_notice)
    look_again(server, "rebalance")
    if not from_before:
        server.aws.recommend_rebalance()
    look_again(server, "rebalance", times=3)
    assert len(warnings_of(caplog)) == (0 if is_notice and not from_before else 1)
    if is_notice and not from_before:
        notice = notice_of(watcher)
        assert (notice.source, notice.deadline) == ("aws-rebalance", None)
    assert not has_notice(watcher)


def test_maintenance_gives_its_notice_shortly_before(server, watch):
    watcher = watch()
    look_again(server, SCHEDULED)
    server.aws.schedule("instance-retirement", in_s=100)
    notice = notice_of(watcher)
    assert notice.source == "aws-maintenance"
    assert notice.reason.startswith("scheduled maintenance: instance-retirement at ")
    assert 60 < notice.remaining_s() <= 101
    look_again(server, SCHEDULED, times=3)
    assert not has_notice(watcher)


@pytest.mark.parametrize(
    "event", [{"in_s": 600}, {"in_s": 60, "state": "completed"}, {"in_s": 60, "state": "canceled"}]
)
def test_maintenance_that_is_far_or_over_is_no_notice(server, watch, event):
    watcher = watch()
    look_again(server, SCHEDULED)
    server.aws.schedule(**event)
    look_again(server, SCHEDULED, times=3)
    assert not has_notice(watcher)
    server.aws.schedule(in_s=60)
    notice_of(watcher)


def test_a_program_started_in_maintenance_stays(server, watch, caplog):
    server.aws.schedule(in_s=-60)
    watcher = watch()
    look_again(server, SCHEDULED, times=3)
    assert not has_notice(watcher)
    assert ["under way already" in words for words in warnings_of(caplog)] == [True]


def test_maintenance_that_begins_at_once_is_a_notice(server, watch):
    watcher = watch()
    look_again(server, SCHEDULED)
    server.aws.schedule("system-reboot", in_s=-1)
    assert notice_of(watcher).remaining_s() == 0.0


def test_a_token_is_asked_for_once_and_again_when_it_is_not_taken(server, watch, caplog):
    watcher = watch()
    look_again(server, times=3)
    assert server.asked("api/token") == 1
    server.aws.expire_tokens()
    server.aws.interrupt()
    notice_of(watcher)
    assert server.asked("api/token") == 2
    assert warnings_of(caplog) == []


def test_a_token_is_renewed_before_it_ends(server, watch):
    now = [0.0]
    watch(monotonic=lambda: now[0])
    look_again(server)
    now[0] = 10799.0
    look_again(server)
    assert server.asked("api/token") == 1
    now[0] = 10801.0
    look_again(server)
    assert server.asked("api/token") == 2
    assert {request.method for request in server.requests("api/token")} == {"PUT"}


def test_maintenance_is_asked_for_less_often(server, watch):
    watch(maintenance_pause_s=3600)
    look_again(server, times=10)
    assert server.asked(SCHEDULED) == 1


def test_a_server_that_gives_no_token_is_said_with_the_cure(server, watch, caplog):
    server.misbehave("never", path="api/token")
    watch(timeout_s=0.1)
    server.wait_until_asked("api/token", times=3)
    (words,) = warnings_of(caplog)
    assert "HttpPutResponseHopLimit" in words


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spot/instance-action", {"time": "2026-11-30T10:00:00Z"}),
        ("spot/instance-action", {"action": "stop", "time": "soon"}),
        ("spot/instance-action", ["stop"]),
        ("events/recommendations/rebalance", {"noticeTime": 7}),
        ("events/maintenance/scheduled", {"State": "active"}),
        ("events/maintenance/scheduled", ["active"]),
        ("events/maintenance/scheduled", [{"State": "active", "Code": "x", "NotBefore": "soon"}]),
    ],
)
def test_what_the_documentation_does_not_know_is_said_and_survived(server, watch, caplog, key, value):
    server.aws.put(key, value)
    watcher = watch()
    look_again(server, key, times=3)
    assert not has_notice(watcher)
    (words,) = warnings_of(caplog)
    assert "expected" in words
    server.aws.put(key, None)
    server.aws.interrupt()
    assert notice_of(watcher).source == "aws-spot"


def test_an_address_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="AWS_EC2_METADATA_SERVICE_ENDPOINT='https://x'"):
        AwsWatcher(environ={"AWS_EC2_METADATA_SERVICE_ENDPOINT": "https://x"})
