"""What Microsoft's metadata server says of this VM becomes one notice each, and can be acknowledged."""

from __future__ import annotations

import pytest

from tests.termination.metadata_cases import has_notice, notice_of, warnings_of
from tf_preempt.errors import ConfigError
from tf_preempt.termination import azure
from tf_preempt.termination.azure import AzureWatcher
from tf_preempt.termination.metadata_client import MetadataError
from tf_preempt.testing import FakeMetadataServer

EVENTS = "scheduledevents"


@pytest.fixture
def server():
    with FakeMetadataServer() as server:
        yield server


@pytest.fixture
def watch(server):
    watchers = []

    def make(**options):
        fast = {"pause_s": 0.01, "first_retry_s": 0.01}
        watchers.append(AzureWatcher(environ=server.environ("azure"), **{**fast, **options}))
        return watchers[-1]

    yield make
    for watcher in watchers:
        watcher.close()


def look_again(server, times=2):
    server.wait_until_asked(EVENTS, times=server.asked(EVENTS) + times)


@pytest.mark.parametrize("kind", ["Preempt", "Terminate", "Reboot", "Redeploy"])
def test_an_event_that_ends_the_program_is_a_notice(server, watch, kind):
    watcher = watch()
    look_again(server)
    server.azure.schedule(kind, in_s=30)
    notice = notice_of(watcher)
    assert (notice.source, notice.reason) == ("azure-scheduled-event", f"{kind} of the VM is Scheduled")
    assert 10 < notice.remaining_s() <= 31
    look_again(server, times=3)
    assert not has_notice(watcher)


@pytest.mark.parametrize("kind", ["Freeze", "Dance"])
def test_an_event_that_does_not_is_none(server, watch, caplog, kind):
    caplog.set_level("INFO")
    server.azure.schedule(kind)
    watcher = watch()
    look_again(server, times=3)
    assert not has_notice(watcher)
    assert sum("stand still" in message for message in caplog.messages) == 1


def test_an_event_of_another_vm_is_none(server, watch):
    server.azure.schedule(resources=("worker-1", "worker-00"))
    watcher = watch()
    look_again(server, times=3)
    assert not has_notice(watcher)
    server.azure.schedule(resources=("worker-1", "WORKER-0"), event_id="event-2")
    notice_of(watcher)


def test_the_name_of_the_vm_is_asked_for_once(server, watch):
    watch()
    look_again(server, times=3)
    assert server.asked("compute/name") == 1


def test_an_event_that_is_far_gives_its_notice_later(server, watch):
    now = [1796032800.0]
    server.azure._clock = lambda: now[0]
    server.azure.schedule("Reboot", in_s=900)
    watcher = watch(clock=lambda: now[0])
    look_again(server, times=3)
    assert not has_notice(watcher)
    now[0] += 790
    assert 100 < notice_of(watcher).remaining_s() <= 110


def test_an_event_that_has_begun_meanwhile_is_a_notice_without_deadline(server, watch):
    server.azure.schedule("Reboot", in_s=900)
    watcher = watch()
    look_again(server)
    server.azure.begin()
    notice = notice_of(watcher)
    assert (notice.reason, notice.deadline) == ("Reboot of the VM is Started", None)


def test_a_program_started_in_an_event_stays(server, watch, caplog):
    server.azure.schedule("Reboot")
    server.azure.begin()
    watcher = watch()
    look_again(server, times=3)
    assert not has_notice(watcher)
    assert ["under way already" in words for words in warnings_of(caplog)] == [True]


def test_an_event_for_which_an_earlier_program_has_left_is_told_later(server, watch):
    now = [1796032800.0]
    server.azure._clock = lambda: now[0]
    server.azure.schedule("Preempt", in_s=90)
    watcher = watch(clock=lambda: now[0])
    look_again(server, times=3)
    assert not has_notice(watcher)
    now[0] += 65
    assert 20 < notice_of(watcher).remaining_s() <= 25


def test_an_event_that_is_announced_again_is_told_again(server, watch):
    watcher = watch()
    look_again(server)
    server.azure.schedule()
    notice_of(watcher)
    server.azure.clear()
    look_again(server)
    server.azure.schedule()
    notice_of(watcher)


def test_events_of_which_notices_were_given_are_acknowledged(server, watch):
    watcher = watch()
    look_again(server)
    server.azure.schedule("Freeze", event_id="freeze")
    server.azure.schedule("Reboot", in_s=900, event_id="far")
    server.azure.schedule("Preempt", event_id="near")
    notice_of(watcher)
    assert watcher.acknowledge() == ("near",)
    assert server.azure.acknowledged == ["near"]
    (request,) = (one for one in server.requests(EVENTS) if one.method == "POST")
    assert request.headers["metadata"] == "true"


@pytest.mark.parametrize(("acknowledges", "told"), [(False, []), (True, ["event-1"])])
def test_after_the_save_azure_is_told_only_if_that_is_wanted(server, watch, acknowledges, told):
    watcher = watch(acknowledges=acknowledges)
    look_again(server)
    server.azure.schedule()
    notice_of(watcher)
    assert server.azure.acknowledged == []
    watcher.on_saved()
    assert server.azure.acknowledged == told


def test_a_save_without_an_event_is_none_of_azures_business(server, watch):
    watcher = watch(acknowledges=True)
    look_again(server)
    watcher.on_saved()
    assert not [one for one in server.requests(EVENTS) if one.method == "POST"]


def test_an_acknowledgement_that_is_not_taken_after_a_save_is_said_and_survived(server, watch, caplog):
    watcher = watch(acknowledges=True)
    look_again(server)
    server.azure.schedule()
    notice_of(watcher)
    watcher.close()
    server.misbehave("500")
    watcher.on_saved()
    (words,) = warnings_of(caplog)
    assert words.startswith("Azure was not told that all is saved")


def test_where_nothing_was_announced_nothing_is_acknowledged(server, watch):
    watcher = watch()
    look_again(server)
    server.azure.schedule()
    notice_of(watcher)
    server.azure.clear()
    look_again(server)
    assert watcher.acknowledge() == ()
    assert server.azure.acknowledged == []


def test_an_acknowledgement_works_after_the_end_of_the_watch(server, watch):
    watcher = watch()
    look_again(server)
    server.azure.schedule()
    notice_of(watcher)
    watcher.close()
    assert watcher.acknowledge() == ("event-1",)


def test_an_acknowledgement_that_is_not_taken_is_an_error(server, watch):
    watcher = watch()
    look_again(server)
    server.azure.schedule()
    notice_of(watcher)
    server.misbehave("500")
    with pytest.raises(MetadataError, match="HTTP status 500"):
        watcher.acknowledge()


def test_the_first_list_may_take_its_time(server, watch, monkeypatch):
    timeouts = []

    class Client(azure.MetadataClient):
        def request(self, method, path, **options):
            timeouts.append((path, options.get("timeout_s")))
            return super().request(method, path, **options)

    monkeypatch.setattr(azure, "MetadataClient", Client)
    watch(timeout_s=7.0)
    look_again(server)
    assert timeouts[1:3] == [("/metadata/scheduledevents", 130.0), ("/metadata/scheduledevents", 7.0)]


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{}",
        '{"Events": 7}',
        '{"Events": [{"EventId": "1", "EventType": "Reboot"}]}',
        '{"Events": [{"EventId": 1, "EventType": "Reboot", "Resources": ["worker-0"]}]}',
        '{"Events": [{"EventId": "1", "EventType": null, "Resources": ["worker-0"]}]}',
    ],
)
def test_what_is_no_list_of_events_is_refused(text):
    with pytest.raises(MetadataError, match="expected a list of events"):
        azure._events_of(text, "worker-0")


def test_a_beginning_that_is_no_date_is_said_and_survived(server, watch, caplog):
    server.azure.schedule()
    server.azure._events["event-1"]["NotBefore"] = "soon"
    watcher = watch()
    look_again(server, times=3)
    assert ["NotBefore='soon'" in words for words in warnings_of(caplog)] == [True]
    server.azure.schedule()
    notice_of(watcher)


def test_an_event_that_tells_no_beginning_is_a_notice_at_once(server, watch):
    watcher = watch()
    look_again(server)
    with server._changed:
        server.azure.schedule()
        server.azure._events["event-1"]["NotBefore"] = ""
    assert notice_of(watcher).deadline is None


def test_an_address_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="TF_PREEMPT_AZURE_METADATA_HOST='https://x'"):
        AzureWatcher(environ={"TF_PREEMPT_AZURE_METADATA_HOST": "https://x"})
