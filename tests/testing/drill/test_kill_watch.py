import io
import signal

import pytest

from tf_preempt.goodput.step_file import Place
from tf_preempt.testing.drill.kill_watch import KillWatch
from tf_preempt.testing.drill.kills import Kill
from tf_preempt.testing.story import Story


class Feed:
    """Gives once what was put in."""

    def __init__(self):
        self.items = []

    def poll(self):
        items, self.items = self.items, []
        return items


class World:
    """A training of which the test says what happens."""

    def __init__(self, kills, *, fit_steps=None, workers=1, kill=None):
        self.events, self.log, self.places = Feed(), Feed(), {}
        self.got, self.kept, self.told = [], [], io.StringIO()
        self.watch = KillWatch(
            kills=kills,
            fit_steps={0: 100} if fit_steps is None else fit_steps,
            workers=workers,
            events=self.events,
            log=self.log,
            read_places=lambda: dict(self.places),
            on_commit=self.kept.append,
            story=Story(self.told),
            kill=kill or (lambda pid, signum: self.got.append((pid, signum))),
        )

    def event(self, kind, worker=0, **fields):
        self.events.items.append({"t": 1.0, "worker": worker, "incarnation": 0, "kind": kind, **fields})
        self.watch.look()

    def start(self, pid, worker=0):
        self.event("start", worker=worker, pid=pid, workers=1)

    def at(self, pid, step, worker=0, fit=0):
        self.places[worker] = Place(pid, fit, step)
        self.watch.look()


def kill(signum=signal.SIGTERM, step=10, worker=0):
    return Kill(signal=signum, worker=worker, share=0.5, step=step)


def test_signal_goes_to_the_process_once_its_step_is_done():
    world = World([kill(step=10)])
    world.start(7)
    world.at(7, 9)
    assert world.got == []
    world.at(7, 10)
    world.at(7, 11)
    assert world.got == [(7, signal.SIGTERM)]
    assert "SIGTERM to worker 0 (process 7) after step 10" in world.told.getvalue()


def test_next_signal_waits_for_the_next_life():
    world = World([kill(step=1), kill(step=2)])
    world.start(7)
    world.at(7, 50)
    assert world.got == [(7, signal.SIGTERM)]
    world.start(8)
    assert world.got == [(7, signal.SIGTERM)], "the step of the life before counts no more"
    world.at(8, 50)
    assert world.got == [(7, signal.SIGTERM), (8, signal.SIGTERM)]


def test_signal_struck_if_the_program_was_started_again_and_else_came_too_late():
    world = World([kill(step=1), kill(step=2)])
    world.start(7)
    world.at(7, 5)
    world.start(8)
    world.at(8, 5)
    world.event("finish")
    assert [sent.struck for sent in world.watch.sent] == [True, False]
    assert world.watch.unsent == 1


def test_kill_waits_for_the_first_commit():
    world = World([kill(signal.SIGKILL, step=5)])
    world.start(7)
    world.at(7, 50)
    assert world.got == []
    world.event("commit", checkpoint="ckpt-1", step=50)
    assert world.got == [(7, signal.SIGKILL)]
    assert (world.kept, world.watch.commits) == (["ckpt-1"], 1)


def test_place_is_chosen_from_where_the_life_begins():
    world = World([Kill(signal=signal.SIGTERM, worker=0, share=0.5)])
    world.start(7)
    world.at(7, 60)
    for step in (61, 79):
        world.at(7, step)
        assert world.got == []
    world.at(7, 80)
    assert world.got == [(7, signal.SIGTERM)]


def test_workers_are_left_alone_until_all_have_begun():
    world = World([kill(step=0, worker=1)], workers=2)
    world.start(7, worker=0)
    world.at(7, 3, worker=0)
    world.at(8, 3, worker=1)
    assert world.got == []
    world.start(8, worker=1)
    assert world.got == [(8, signal.SIGTERM)]


def test_other_workers_of_a_life_that_was_hit_are_not_hit_again():
    world = World([kill(step=0, worker=1), kill(step=0, worker=0)], workers=2)
    for worker, pid in ((0, 7), (1, 8)):
        world.start(pid, worker=worker)
        world.at(pid, 1, worker=worker)
    assert world.got == [(8, signal.SIGTERM)]
    world.start(7, worker=0)
    world.at(7, 2, worker=0)
    assert world.got == [(8, signal.SIGTERM)]


def test_life_that_ended_by_itself_makes_room_for_the_next():
    world = World([kill(step=10)])
    world.start(7)
    world.at(7, 3)
    world.start(8)
    world.at(8, 12)
    assert world.got == [(8, signal.SIGTERM)]


def test_steps_are_counted_over_all_trainings_of_the_program():
    world = World([kill(step=45)], fit_steps={0: 40, 1: 60})
    world.start(7)
    world.at(7, 40)
    world.event("finish")
    world.start(7)
    world.at(7, 4, fit=1)
    assert world.got == []
    world.at(7, 5, fit=1)
    assert world.got == [(7, signal.SIGTERM)]
    assert world.watch.sent[0].after_step == 45


def test_training_that_a_new_life_finds_complete_is_not_counted_twice():
    world = World([kill(step=41), kill(step=50)], fit_steps={0: 40, 1: 60})
    for pid, step in ((7, 1), (8, 10)):
        world.start(pid)
        world.event("finish")
        world.start(pid)
        world.at(pid, step, fit=1)
    assert world.got == [(7, signal.SIGTERM), (8, signal.SIGTERM)]


def test_next_training_of_a_process_that_got_its_signal_is_no_new_life():
    world = World([kill(step=40), kill(step=41)], fit_steps={0: 40, 1: 60})
    world.start(7)
    world.at(7, 40)
    world.start(7)
    world.at(7, 5, fit=1)
    assert world.got == [(7, signal.SIGTERM)]
    assert world.watch.sent[0].struck is False


def test_nothing_is_sent_after_the_last_training():
    world = World([kill(step=10)], fit_steps={0: 40, 1: 60})
    world.start(7)
    for _ in range(2):
        world.event("finish")
    world.at(7, 60, fit=1)
    assert (world.got, world.watch.unsent) == ([], 1)


def test_nothing_is_sent_once_the_program_has_ended():
    world = World([kill(step=10)])
    world.start(7)
    world.places[0] = Place(7, 0, 20)
    assert world.watch.look(may_send=False) is True
    assert world.got == []


def test_process_that_has_gone_by_itself_is_no_error():
    def kill_nobody(pid, signum):
        raise ProcessLookupError

    world = World([kill(step=1)], kill=kill_nobody)
    world.start(7)
    world.at(7, 1)
    assert (world.watch.sent, world.watch.unsent) == ([], 1)


@pytest.mark.parametrize("what", ["events", "log", "places", None])
def test_whether_anything_has_happened(what):
    world = World([])
    assert world.watch.look() is False
    if what == "events":
        world.events.items.append(
            {"t": 1.0, "worker": 1, "incarnation": 0, "kind": "commit", "checkpoint": "c"}
        )
    elif what == "log":
        world.log.items.append("tf-preempt: said by run")
    elif what == "places":
        world.places[0] = Place(1, 0, 1)
    assert world.watch.look() is (what is not None)
    assert ("said by run" in world.told.getvalue()) is (what == "log")
