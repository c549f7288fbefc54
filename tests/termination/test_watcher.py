from __future__ import annotations

import collections
import logging
import os
import queue
import threading

import pytest

from tf_preempt.errors import ConfigError
from tf_preempt.termination import TerminationMonitor, TerminationNotice, TerminationWatcher
from tf_preempt.termination.watcher import LentWatcher, _Turn

_WAIT_S = 10.0
_FAST_S = 0.001
_NEVER_S = 3600.0


class _Polled(TerminationWatcher):
    """Answers from a list, one per poll: notices, None, or errors to raise; then None for ever."""

    def __init__(self, *answers):
        self._answers = list(answers)
        self.exhausted = threading.Event()
        self.closed = 0

    def poll(self):
        if not self._answers:
            self.exhausted.set()
            return None
        answer = self._answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def close(self):
        self.closed += 1


class _Piped(TerminationWatcher):
    """Readable while there is something to poll; an ``!`` fails."""

    def __init__(self):
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        self.polls = 0

    def put(self, letters):
        os.write(self._write_fd, letters.encode())

    def poll(self):
        self.polls += 1
        try:
            letter = os.read(self._read_fd, 1).decode()
        except BlockingIOError:
            return None
        if letter == "!":
            raise OSError("broken")
        return _notice(letter) if letter else None

    def fileno(self):
        return self._read_fd

    def hang_up(self):
        os.close(self._write_fd)
        self._write_fd = None

    def close(self):
        for fd in (self._read_fd, self._write_fd):
            if fd is not None:
                os.close(fd)


def _notice(source="test"):
    return TerminationNotice(source=source, reason="because", deadline=None)


def _sources(notices, count):
    return [notices.get(timeout=_WAIT_S).source for _ in range(count)]


def _warnings(caplog):
    return [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_polled_notices_arrive_in_order():
    notices = queue.Queue()
    watcher = _Polled(None, _notice("a"), None, _notice("b"))
    with TerminationMonitor([watcher], notices.put, poll_interval_s=_FAST_S):
        assert _sources(notices, 2) == ["a", "b"]


def test_first_poll_does_not_wait_for_the_interval():
    notices = queue.Queue()
    with TerminationMonitor([_Polled(_notice("a"))], notices.put, poll_interval_s=_NEVER_S):
        assert _sources(notices, 1) == ["a"]


def test_descriptor_is_reacted_to_without_waiting_for_the_interval():
    notices = queue.Queue()
    piped, polled = _Piped(), _Polled()
    with TerminationMonitor([piped, polled], notices.put, poll_interval_s=_NEVER_S):
        assert polled.exhausted.wait(_WAIT_S)
        piped.put("a")
        assert _sources(notices, 1) == ["a"]


def test_every_notice_in_a_descriptor_is_passed_on():
    notices = queue.Queue()
    piped = _Piped()
    piped.put("abc")
    with TerminationMonitor([piped], notices.put, poll_interval_s=_NEVER_S):
        assert _sources(notices, 3) == ["a", "b", "c"]
        piped.put("d")
        assert _sources(notices, 1) == ["d"]


def test_descriptor_that_is_not_readable_is_not_polled():
    notices = queue.Queue()
    piped, polled = _Piped(), _Polled(*[None] * 20)
    with TerminationMonitor([piped, polled], notices.put, poll_interval_s=_FAST_S):
        assert polled.exhausted.wait(_WAIT_S)
    assert piped.polls == 0


def test_news_from_a_descriptor_do_not_make_others_be_polled_early():
    notices = queue.Queue()
    piped, polled = _Piped(), _Polled(*[None] * 5)
    with TerminationMonitor([polled, piped], notices.put, poll_interval_s=_NEVER_S):
        for letter in "abcd":
            piped.put(letter)
            assert _sources(notices, 1) == [letter]
    assert not polled.exhausted.is_set()
    assert len(polled._answers) == 4


def test_wake_up_by_the_close_of_a_forked_copy_is_used_up():
    readings = queue.Queue()

    def clock():
        readings.put(None)
        return 0.0

    with TerminationMonitor([_Piped()], print, clock=clock) as monitor:
        os.write(monitor._wake_fd, b"\0")  # what close() does in a child, which shares the pipe
        with pytest.raises(queue.Empty):
            collections.deque((readings.get(timeout=0.2) for _ in range(100)), maxlen=0)


def test_watcher_that_raises_goes_on_and_is_logged_once(caplog):
    notices = queue.Queue()
    watcher = _Polled(OSError("first"), ValueError("second"), _notice("a"))
    with (
        caplog.at_level(logging.INFO, logger="tf_preempt"),
        TerminationMonitor([watcher], notices.put, poll_interval_s=_FAST_S),
    ):
        assert _sources(notices, 1) == ["a"]
    (warning,) = _warnings(caplog)
    assert "_Polled failed" in warning.getMessage()
    assert "first" in str(warning.exc_info[1])
    assert "_Polled works again after 2 failures." in caplog.messages


def test_second_outage_is_logged_again(caplog):
    watcher = _Polled(OSError("first"), None, OSError("second"), None)
    with TerminationMonitor([watcher], print, poll_interval_s=_FAST_S):
        assert watcher.exhausted.wait(_WAIT_S)
    assert [str(record.exc_info[1]) for record in _warnings(caplog)] == ["first", "second"]


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), GeneratorExit()], ids=repr)
def test_watcher_cannot_end_the_thread(error, caplog):
    notices = queue.Queue()
    with TerminationMonitor([_Polled(error, _notice("a"))], notices.put, poll_interval_s=_FAST_S):
        assert _sources(notices, 1) == ["a"]
    assert len(_warnings(caplog)) == 1


def test_failing_watcher_does_not_delay_another_one(caplog):
    notices = queue.Queue()
    piped = _Piped()
    piped.put("!a")  # its backoff of two hours, cut to the longest allowed, keeps "a" from us
    other = _Piped()
    with TerminationMonitor([piped, other], notices.put, poll_interval_s=_NEVER_S):
        other.put("b")
        assert _sources(notices, 1) == ["b"]
        other.put("c")
        assert _sources(notices, 1) == ["c"]
    assert piped.polls == 1


def test_descriptor_that_failed_is_polled_again_after_its_backoff(caplog):
    notices = queue.Queue()
    piped = _Piped()
    piped.put("!!a")
    with TerminationMonitor([piped], notices.put, poll_interval_s=_FAST_S):
        assert _sources(notices, 1) == ["a"]


def test_descriptor_whose_writer_is_gone_is_a_failure_and_not_a_busy_loop(caplog):
    piped = _Piped()
    piped.hang_up()
    polled = _Polled(*[None] * 50)
    with TerminationMonitor([piped, polled], print, poll_interval_s=_FAST_S):
        assert polled.exhausted.wait(_WAIT_S)
    assert piped.polls <= 8  # 2 + 4 + 8 + ... milliseconds
    assert "the file descriptor of _Piped is closed" in str(_warnings(caplog)[0].exc_info[1])


@pytest.mark.parametrize("fd", [-1, None], ids=["negative", "raises"])
def test_watcher_without_a_usable_descriptor_fails_alone(fd, caplog):
    def fileno():
        if fd is None:
            raise OSError("no descriptor")
        return fd

    notices = queue.Queue()
    watcher, other = _Polled(), _Polled(None, None, _notice("b"))
    watcher.fileno = fileno
    with TerminationMonitor([watcher, other], notices.put, poll_interval_s=_FAST_S):
        assert _sources(notices, 1) == ["b"]
    assert len(_warnings(caplog)) == 1


def test_error_in_on_notice_is_logged_and_survived(caplog):
    notices = queue.Queue()

    def on_notice(notice):
        notices.put(notice)
        if notice.source == "a":
            raise SystemExit(42)

    with TerminationMonitor([_Polled(_notice("a"), _notice("b"))], on_notice, poll_interval_s=_FAST_S):
        assert _sources(notices, 2) == ["a", "b"]
    (warning,) = _warnings(caplog)
    assert "reaction to the notice" in warning.getMessage()
    assert isinstance(warning.exc_info[1], SystemExit)


def test_on_notice_runs_in_the_named_daemon_thread():
    threads = queue.Queue()
    with TerminationMonitor([_Polled(_notice())], lambda _: threads.put(threading.current_thread())):
        thread = threads.get(timeout=_WAIT_S)
    assert thread.name == "tf_preempt-termination"
    assert thread.daemon
    assert not thread.is_alive()


def test_close_closes_every_watcher_once_and_may_be_repeated(caplog):
    watchers = [_Polled(), _Polled()]
    watchers[0].close = lambda: (_ for _ in ()).throw(OSError("cannot close"))
    monitor = TerminationMonitor(watchers, print).start()
    monitor.close()
    monitor.close()
    assert watchers[1].closed == 1
    (warning,) = _warnings(caplog)
    assert "_Polled could not be closed" in warning.getMessage()


def test_lent_watcher_is_listened_to_by_one_monitor_after_the_other_and_left_open():
    watcher = _Piped()
    for letter in "ab":
        notices = queue.Queue()
        with TerminationMonitor([LentWatcher(watcher)], notices.put, poll_interval_s=_NEVER_S):
            watcher.put(letter)
            assert _sources(notices, 1) == [letter]
    assert os.fstat(watcher.fileno())
    watcher.close()


def test_lent_watcher_that_fails_is_logged_by_its_own_name(caplog):
    watcher = _Polled(ValueError("broken"))
    with TerminationMonitor([LentWatcher(watcher)], lambda _: None, poll_interval_s=_FAST_S):
        assert watcher.exhausted.wait(_WAIT_S)
    assert _warnings(caplog)[0].getMessage().startswith("_Polled failed")
    assert watcher.closed == 0


def test_monitor_that_was_never_started_closes_its_watchers():
    watcher = _Polled()
    TerminationMonitor([watcher], print).close()
    assert watcher.closed == 1


def test_close_from_its_own_thread():
    closed = threading.Event()
    watcher = _Polled(_notice())

    def on_notice(_):
        monitor.close()
        closed.set()

    monitor = TerminationMonitor([watcher], on_notice)
    monitor.start()
    assert closed.wait(_WAIT_S)
    monitor.close()
    assert watcher.closed == 1


def test_close_from_several_threads_at_once():
    watcher = _Polled()
    monitor = TerminationMonitor([watcher], print).start()
    threads = [threading.Thread(target=monitor.close) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_WAIT_S)
    assert watcher.closed == 1


def test_no_descriptor_is_left_open():
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with TerminationMonitor([_Polled(), _Piped()], print, poll_interval_s=_FAST_S):
            pass
    assert len(os.listdir("/proc/self/fd")) == before


def test_start_twice_is_one_thread_and_start_after_close_is_refused():
    monitor = TerminationMonitor([_Polled()], print)
    before = threading.active_count()
    assert monitor.start() is monitor.start()
    assert threading.active_count() == before + 1
    monitor.close()
    with pytest.raises(RuntimeError, match="has been closed"):
        monitor.start()


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf")])
def test_interval_has_to_be_a_positive_number(value):
    with pytest.raises(ConfigError, match=f"poll_interval_s={value!r}"):
        TerminationMonitor([], print, poll_interval_s=value)


@pytest.mark.parametrize(
    ("interval_s", "pauses"),
    [
        (1.0, [2, 4, 8, 16, 32, 60, 60]),
        (0.5, [1, 2, 4, 8, 16, 32, 60]),
        (120.0, [120, 120]),
    ],
    ids=["one second", "half a second", "never sooner than the interval"],
)
def test_pauses_double_up_to_a_minute(interval_s, pauses):
    turn = _Turn(_Polled(), interval_s)
    now = 1000.0
    for pause in pauses:
        assert turn.failed(now) == pause
        assert turn.due == now + pause
        now = turn.due
    turn.succeeded(now)
    assert turn.due == now + interval_s
    assert turn.failed(now) == max(interval_s, 2 * interval_s if interval_s < 60 else 0)


def test_a_million_failures_do_not_overflow():
    turn = _Turn(_Polled(), 1.0, failures=1_000_000)
    assert turn.failed(0.0) == 60.0


def test_all_watchers_hear_of_the_save_also_after_the_end_and_if_one_of_them_fails(caplog):
    heard = []

    class Hears(_Polled):
        def __init__(self, name, error=None):
            super().__init__()
            self._name, self._error = name, error

        def on_saved(self):
            heard.append(self._name)
            if self._error is not None:
                raise self._error

    watchers = [Hears("first", OSError("no answer")), LentWatcher(Hears("lent")), _Polled(), Hears("last")]
    with TerminationMonitor(watchers, print) as monitor:
        assert not heard
    monitor.tell_saved()
    assert heard == ["first", "lent", "last"]
    (record,) = caplog.records
    assert record.getMessage() == "Hears failed after the save; the program leaves all the same."
