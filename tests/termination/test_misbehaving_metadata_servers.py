"""Whatever a metadata server does, the watch goes on, says it once, and sees the notice that comes later.

One table for all clouds: a real server on this machine misbehaves, and a real monitor listens.
"""

from __future__ import annotations

import dataclasses
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.termination.metadata_cases import PATIENCE_S, warnings_of
from tf_preempt.termination import TerminationMonitor, TerminationWatcher
from tf_preempt.termination.aws import AwsWatcher
from tf_preempt.termination.azure import AzureWatcher
from tf_preempt.termination.gce import (
    GceMaintenanceWatcher,
    GcePreemptionWatcher,
    GceUpcomingMaintenanceWatcher,
)
from tf_preempt.testing import FakeMetadataServer

FAST = {"first_retry_s": 0.01, "timeout_s": 0.3}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    cloud: str
    kind: Callable[..., TerminationWatcher]
    options: dict[str, Any]
    path: str
    happen: Callable[[FakeMetadataServer], None]
    source: str


CASES = {
    "gce-maintenance": Case(
        cloud="gce",
        kind=GceMaintenanceWatcher,
        options={"hang_s": 1.0, "has_gpu": lambda: False},
        path="maintenance-event",
        happen=lambda server: server.gce.maintain(),
        source="gce-maintenance",
    ),
    "gce-preempted": Case(
        cloud="gce",
        kind=GcePreemptionWatcher,
        options={"hang_s": 1.0},
        path="preempted",
        happen=lambda server: server.gce.preempt(),
        source="gce-preempted",
    ),
    "gce-upcoming": Case(
        cloud="gce",
        kind=GceUpcomingMaintenanceWatcher,
        options={"hang_s": 1.0, "without_key_s": 0.01},
        path="upcoming-maintenance",
        happen=lambda server: server.gce.appoint(in_s=60),
        source="gce-upcoming-maintenance",
    ),
    "aws": Case(
        cloud="aws",
        kind=AwsWatcher,
        options={"pause_s": 0.01},
        path="/latest/",
        happen=lambda server: server.aws.interrupt(),
        source="aws-spot",
    ),
    "azure": Case(
        cloud="azure",
        kind=AzureWatcher,
        options={"pause_s": 0.01, "first_timeout_s": 0.3},
        path="/metadata/",
        happen=lambda server: server.azure.schedule(),
        source="azure-scheduled-event",
    ),
}
FAULTS = (
    "slow", "never", "404", "429", "500", "503", "garbage", "nonsense", "cut", "redirect", "huge"
)  # fmt: skip
# Only Google's server sends a header by which it is known.
TABLE = [(name, how) for name in CASES for how in FAULTS]
TABLE += [(name, "stranger") for name in CASES if name.startswith("gce")]
# What 404 means for a machine type without appointments, and for an instance (with a token) without notices.
NO_FAULT = {("gce-upcoming", "404")}
NO_FAULT_LATER = {*NO_FAULT, ("aws", "404")}


@pytest.fixture
def server():
    with FakeMetadataServer() as server:
        yield server


class Watch:
    """A monitor with one watcher, whose notices can be waited for."""

    def __init__(self, case: Case, server: FakeMetadataServer) -> None:
        self.notices: queue.Queue[Any] = queue.Queue()
        environ = server.environ(case.cloud)
        self.watcher = case.kind(environ=environ, **{**FAST, **case.options})
        self.monitor = TerminationMonitor([self.watcher], self.notices.put)

    def __enter__(self):
        self.monitor.start()
        return self

    def __exit__(self, *_):
        began = time.monotonic()
        self.monitor.close()
        assert time.monotonic() - began < 1.0
        assert not self.watcher._thread.is_alive()

    def source(self):
        return self.notices.get(timeout=PATIENCE_S).source


@pytest.mark.parametrize(("name", "how"), TABLE)
def test_a_notice_after_a_fault_from_the_beginning_is_seen(server, caplog, name, how):
    case = CASES[name]
    server.misbehave(how)
    with Watch(case, server) as watch:
        server.wait_until_asked(case.path, times=3)
        assert watch.notices.empty()
        server.behave()
        case.happen(server)
        assert watch.source() == case.source
    assert len(warnings_of(caplog)) == (0 if (name, how) in NO_FAULT else 1)
    assert server.asked("elsewhere") == 0


@pytest.mark.parametrize(("name", "how"), TABLE)
def test_a_notice_after_a_fault_in_the_middle_is_seen(server, caplog, name, how):
    case = CASES[name]
    with Watch(case, server) as watch:
        server.wait_until_asked(case.path, times=4 if case.cloud != "gce" else 2)
        server.misbehave(how)
        server.wait_until_asked(case.path, times=server.asked(case.path) + 3)
        case.happen(server)
        server.behave()
        assert watch.source() == case.source
    assert len(warnings_of(caplog)) == (0 if (name, how) in NO_FAULT_LATER else 1)


@pytest.mark.parametrize("how", [None, "never", "slow"])
@pytest.mark.parametrize("name", CASES)
def test_closing_does_not_wait_for_an_answer(server, name, how):
    case = CASES[name]
    if how is not None:
        server.misbehave(how)
    slow = {"timeout_s": 60.0, **({"first_timeout_s": 60.0} if name == "azure" else {})}
    options = {**FAST, **case.options, **slow, **({"hang_s": 60.0} if case.cloud == "gce" else {})}
    before = sockets()
    watcher = case.kind(environ=server.environ(case.cloud), **options)
    if how is None and case.cloud == "gce":
        server.wait_until_waiting(case.path)
    else:
        server.wait_until_asked(case.path)
    began = time.monotonic()
    watcher.close()
    assert time.monotonic() - began < 0.9
    assert not watcher._thread.is_alive()
    server.close()
    assert sockets() <= before


@pytest.mark.parametrize("name", CASES)
def test_a_server_that_is_not_there_is_said_once(caplog, free_port, name):
    case = CASES[name]
    failed = threading.Event()
    options = {**FAST, **case.options, "first_retry_s": 0.001}
    watcher = case.kind(environ=nowhere(free_port), **options)
    report = watcher._report_failure

    def count(error):
        pause_s = report(error)
        if watcher._failures >= 4:
            failed.set()
        return pause_s

    watcher._report_failure = count
    with watcher:
        assert failed.wait(PATIENCE_S)
    (words,) = warnings_of(caplog)
    assert f"127.0.0.1:{free_port}" in words
    assert "training goes on" in words


def nowhere(port):
    return {
        "GCE_METADATA_HOST": f"127.0.0.1:{port}",
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://127.0.0.1:{port}",
        "TF_PREEMPT_AZURE_METADATA_HOST": f"127.0.0.1:{port}",
    }


def sockets():
    links = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            links.add(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:
            pass  # that of the listing itself
    return {link for link in links if link.startswith("socket:")}
