import io

import pytest

from tf_preempt.testing.story import Story, describe_event, describe_log_line


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_lines_have_the_seconds_since_the_start():
    output = io.StringIO()
    story = Story(output, clock=iter([100.0, 112.34]).__next__)
    story.tell("something [happened]", "good")
    assert output.getvalue() == "  12.3 s  something [happened]\n"


def test_terminal_gets_colours_and_long_lines_stay_whole(monkeypatch):
    output = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    story = Story(output, clock=iter([0.0, 1.0]).__next__)
    text = "x" * 300 + " [y]"
    story.tell(text, "bad")
    assert text in output.getvalue()
    assert f"\x1b[1;31m{text}\x1b[0m" in output.getvalue(), "bold and red, not dim as the time"


def event(kind, worker=0, **fields):
    return {"v": 1, "t": 1.0, "worker": worker, "incarnation": 2, "kind": kind, **fields}


@pytest.mark.parametrize(
    ("happened", "told"),
    [
        (event("start", workers=2), "incarnation 2 of 2 worker(s) has begun"),
        (event("start", worker=1), None),
        (event("notice", worker=1, source="SIGTERM"), "worker 1 noticed SIGTERM"),
        (
            event("agreed", global_step=24, epoch=0, phase="train", step=24),
            "all workers agreed to save after 24 steps of epoch 1 (step 24 in all)",
        ),
        (
            event("agreed", global_step=120, epoch=1, phase="validate", step=6),
            "all workers agreed to save after 6 batches of the validation of epoch 2 (step 120 in all)",
        ),
        (
            event("agreed", global_step=180, epoch=3, phase="finished", step=0),
            "all workers agreed to save at the end of the training (step 180 in all)",
        ),
        (
            event("agreed", global_step=24, phase="train", step=24),
            "all workers agreed to save after 24 steps (step 24 in all)",
        ),
        (event("agreed", worker=1, global_step=24), None),
        (event("commit", checkpoint="ckpt-3", step=60), "ckpt-3 is committed, with step 60"),
        (event("commit", worker=1, checkpoint="ckpt-3", step=60), None),
        (event("exit", worker=1, code=42), "worker 1 leaves with exit status 42"),
        (event("peer_lost", worker=0), "worker 0 has lost another worker"),
        (
            event("restore", step=80, checkpoint="ckpt-5", epoch=1, phase="train", step_in_epoch=20),
            "resumed after 20 steps of epoch 2 (step 80 in all), from ckpt-5",
        ),
        (event("finish", step=180), "finished at step 180"),
        (event("save", step=60), None),
        (event("something new"), None),
    ],
)
def test_event_in_words(happened, told):
    assert describe_event(happened) == told


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("tf-preempt: restarting in 0.1 s", "restarting in 0.1 s"),
        ("Traceback (most recent call last):", None),
    ],
)
def test_only_lines_of_run_and_launch_are_told(line, told):
    assert describe_log_line(line) == told
