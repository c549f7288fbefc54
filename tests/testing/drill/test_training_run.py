import io
import os
import sys
import time

import pytest

from tests.testing.drill.fake_program import PROGRAM
from tf_preempt.errors import LaunchError
from tf_preempt.testing.drill.options import DrillOptions
from tf_preempt.testing.drill.training_run import Trainer, whose_error
from tf_preempt.testing.story import Story


@pytest.fixture
def trainer(tmp_path):
    def make(source, *, clock=time.monotonic, sleep=time.sleep, **options):
        path = tmp_path / "program.py"
        path.write_text(PROGRAM + source)
        temporary = tmp_path / "tmp"
        temporary.mkdir()
        return Trainer(
            DrillOptions(command=[sys.executable, str(path)], **options),
            directory=str(tmp_path),
            temporary_dir=str(temporary),
            story=Story(io.StringIO()),
            environ={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            clock=clock,
            sleep=sleep,
        )

    return make


def test_last_checkpoint_of_each_training_and_what_was_printed_come_back(trainer, tmp_path):
    source = "commit(1, 5)\ncommit(2, 10)\ncommit(3, 7, fit=1)\nprint('said', os.environ['TMPDIR'])\n"
    run = trainer(source).train("calm")
    assert {fit: manifest.number for fit, manifest in run.last.items()} == {0: 2, 1: 3}
    assert (run.fit_steps, run.commits, run.sent) == ({0: 10, 1: 7}, 3, [])
    folder = tmp_path / "calm"
    assert f"said {tmp_path / 'tmp'}\n" in run.logs[f"{folder / 'workers.log'}"]
    assert "not restarting" in run.logs[f"{folder / 'supervisor.log'}"]
    assert len(os.listdir(run.kept)) == 3


def test_program_is_killed_at_the_step_and_started_again(trainer):
    from tf_preempt.testing.drill.kills import plan_kills

    source = (
        "commit(lives + 1, 5 * lives + 5)\n"
        "if lives < 2:\n"
        "    for step in range(5 * lives, 100):\n"
        "        steps.write(step)\n"
        "        time.sleep(0.002)\n"
        "    sys.exit('not killed')\n"
        "log.write('finish', step=15)\n"
    )
    made = trainer(source, kills=2, signals=("KILL",), at_steps=(3, 8))
    run = made.train("disturbed", plan_kills(made._options), {0: 100})
    assert [sent.struck for sent in run.sent] == [True, True]
    assert run.unsent == 0
    assert run.sent[0].after_step >= 3
    assert run.sent[1].after_step >= 8
    assert run.last[0].incarnation == 2


def test_undisturbed_program_that_asks_for_a_restart_has_failed(trainer):
    with pytest.raises(LaunchError, match="the calm training failed: exit status 42"):
        trainer("commit(1, 5)\nsys.exit(42)\n").train("calm")


def test_failure_says_whose_error_it_is_and_shows_the_last_lines(trainer):
    with pytest.raises(LaunchError) as caught:
        trainer("print('said before')\nraise ValueError('my mistake')\n").train("calm")
    for words in (
        "the calm training failed: exit status 1",
        "ValueError, raised in the program (program.py, line ",
        "said before",
        "ValueError: my mistake",
        "HINT: make it run to its end by itself first.",
    ):
        assert words in str(caught.value)


def test_program_without_a_checkpoint_is_told_how_to_make_one(trainer):
    with pytest.raises(
        LaunchError, match=r"(?s)made no checkpoint in .*HINT: give fit callbacks=\[tf_preempt"
    ):
        trainer("").train("calm")


def test_program_that_does_nothing_is_ended(trainer):
    with pytest.raises(LaunchError, match="it did nothing any more, and was ended"):
        trainer("time.sleep(120)", stall_timeout_s=2.0).train("calm")


def test_program_that_prints_is_not_taken_for_stalled(trainer, tmp_path):
    """Time passes only while the program prints: in all more than it may stall, never as much at once."""
    output, go_on, times = tmp_path / "calm" / "workers.log", tmp_path / "go_on", [0.0]
    source = (
        "for line in range(1, 4):\n"
        "    print('x')\n"
        f"    while int(open({str(go_on)!r}).read() or 0) < line: time.sleep(0.01)\n"
        "commit(1, 5)\n"
    )
    go_on.write_text("0")

    def sleep(seconds):
        time.sleep(seconds)
        lines = output.read_text().count("x\n")
        if lines == len(times):
            times.append(times[-1] + 1.5)
            go_on.write_text(str(lines))

    made = trainer(source, clock=lambda: times[-1], sleep=sleep, stall_timeout_s=2.0)
    assert made.train("calm").commits == 1
    assert times[-1] == 4.5


FRAME = '  File "{}", line 7, in f\n    g()\n'
PROGRAM_FRAME = FRAME.format("/home/me/train.py")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (PROGRAM_FRAME + "ValueError: x", "ValueError, raised in the program (train.py, line 7)."),
        (PROGRAM_FRAME + "tf_preempt.errors.ConfigError: x\nHINT: y", "ConfigError, raised in tf_preempt."),
        ("[worker 1] tf_preempt.errors.DirectoryError: x", "DirectoryError, raised in tf_preempt."),
        (FRAME.format("/v/tf_preempt/data/x.py") + "KeyError: 1", "KeyError, raised in tf_preempt."),
        (
            PROGRAM_FRAME + FRAME.format("/v/site-packages/tensorflow/python/x.py") + "my.OwnError: 1",
            "my.OwnError, raised in TensorFlow.",
        ),
        (
            FRAME.format("/v/keras/src/layer.py") + "ValueError: 1\nand more: x",
            "ValueError, raised in Keras.",
        ),
        (
            f"{PROGRAM_FRAME}KeyError: 1\n\nDuring handling\n\n{FRAME.format('b.py')}IndexError: x",
            "IndexError, raised in the program (b.py, line 7).",
        ),
        (
            '[worker 0]   File "/v/keras/a.py", line 3, in x\n[worker 0] ValueError: y',
            "ValueError, raised in Keras.",
        ),
        ("ValueError: x", "ValueError, raised in a place that it did not say."),
        ("Segmentation fault", "It has printed no error of Python."),
    ],
)
def test_whose_error(lines, words):
    assert whose_error(lines).endswith(words)
