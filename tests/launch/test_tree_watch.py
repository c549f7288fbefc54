import math
import signal
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_preempt.errors import ConfigError
from tf_preempt.launch import tree_watch
from tf_preempt.launch.inbox import Inbox, Signalled
from tf_preempt.launch.tree_watch import Escalation, TreeWatch


def test_nothing_is_due_before_the_countdown_begins():
    escalation = Escalation(10.0)
    assert escalation.remaining_s(1e9) is None
    assert escalation.due(1e9) is None


@pytest.mark.parametrize(
    ("stop_timeout_s", "kill_at"), [(60.0, 75.0), (2.0, 4.0), (0.0, 0.0)], ids=["long", "short", "at once"]
)
def test_sigterm_and_then_sigkill_are_due_once_each(stop_timeout_s, kill_at):
    escalation = Escalation(stop_timeout_s)
    escalation.begin(100.0)
    if stop_timeout_s:
        assert escalation.due(100.0 + stop_timeout_s - 0.01) is None
    assert escalation.due(100.0 + stop_timeout_s) is signal.SIGTERM
    if kill_at > stop_timeout_s:
        assert escalation.due(100.0 + kill_at - 0.01) is None
    assert escalation.due(100.0 + kill_at) is signal.SIGKILL
    assert escalation.due(1e9) is None
    assert escalation.remaining_s(1e9) is None


def test_second_reason_to_end_does_not_lengthen_the_time():
    escalation = Escalation(10.0)
    escalation.begin(100.0)
    escalation.begin(105.0)
    assert escalation.remaining_s(106.0) == 4.0


def test_hurry_makes_sigkill_due_at_once_also_before_the_countdown():
    escalation = Escalation(10.0)
    escalation.hurry(100.0)
    assert escalation.due(100.0) is signal.SIGKILL
    escalation.hurry(101.0)
    assert escalation.due(102.0) is None


@given(times=st.lists(st.floats(0, 1000), min_size=1).map(sorted), timeout=st.floats(0, 100))
def test_signals_come_in_order_and_once_whenever_it_is_asked(times, timeout):
    escalation = Escalation(timeout)
    escalation.begin(times[0])
    signals = [due for now in times if (due := escalation.due(now))]
    assert signals == [signal.SIGTERM, signal.SIGKILL][: len(signals)]


@pytest.mark.parametrize("wrong", [-1.0, math.inf, math.nan])
def test_wrong_time_out_is_refused(wrong):
    with pytest.raises(ConfigError, match="stop_timeout_s="):
        Escalation(wrong)


class FakeTree:
    """A process tree that ends when it gets a signal from `ends_on`."""

    def __init__(self, ends_on, returncode=0):
        self.ends_on = ends_on
        self.signals = []
        self.returncode = None
        self._code = returncode
        self._ended = threading.Event()

    def wait(self):
        assert self._ended.wait(30)
        self.returncode = self._code
        return self._code

    def members(self):
        return []

    def send_signal(self, signum):
        self.signals.append(signum)
        if signum in self.ends_on:
            self._ended.set()

    signal_all = send_signal

    def kill(self):
        self.send_signal(signal.SIGKILL)
        self._ended.set()

    def stop(self, timeout_s):
        pass


def test_signal_that_only_informs_is_passed_on_without_a_countdown():
    inbox, tree = Inbox(), FakeTree(ends_on={signal.SIGUSR1})
    inbox.put(Signalled(signal.SIGUSR1))
    watch = TreeWatch([tree], inbox, stop_timeout_s=0.0)
    assert watch.wait(30)
    assert (tree.signals, watch.ending_signal) == ([signal.SIGUSR1], None)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_that_ends_is_passed_on_to_all_and_remembered(signum):
    inbox, trees = Inbox(), [FakeTree(ends_on={signum}), FakeTree(ends_on={signum})]
    watch = TreeWatch(trees, inbox, stop_timeout_s=30.0)
    inbox.put(Signalled(signum))
    assert watch.wait(30)
    assert ([tree.signals for tree in trees], watch.ending_signal) == ([[signum]] * 2, signum)


def test_second_ctrl_c_kills():
    inbox, tree = Inbox(), FakeTree(ends_on=())
    watch = TreeWatch([tree], inbox, stop_timeout_s=3600.0)
    inbox.put(Signalled(signal.SIGINT))
    inbox.put(Signalled(signal.SIGINT))
    assert watch.wait(30)
    assert tree.signals == [signal.SIGINT, signal.SIGKILL]


def test_peers_of_a_dead_worker_are_reminded_and_then_killed():
    trees = [
        FakeTree(ends_on={signal.SIGUSR2}, returncode=1),
        FakeTree(ends_on={signal.SIGTERM}),
        FakeTree(()),
    ]
    watch = TreeWatch(trees, Inbox(), stop_timeout_s=0.05)
    trees[0].send_signal(signal.SIGUSR2)
    assert watch.wait(30)
    assert trees[1].signals == [signal.SIGTERM]
    assert trees[2].signals == [signal.SIGTERM, signal.SIGKILL]


def test_peers_of_a_worker_that_has_finished_are_left_alone():
    trees = [FakeTree(ends_on={signal.SIGUSR2}), FakeTree(ends_on=())]
    watch = TreeWatch(trees, Inbox(), stop_timeout_s=0.0)
    trees[0].send_signal(signal.SIGUSR2)
    assert not watch.wait(0.2)
    assert trees[1].signals == []
    watch.kill()
    assert watch.wait(30)


class HangingTree(FakeTree):
    """A process tree that survives SIGKILL, as a process in the kernel's I/O does, until it is released."""

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def release(self):
        self._ended.set()


def test_tree_that_survives_sigkill_is_not_waited_for_for_ever(monkeypatch):
    monkeypatch.setattr(tree_watch, "_AFTER_KILL_S", 0.1)
    tree = HangingTree(ends_on=())
    watch = TreeWatch([tree], Inbox(), stop_timeout_s=30.0)
    too_late = threading.Timer(10.0, tree.release)  # then a wait without a bound ends, with True
    too_late.start()
    watch.kill()
    assert not watch.wait()
    assert not watch.wait()
    assert tree.signals == [signal.SIGKILL]
    too_late.cancel()
    too_late.join()
    tree.release()
    assert watch.wait(30)


def test_waiting_can_be_given_up_and_taken_up_again():
    tree = FakeTree(ends_on={signal.SIGTERM})
    watch = TreeWatch([tree], Inbox(), stop_timeout_s=30.0)
    assert not watch.wait(0.0)
    assert not watch.wait(0.01)
    watch.forward(signal.SIGTERM)
    assert watch.wait(30)
    assert watch.wait(0.0)
