"""A watcher with a thread of its own survives whatever a look does, says it once, and ends when closed."""

from __future__ import annotations

import threading

import pytest

from tests.termination.metadata_cases import PATIENCE_S, notice_of, warnings_of
from tf_preempt.termination import TerminationMonitor, TerminationNotice
from tf_preempt.termination.background import BackgroundWatcher
from tf_preempt.termination.metadata_client import MetadataError, MetadataStatusError

NOTICE = TerminationNotice(source="test", reason="because")


class Looking(BackgroundWatcher):
    """Does what the next look is to do: raise an error, give notices, or wait to be cancelled."""

    def __init__(self, *looks, **options):
        super().__init__(**options)
        self.looks = list(looks)
        self.pauses = []
        self.cancelled = threading.Event()
        self.done = threading.Event()
        wait = self._closing.wait
        self._closing.wait = lambda pause_s: (self.pauses.append(pause_s), wait(0))
        self._start()

    def _look(self):
        if not self.looks:
            self.done.set()
            self.cancelled.wait(PATIENCE_S)
            return 0.0
        look = self.looks.pop(0)
        if isinstance(look, BaseException):
            raise look
        for _ in range(look):
            self._give(NOTICE)
        return 0.5

    def _cancel(self):
        self.cancelled.set()


def pauses_after(*looks, **options):
    """How long the watcher waited after each of these looks."""
    with Looking(*looks, **options) as watcher:
        assert watcher.done.wait(PATIENCE_S)
        return list(watcher.pauses)


def test_failures_are_repeated_less_and_less_often():
    assert pauses_after(*[OSError("x")] * 8, 0) == [1, 2, 4, 8, 16, 30, 30, 30, 0.5]


@pytest.mark.parametrize("status", [503, 429])
def test_a_server_that_is_busy_is_asked_again_soon(status):
    assert pauses_after(*[MetadataStatusError("x", status=status)] * 5) == [1, 2, 4, 5, 5]


def test_after_a_success_the_pauses_begin_anew():
    assert pauses_after(OSError("x"), OSError("x"), 0, OSError("x"), first_retry_s=3.0) == [3, 6, 0.5, 3]


@pytest.mark.parametrize("error", [MetadataError("x"), ValueError("x"), SystemExit(1), KeyboardInterrupt()])
def test_nothing_ends_the_thread(error):
    with Looking(error, 1) as watcher:
        assert notice_of(watcher) is NOTICE


def test_a_failure_is_said_once_and_so_is_its_end(caplog):
    caplog.set_level("DEBUG")
    pauses_after(OSError("first"), OSError("second"), 0, 0)
    (warning,) = warnings_of(caplog)
    assert warning.startswith("Looking failed; training goes on")
    assert warning.endswith("  first")
    assert [words for words in caplog.messages if "works again" in words] == [
        "Looking works again after 2 failures."
    ]


def test_notices_are_polled_in_order_and_each_once():
    with Looking(2, 1) as watcher:
        assert watcher.done.wait(PATIENCE_S)
        assert [watcher.poll() for _ in range(4)] == [NOTICE, NOTICE, NOTICE, None]


def test_a_monitor_passes_them_on():
    notices, three = [], threading.Event()

    def on_notice(notice):
        notices.append(notice)
        if len(notices) == 3:
            three.set()

    with TerminationMonitor([Looking(1, OSError("x"), 2)], on_notice):
        assert three.wait(PATIENCE_S)


def test_closing_ends_a_look_that_waits_and_closes_the_descriptors():
    watcher = Looking(1)
    assert watcher.done.wait(PATIENCE_S)
    watcher.close()
    watcher.close()
    assert not watcher._thread.is_alive()
    assert (watcher.fileno(), watcher.poll()) == (None, None)
    watcher._give(NOTICE)
    assert watcher.poll() is None


def test_an_error_that_closing_causes_is_not_said(caplog):
    class Failing(Looking):
        def _look(self):
            super()._look()
            raise OSError("cancelled")

    watcher = Failing()
    assert watcher.done.wait(PATIENCE_S)
    watcher.close()
    assert warnings_of(caplog) == []
