from __future__ import annotations

import itertools
import logging
import os
import select
import signal
import socket
import threading

import pytest

from tf_preempt.errors import ConfigError
from tf_preempt.termination import SignalWatcher
from tf_preempt.termination.signals import pass_on

_WAIT_MS = 10_000


def _send(number=signal.SIGTERM):
    os.kill(os.getpid(), number)


def _sources(watcher, count):
    """The next notices' sources, waited for; then nothing may be left."""
    poller = select.poll()
    poller.register(watcher.fileno(), select.POLLIN)
    sources = []
    for _ in range(count):
        assert poller.poll(_WAIT_MS), f"only {sources} arrived"
        sources.append(watcher.poll().source)
    assert watcher.poll() is None
    return sources


def _in_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()


def _wakeup_fd():
    fd = signal.set_wakeup_fd(-1)
    if fd != -1:
        signal.set_wakeup_fd(fd, warn_on_full_buffer=False)
    return fd


@pytest.fixture
def handled():
    """The signals that a user's own handler of SIGTERM has seen."""
    seen = []
    before = signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    yield seen
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def event_loop_fd():
    """The reading end of a wakeup descriptor that somebody, such as asyncio, has set before us."""
    reader, writer = socket.socketpair()
    with reader, writer:
        reader.setblocking(False)
        writer.setblocking(False)
        before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            yield reader
        finally:
            signal.set_wakeup_fd(before)


def _received(reader, count):
    reader.setblocking(True)
    reader.settimeout(10)
    return list(reader.recv(count, socket.MSG_WAITALL))


def test_signal_becomes_a_notice_without_a_deadline():
    with SignalWatcher() as watcher:
        _send()
        poller = select.poll()
        poller.register(watcher.fileno(), select.POLLIN)
        assert poller.poll(_WAIT_MS)
        notice = watcher.poll()
    assert notice.source == "SIGTERM"
    assert "SIGTERM" in notice.reason
    assert notice.deadline is None


def test_second_signal_is_a_second_notice():
    with SignalWatcher() as watcher:
        _send()
        assert _sources(watcher, 1) == ["SIGTERM"]
        _send()
        assert _sources(watcher, 1) == ["SIGTERM"]


def test_only_the_signals_asked_for_are_notices(handled):
    with SignalWatcher(("SIGUSR1", "SIGUSR2")) as watcher:
        _send(signal.SIGTERM)
        _send(signal.SIGUSR2)
        assert _sources(watcher, 1) == ["SIGUSR2"]
    assert handled == [signal.SIGTERM]


def test_earlier_handler_is_called_and_comes_back(handled):
    users = signal.getsignal(signal.SIGTERM)
    with SignalWatcher() as watcher:
        _send()
        assert _sources(watcher, 1) == ["SIGTERM"]
        assert handled == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is users
    _send()
    assert handled == [signal.SIGTERM] * 2


def test_error_of_the_earlier_handler_reaches_the_main_thread():
    class _Leave(Exception):
        pass

    def leave(*_):
        raise _Leave

    before = signal.signal(signal.SIGTERM, leave)
    try:
        with SignalWatcher() as watcher:
            with pytest.raises(_Leave):
                _send()
            assert _sources(watcher, 1) == ["SIGTERM"]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_watched_sigint_is_a_notice_and_no_keyboard_interrupt():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with SignalWatcher(("SIGINT",)) as watcher:
            _send(signal.SIGINT)
            assert _sources(watcher, 1) == ["SIGINT"]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_sigint_that_is_passed_on_interrupts_and_stays_watched_until_the_next_watch():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with SignalWatcher(("SIGINT",)) as watcher:
            _in_thread(lambda: pass_on(signal.SIGINT))
            with pytest.raises(KeyboardInterrupt):
                _send(signal.SIGINT)
            assert _sources(watcher, 1) == ["SIGINT"]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        with SignalWatcher(("SIGINT",)) as watcher:
            _send(signal.SIGINT)
            assert _sources(watcher, 1) == ["SIGINT"]
    finally:
        signal.signal(signal.SIGINT, before)


def test_signal_that_is_passed_on_and_has_its_default_action_ends_the_process(run_script):
    result = run_script(
        "import os, signal\n"
        "from tf_preempt.termination import SignalWatcher\n"
        "from tf_preempt.termination.signals import pass_on\n"
        "watcher = SignalWatcher(('SIGUSR1',))\n"
        "os.kill(os.getpid(), signal.SIGUSR1)\n"
        "print('still here', flush=True)\n"
        "pass_on(signal.SIGUSR1)\n"
        "os.kill(os.getpid(), signal.SIGUSR1)\n"
        "print('and here')\n"
    )
    assert (result.rc, result.stdout) == (-signal.SIGUSR1, "still here\n")


def test_passing_on_what_nobody_watches_does_nothing():
    before = signal.getsignal(signal.SIGINT)
    pass_on(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_ignored_signal_is_ignored_again_after_close():
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        with SignalWatcher(("SIGUSR1",)) as watcher:
            _send(signal.SIGUSR1)
            assert _sources(watcher, 1) == ["SIGUSR1"]
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_handler_installed_after_ours_is_left_in_place():
    def later(*_):
        pass

    original = signal.getsignal(signal.SIGTERM)
    try:
        watcher = SignalWatcher()
        signal.signal(signal.SIGTERM, later)
        _send()
        assert _sources(watcher, 1) == ["SIGTERM"]
        watcher.close()
        assert signal.getsignal(signal.SIGTERM) is later
    finally:
        signal.signal(signal.SIGTERM, original)


@pytest.mark.parametrize("call", [lambda close: close(), _in_thread], ids=["main thread", "other thread"])
def test_later_handler_that_calls_ours_still_reaches_the_earlier_one(call, handled):
    users = signal.getsignal(signal.SIGTERM)
    watcher = SignalWatcher()
    ours = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda *args: ours(*args))
    _send()
    assert handled == [signal.SIGTERM]
    call(watcher.close)
    _send()
    assert handled == [signal.SIGTERM] * 2
    with SignalWatcher() as second:  # on top of a handler that calls our first one
        _send()
        assert _sources(second, 1) == ["SIGTERM"]
        assert handled == [signal.SIGTERM] * 3
    signal.signal(signal.SIGTERM, users)


def test_signal_reset_to_its_default_is_caught_again_by_the_next_watcher():
    original = signal.getsignal(signal.SIGUSR1)
    first = SignalWatcher(("SIGUSR1",))
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    with SignalWatcher(("SIGUSR1",)) as second:
        _send(signal.SIGUSR1)
        assert _sources(second, 1) == ["SIGUSR1"]
    first.close()
    assert signal.getsignal(signal.SIGUSR1) == original


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_nested_watchers_close_in_any_order(order, handled, event_loop_fd):
    users, loops = signal.getsignal(signal.SIGTERM), _wakeup_fd()
    usr1 = signal.getsignal(signal.SIGUSR1)
    watchers = [SignalWatcher(), SignalWatcher(("SIGTERM", "SIGUSR1")), SignalWatcher()]
    opened = set(watchers)
    for count, index in enumerate(order, start=1):
        _send()
        for watcher in opened:
            assert _sources(watcher, 1) == ["SIGTERM"]
        assert handled == [signal.SIGTERM] * count
        watchers[index].close()
        opened.remove(watchers[index])
        assert (signal.getsignal(signal.SIGUSR1) == usr1) is (watchers[1] not in opened)
    assert signal.getsignal(signal.SIGTERM) is users
    assert _wakeup_fd() == loops
    assert _received(event_loop_fd, 3) == [signal.SIGTERM] * 3


def test_earlier_wakeup_descriptor_gets_every_byte_and_comes_back(event_loop_fd):
    loops = _wakeup_fd()
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        with SignalWatcher() as watcher:
            _send(signal.SIGUSR1)
            _send(signal.SIGTERM)
            assert _received(event_loop_fd, 2) == [signal.SIGUSR1, signal.SIGTERM]
            assert _sources(watcher, 1) == ["SIGTERM"]
        assert _wakeup_fd() == loops
        _send(signal.SIGUSR1)
        assert _received(event_loop_fd, 1) == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_bytes_are_passed_on_although_the_watcher_is_never_polled(event_loop_fd):
    with SignalWatcher():
        _send()
        assert _received(event_loop_fd, 1) == [signal.SIGTERM]


def test_earlier_descriptor_that_was_closed_meanwhile_gets_nothing_under_its_old_number(tmp_path):
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer)
    try:
        with SignalWatcher() as watcher, open(tmp_path / "victim", "wb") as victim:
            os.dup2(victim.fileno(), writer)  # closes it, and lets the next open have its number
            _send()
            assert _sources(watcher, 1) == ["SIGTERM"]
            watcher.close()
            assert _wakeup_fd() == -1
            os.close(writer)
        assert (tmp_path / "victim").read_bytes() == b""
    finally:
        signal.set_wakeup_fd(before)
        os.close(reader)


@pytest.mark.parametrize("cleared", [True, False], ids=["cleared", "taken"])
def test_notice_is_late_but_not_lost_when_the_wakeup_descriptor_was_taken_away(cleared, handled):
    reader, writer = socket.socketpair()
    with reader, writer, SignalWatcher() as watcher:
        writer.setblocking(False)
        ours = signal.set_wakeup_fd(-1 if cleared else writer.fileno())
        _send()
        assert _sources(watcher, 1) == ["SIGTERM"]
        assert handled == [signal.SIGTERM]
        # Cleared: it is ours again.  Taken: it stays theirs, also after the close.
        assert _wakeup_fd() == (ours if cleared else writer.fileno())
        watcher.close()
        assert _wakeup_fd() == (-1 if cleared else writer.fileno())
        signal.set_wakeup_fd(-1)


def test_close_twice_and_poll_after_close():
    watcher = SignalWatcher()
    watcher.close()
    watcher.close()
    assert watcher.poll() is None
    assert watcher.fileno() is None


def test_close_in_another_thread_gives_everything_back_with_the_next_signal(handled, event_loop_fd):
    users, loops = signal.getsignal(signal.SIGTERM), _wakeup_fd()
    watcher = SignalWatcher()
    _in_thread(watcher.close)
    # Python does not let that thread touch handlers and descriptor, but both already act as before.
    _send()
    assert handled == [signal.SIGTERM]
    assert set(_received(event_loop_fd, 1)) == {signal.SIGTERM}
    assert signal.getsignal(signal.SIGTERM) is users
    assert watcher.poll() is None
    SignalWatcher().close()
    assert _wakeup_fd() == loops


def test_watcher_after_a_close_in_another_thread(handled, event_loop_fd):
    users, loops = signal.getsignal(signal.SIGTERM), _wakeup_fd()
    _in_thread(SignalWatcher().close)
    with SignalWatcher() as watcher:
        _send()
        assert _sources(watcher, 1) == ["SIGTERM"]
        assert handled == [signal.SIGTERM]
        assert _received(event_loop_fd, 1) == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is users
    assert _wakeup_fd() == loops


def test_close_in_another_thread_restores_the_default_action(run_script):
    result = run_script(
        "import os, signal, threading\n"
        "from tf_preempt.termination import SignalWatcher\n"
        "thread = threading.Thread(target=SignalWatcher().close)\n"
        "thread.start()\n"
        "thread.join()\n"
        "print('alive', flush=True)\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "print('still alive')\n"
    )
    assert (result.rc, result.stdout) == (-signal.SIGTERM, "alive\n"), result.stderr


def test_no_descriptor_is_left_open():
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with SignalWatcher() as outer, SignalWatcher(("SIGUSR1",)):
            outer.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_descriptors_are_not_inherited_by_programs():
    with SignalWatcher() as watcher:
        assert not os.get_inheritable(watcher.fileno())
        assert not os.get_inheritable(_wakeup_fd())


def test_hundred_thousand_signals_nobody_polls_do_not_block():
    with SignalWatcher() as watcher:
        for _ in range(100_000):
            watcher.deliver(signal.SIGTERM)
        assert watcher.poll().source == "SIGTERM"


def test_outside_the_main_thread_it_is_refused_and_nothing_is_changed():
    handler, before = signal.getsignal(signal.SIGTERM), len(os.listdir("/proc/self/fd"))
    caught = []

    def run():
        try:
            SignalWatcher()
        except ConfigError as error:
            caught.append(error)

    _in_thread(run)
    assert "SIGTERM" in str(caught[0])
    assert "main thread" in caught[0].hint
    assert signal.getsignal(signal.SIGTERM) == handler
    assert _wakeup_fd() == -1
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("signals", [(), ("SIGKILL",), ("SIGNOPE",), "SIGTERM"], ids=repr)
def test_unusable_signals_are_refused(signals):
    with pytest.raises(ConfigError) as caught:
        SignalWatcher(signals)
    assert caught.value.hint


def test_handler_that_was_not_installed_from_python_is_said_to_be_replaced(caplog, monkeypatch):
    real = signal.getsignal
    monkeypatch.setattr(signal, "getsignal", lambda number: real(number) if callable(real(number)) else None)
    with caplog.at_level(logging.WARNING, logger="tf_preempt"), SignalWatcher(("SIGUSR2",)):
        pass
    assert "SIGUSR2 had a handler that was not installed from Python" in caplog.text
    assert real(signal.SIGUSR2) is signal.SIG_DFL


_FORK = """
import os
import queue
import signal
import sys
import threading

from tf_preempt.termination import SignalWatcher, TerminationMonitor


def child(ready_fd, with_handler):
    assert signal.set_wakeup_fd(-1) == -1, "the wakeup descriptor is inherited"
    if with_handler:
        assert callable(signal.getsignal(signal.SIGTERM)), "the user's handler is lost"
    else:
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert watcher.poll() is None, "the parent's signals can be taken away"
    assert watcher.fileno() is None
    watcher.close()
    monitor.close()
    with SignalWatcher(("SIGUSR2",)) as own:  # the child can watch on its own
        os.kill(os.getpid(), signal.SIGUSR2)
        while own.poll() is None:
            pass
    os.write(ready_fd, b"x")
    while True:
        signal.pause()


def fork(with_handler):
    ready_read, ready_write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            child(ready_write, with_handler)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
        finally:
            os._exit(99)
    os.close(ready_write)
    assert os.read(ready_read, 1) == b"x", "the child failed"
    os.kill(pid, signal.SIGTERM)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


with_handler, in_thread = sys.argv[1] == "handler", sys.argv[2] == "thread"
if with_handler:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
notices = queue.Queue()
watcher = SignalWatcher(("SIGTERM", "SIGUSR1"))
monitor = TerminationMonitor([watcher], notices.put).start()
statuses = []
if in_thread:
    thread = threading.Thread(target=lambda: statuses.append(fork(with_handler)))
    thread.start()
    thread.join()
else:
    statuses.append(fork(with_handler))
# The parent still listens, and the first thing that it hears is its own signal, not the child's.
os.kill(os.getpid(), signal.SIGUSR1)
print(statuses, notices.get(timeout=10).source, notices.qsize())
monitor.close()
"""


@pytest.mark.parametrize("thread", ["main", "thread"])
@pytest.mark.parametrize(("handler", "status"), [("none", -signal.SIGTERM), ("handler", 7)])
def test_forked_child_acts_on_its_signals_as_before_and_the_parent_does_not_hear_them(
    handler, status, thread, run_script
):
    result = run_script(_FORK, handler, thread)
    assert result.rc == 0, result.stderr
    assert result.stdout == f"[{status}] SIGUSR1 0\n", result.stderr


_FORK_WINDOW = """
import os
import queue
import signal

from tf_preempt.termination import SignalWatcher, TerminationMonitor

# Registered before the watcher's, so that the child gets its signal before the watcher's hook has run.
os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))
notices = queue.Queue()
with TerminationMonitor([SignalWatcher(("SIGTERM", "SIGUSR1"))], notices.put):
    pid = os.fork()
    if not pid:
        os._exit(99)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.kill(os.getpid(), signal.SIGUSR1)
    print(status, notices.get(timeout=10).source, notices.qsize())
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
"""


def test_child_that_is_signalled_while_it_is_being_forked_gets_its_signal_and_the_parent_does_not(run_script):
    result = run_script(_FORK_WINDOW)
    assert result.rc == 0, result.stderr
    assert result.stdout == f"{-signal.SIGTERM} SIGUSR1 0\n"


_MULTIPROCESSING = """
import multiprocessing
import os
import queue
import signal
import time

from tf_preempt.termination import SignalWatcher, TerminationMonitor


def work():
    signal.pause()


if __name__ == "__main__":
    notices = queue.Queue()
    with TerminationMonitor([SignalWatcher(("SIGTERM", "SIGUSR1"))], notices.put):
        workers = [multiprocessing.get_context("fork").Process(target=work) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join()
        os.kill(os.getpid(), signal.SIGUSR1)
        print([worker.exitcode for worker in workers], notices.get(timeout=10).source, notices.qsize())
"""


def test_terminated_data_loaders_are_no_notice(run_script):
    result = run_script(_MULTIPROCESSING)
    assert result.rc == 0, result.stderr
    assert result.stdout == f"{[-signal.SIGTERM] * 4} SIGUSR1 0\n"


_ASYNCIO = """
import asyncio
import os
import queue
import signal

from tf_preempt.termination import SignalWatcher, TerminationMonitor

notices = queue.Queue()


async def main():
    loop = asyncio.get_running_loop()
    heard = asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, heard.set)
    with TerminationMonitor([SignalWatcher()], notices.put):
        os.kill(os.getpid(), signal.SIGUSR1)
        await asyncio.wait_for(heard.wait(), 10)
        os.kill(os.getpid(), signal.SIGTERM)
        print((await asyncio.to_thread(notices.get, True, 10)).source)
    heard.clear()
    os.kill(os.getpid(), signal.SIGUSR1)
    await asyncio.wait_for(heard.wait(), 10)


asyncio.run(main())
"""


def test_event_loop_hears_its_signals_during_and_after_a_watcher(run_script):
    result = run_script(_ASYNCIO)
    assert (result.rc, result.stdout, result.stderr) == (0, "SIGTERM\n", "")
