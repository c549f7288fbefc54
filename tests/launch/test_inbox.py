import os
import signal
import threading

import pytest

from tf_preempt.launch.inbox import Cleared, Exited, Inbox, Signalled

CAUGHT = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2]


def in_thread(action):
    thread = threading.Thread(target=action)
    thread.start()
    thread.join(10)


@pytest.mark.parametrize("signum", CAUGHT)
def test_signal_becomes_a_message(signum):
    with Inbox() as inbox:
        os.kill(os.getpid(), signum)
        assert inbox.get(10) == Signalled(signum)


def test_signal_wakes_who_waits():
    with Inbox() as inbox:
        timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM))
        timer.start()
        assert inbox.get(10) == Signalled(signal.SIGTERM)
        timer.join(10)


def test_messages_come_in_their_order_from_any_thread():
    inbox = Inbox()
    inbox.put(Exited(0))
    in_thread(lambda: inbox.put(Cleared(0)))
    assert [inbox.get(), inbox.get()] == [Exited(0), Cleared(0)]


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, 0.01])
def test_nothing_comes_is_none(timeout_s):
    assert Inbox().get(timeout_s) is None


def test_earlier_handlers_are_put_back():
    before = [signal.getsignal(signum) for signum in CAUGHT]
    with Inbox():
        assert signal.SIG_DFL not in [signal.getsignal(signum) for signum in CAUGHT]
    assert [signal.getsignal(signum) for signum in CAUGHT] == before


def test_ignored_signal_stays_ignored():
    earlier = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Inbox() as inbox:
            os.kill(os.getpid(), signal.SIGHUP)
            assert inbox.get(0.05) is None
    finally:
        signal.signal(signal.SIGHUP, earlier)


def test_other_threads_change_no_handler():
    handlers = []

    def enter():
        with Inbox():
            handlers.append(signal.getsignal(signal.SIGTERM))

    in_thread(enter)
    assert handlers == [signal.getsignal(signal.SIGTERM)]
