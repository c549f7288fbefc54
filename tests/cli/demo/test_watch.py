import io
import signal

import pytest

from tf_preempt.cli.demo.interruptions import Interruption
from tf_preempt.cli.demo.progress import TRAIN, VALIDATE, Position, Record
from tf_preempt.cli.demo.watch import Watch
from tf_preempt.errors import LaunchError
from tf_preempt.testing.story import Story

PLAN = (
    Interruption(signal=signal.SIGTERM, worker=1, position=Position(0, TRAIN, 3)),
    Interruption(signal=signal.SIGKILL, worker=0, position=Position(0, TRAIN, 6)),
)


class Queue:
    """Gives what a test has put in, once."""

    def __init__(self):
        self.items = []

    def put(self, *items):
        self.items += items

    def poll(self):
        items, self.items = self.items, []
        return items


class Stage:
    """A watch with everything around it under the test's control."""

    def __init__(self, plan=PLAN):
        self.progress, self.events, self.log = Queue(), Queue(), Queue()
        self.signals = []
        self.output = io.StringIO()
        self.now = 50.0
        self.watch = Watch(
            plan=plan,
            progress=self.progress,
            events=self.events,
            log=self.log,
            story=Story(self.output),
            clock=lambda: self.now,
            kill=lambda pid, signum: self.signals.append((pid, signum)),
        )

    def start(self, incarnation):
        """Processes 10 and 11 are workers 0 and 1 of incarnation 1, and so on."""
        for worker in range(2):
            pid = incarnation * 10 + worker
            event = {"kind": "start", "worker": worker, "incarnation": incarnation, "pid": pid, "workers": 2}
            self.events.put(event)

    def run(self, incarnation, *steps, phase=TRAIN, **options):
        pid = incarnation * 10
        for step in steps:
            self.progress.put(Record(worker=0, pid=pid, t=self.now, position=Position(0, phase, step)))
        return self.watch.look(**options)


@pytest.fixture
def stage():
    return Stage()


def test_signal_goes_to_the_process_of_the_worker_when_its_step_is_done(stage):
    stage.start(0)
    stage.run(0, 0, 1, 2)
    assert stage.signals == []
    stage.run(0, 3)
    assert stage.signals == [(1, signal.SIGTERM)]
    (sent,) = stage.watch.sent
    assert (sent.incarnation, sent.done, sent.t) == (0, Position(0, TRAIN, 3), 50.0)
    assert "SIGTERM to worker 1 (process 1) after epoch 1, step 4" in stage.output.getvalue()


def test_next_signal_waits_until_the_training_is_further_than_before(stage):
    stage.start(0)
    stage.run(0, 3)
    stage.run(0, 4, 5, 6, 7)  # the interrupted incarnation goes on for a moment
    stage.start(1)
    stage.run(1, 5, 6, 7)
    assert len(stage.signals) == 1, "what was run before is being repeated"
    stage.now = 61.5
    stage.run(1, 8)
    assert stage.signals[1:] == [(10, signal.SIGKILL)]
    assert "further than before, 11.5 s after the signal" in stage.output.getvalue()
    assert stage.watch.left == 0


def test_validation_does_not_make_a_training_step_due(stage):
    stage.start(0)
    stage.run(0, 20, phase=VALIDATE)
    assert stage.signals == []


def test_no_signal_is_sent_after_the_last(stage):
    stage = Stage(plan=PLAN[:1])
    stage.start(0)
    stage.run(0, 3)
    stage.start(1)
    stage.run(1, 4, 5, 6)
    assert len(stage.signals) == 1


def test_no_signal_is_sent_when_the_workers_have_gone(stage):
    stage.start(0)
    stage.run(0, 3, may_interrupt=False)
    assert (stage.signals, stage.watch.left) == ([], 2)


def test_worker_that_has_gone_by_itself_is_an_error(stage):
    def gone(pid, signum):
        raise ProcessLookupError

    stage.watch._kill = gone
    stage.start(0)
    with pytest.raises(LaunchError, match=r"worker 1 \(process 1\) has gone"):
        stage.run(0, 3)


def test_progress_of_a_process_that_has_not_begun_is_an_error(stage):
    with pytest.raises(LaunchError, match="process 0"):
        stage.run(0, 3)


def test_look_says_whether_anything_has_happened(stage):
    assert not stage.watch.look()
    stage.log.put("tf-preempt: restarting in 0.1 s")
    assert stage.watch.look()
    assert "restarting in 0.1 s" in stage.output.getvalue()


def test_records_and_incarnations_are_kept(stage):
    stage.start(0)
    stage.run(0, 0, 1)
    assert [record.position.step for record in stage.watch.records] == [0, 1]
    assert stage.watch.incarnations == {0: 0, 1: 0}
