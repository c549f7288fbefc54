"""What SIGTERM does before and after a training; `scontrol` is a small program of the test."""

from __future__ import annotations

import json
import pathlib
import signal
from typing import Any

import pytest

from tests.checkpointing.conftest import CALM, PREEMPTED

AFTER = """
from tf_preempt.checkpointing.departure import Departure
from tf_preempt.checkpointing.key_value import LocalStore
from tf_preempt.checkpointing.startup import Cluster
from tf_preempt.termination.auto import Platform
from tf_preempt.termination.slurm_options import SlurmOptions
departure = Departure(Platform.SLURM, environ, SlurmOptions(), Cluster(), LocalStore(), prefix="t",
                      directory=directory, program_goes_on=False)
standby.begin(departure.after_training)
"""
STRATEGY = """
os.environ.update(environ)
import tf_preempt
tf_preempt.strategies.MultiWorkerMirroredStrategy()
"""
CALLBACK = """
import tf_preempt
tf_preempt.callbacks.PreemptionCheckpoint(directory, environ=environ{arguments})
"""
PROGRAM = """
import json, os, signal, sys
from tf_preempt.termination import standby
environ, directory = json.loads({environ!r}), {directory!r}
{steps}
os.kill(os.getpid(), signal.SIGTERM)
while True:
    signal.pause()
"""


@pytest.fixture
def program_until_sigterm(run_script: Any, tmp_path: pathlib.Path) -> Any:
    def run(environ: dict[str, str], *steps: str) -> Any:
        source = PROGRAM.format(
            environ=json.dumps(environ), directory=str(tmp_path), steps="\n".join(steps).format(arguments="")
        )
        return run_script(source)

    return run


@pytest.fixture
def run_until_sigterm(program_until_sigterm: Any) -> Any:
    return lambda *given: int(program_until_sigterm(*given).rc)


@pytest.mark.parametrize(
    "begin",
    [AFTER, STRATEGY, CALLBACK],
    ids=["after a training", "strategy made, no training yet", "callback made, no training yet"],
)
def test_a_preempted_job_is_requeued_before_sigterm_ends_the_program(
    run_until_sigterm: Any, slurm: Any, begin: str
) -> None:
    assert run_until_sigterm(slurm(PREEMPTED), begin) == -signal.SIGTERM
    assert slurm.asked() == ["show job -o 7", "requeue 7"]


@pytest.mark.parametrize(
    "begin",
    # A strategy begins to listen as the callback does.
    [AFTER, CALLBACK, pytest.param(STRATEGY, marks=pytest.mark.exhaustive)],
    ids=["after a training", "callback made, no training yet", "strategy made, no training yet"],
)
def test_another_sigterm_ends_the_program_and_nothing_more(
    run_until_sigterm: Any, slurm: Any, begin: str
) -> None:
    assert run_until_sigterm(slurm(CALM), begin) == -signal.SIGTERM
    assert slurm.asked() == ["show job -o 7"]


OVER_THE_LIMIT = CALM.replace("RUNNING Reason=None", "COMPLETING Reason=TimeLimit")
IN_QUEUE = CALM.replace("Restarts=0", "Restarts=1")
FAST = "standby.OTHER_TASKS_WAIT_S = 0.0\n"


@pytest.mark.parametrize(
    ("begin", "when"), [(AFTER, "after the training"), (FAST + CALLBACK, "before the training began")]
)
@pytest.mark.parametrize(
    ("record", "said"),
    [
        (IN_QUEUE, "Slurm job 7, run 0: requeued already: Slurm runs it again by itself."),
        (OVER_THE_LIMIT, "its time limit: the notice came {when}, so that it is not requeued; ask for more"),
    ],
    ids=["no grace", "time limit"],
)
def test_a_program_that_does_not_train_says_what_becomes_of_its_job(
    program_until_sigterm: Any, slurm: Any, begin: str, when: str, record: str, said: str
) -> None:
    result = program_until_sigterm(slurm(record), begin)
    assert result.rc == -signal.SIGTERM
    assert result.stderr.count(f"SIGTERM came {when}; the program ends as soon as it is settled") == 1
    assert result.stderr.count(said.format(when=when)) == 1


def test_a_task_that_is_not_the_first_says_that_the_signal_has_come_and_no_more(
    program_until_sigterm: Any, slurm: Any
) -> None:
    result = program_until_sigterm({**slurm(IN_QUEUE), "SLURM_PROCID": "1"}, FAST, CALLBACK)
    assert result.stderr.count("SIGTERM came before the training began") == 1
    assert "Slurm job 7" not in result.stderr


@pytest.mark.parametrize(
    "variables", [{"SLURM_PROCID": "1"}, {"SLURM_JOB_ID": ""}], ids=["other task", "no job"]
)
def test_before_a_training_the_first_task_of_a_job_acts_alone(
    run_until_sigterm: Any, slurm: Any, variables: dict[str, str]
) -> None:
    assert run_until_sigterm({**slurm(PREEMPTED), **variables}, CALLBACK) == -signal.SIGTERM
    assert slurm.asked() == []


@pytest.mark.parametrize(
    "arguments",
    [
        ", on_preemption='raise'",
        ", termination_config=tf_preempt.TerminationConfig("
        "slurm=tf_preempt.termination.SlurmOptions(requeue='never'))",
        ", termination_config=tf_preempt.TerminationConfig(signals=())",
    ],
    ids=["the program goes on", "never requeue", "no signals"],
)
@pytest.mark.parametrize("order", ["strategy first", "callback first"])
def test_a_program_that_sees_to_its_job_itself_is_left_alone(
    run_until_sigterm: Any, slurm: Any, arguments: str, order: str
) -> None:
    steps = [STRATEGY, CALLBACK.replace("{arguments}", arguments)]
    steps = steps if order == "strategy first" else steps[::-1]
    assert run_until_sigterm(slurm(PREEMPTED), *steps) == -signal.SIGTERM
    assert slurm.asked() == []


def test_when_the_next_training_has_begun_the_signal_is_not_ours(run_until_sigterm: Any, slurm: Any) -> None:
    assert run_until_sigterm(slurm(PREEMPTED), AFTER, "standby.training_begins(environ)") == -signal.SIGTERM
    assert slurm.asked() == []


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_handler_of_the_program_is_left_alone(run_until_sigterm: Any, slurm: Any, when: str) -> None:
    handler = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))"
    steps = [handler, AFTER] if when == "before" else [AFTER, handler]
    assert run_until_sigterm(slurm(PREEMPTED), *steps) == 5
    assert slurm.asked() == []


def test_a_program_that_fails_meanwhile_ends_when_its_job_is_requeued(
    run_script: Any, slurm: Any, tmp_path: Any
) -> None:
    """Slurm signals the children of a program, too, and one that has lost a child may fail of it."""
    environ = slurm(PREEMPTED)
    program = tmp_path / "bin" / "scontrol"
    program.write_text(program.read_text().replace("case", "sleep 1; case", 1))
    source = (
        f"import json, os, subprocess\nfrom tf_preempt.termination import standby\n"
        f"standby.begin_before_training(json.loads({json.dumps(environ)!r}))\n"
        "subprocess.run(['sh', '-c', f'kill {os.getpid()}; kill $$'], check=True)\n"
    )
    result = run_script(source)
    assert "CalledProcessError" in result.stderr
    assert (result.rc, slurm.asked()) == (-signal.SIGTERM, ["show job -o 7", "requeue 7"])


def test_a_second_sigterm_ends_a_program_that_waits(run_script: Any, slurm: Any) -> None:
    environ = slurm("nothing that can be read")
    source = (
        f"import json, os, signal, threading\nfrom tf_preempt.termination import standby\n"
        f"standby._ONE_NOTICE_S = 0.0\n"
        "settle, settled = standby.settle_preemption, threading.Event()\n"
        "def settle_and_tell(*given, **named):\n"
        "    verdict = settle(*given, **named)\n"
        "    settled.set()\n"
        "    return verdict\n"
        "standby.settle_preemption = settle_and_tell\n"
        f"standby.begin_before_training(json.loads({json.dumps(environ)!r}))\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "settled.wait()\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "while True: signal.pause()\n"
    )
    result = run_script(source)
    assert (result.rc, "requeue 7" in slurm.asked()) == (-signal.SIGTERM, False)
    assert "SIGTERM came again" in result.stderr


TRAINING = """
import tensorflow as tf
import tf_preempt
from tf_preempt.checkpointing.session import TrainingSession
handler = tf_preempt.PreemptionCheckpointHandler(
    None, tf.train.Checkpoint(step=tf.Variable(0)), directory + "/run", environ=environ
)
"""
LEFT_BY_AN_ERROR = """
try:
    with handler.watch_preemption_scope():
        raise ValueError("training fails")
except ValueError:
    pass
"""
SIGTERM_IN_THE_LAST_SAVE = """
save = TrainingSession._save
def interrupted(self, *args, **kwargs):
    os.kill(os.getpid(), signal.SIGTERM)
    while self._notice is None:
        pass
    return save(self, *args, **kwargs)
TrainingSession._save = interrupted
for _ in handler.steps(1):
    pass
handler.finish()
signal.pause()
"""


@pytest.mark.parametrize(
    "end", [LEFT_BY_AN_ERROR, SIGTERM_IN_THE_LAST_SAVE], ids=["left by an error", "SIGTERM in the last save"]
)
def test_however_a_training_ends_a_preempted_job_is_requeued(
    run_until_sigterm: Any, slurm: Any, end: str
) -> None:
    assert run_until_sigterm(slurm(PREEMPTED), TRAINING, end) == -signal.SIGTERM
    assert [words for words in slurm.asked() if words.startswith("requeue")] == ["requeue 7"]


def test_a_notice_in_the_last_save_is_answered_by_the_next_training(run_script: Any, tmp_path: Any) -> None:
    """Outside of Slurm: a program that trains twice leaves before the second training."""
    second = (
        "handler = tf_preempt.PreemptionCheckpointHandler(\n"
        "    None, tf.train.Checkpoint(step=tf.Variable(0)), directory + '/second', environ=environ)\n"
        # So many that the workers have agreed long before the last one, on a busy machine, too.
        "for step in handler.steps(10**6):\n    pass\n"
        "print('trained to the end')\n"
    )
    last_save = SIGTERM_IN_THE_LAST_SAVE.replace("signal.pause()\n", "")
    steps = "import os, signal\n" + TRAINING + last_save + second
    result = run_script(f"environ, directory = {{}}, {str(tmp_path)!r}\n{steps}")
    assert result.rc == 42, result.stderr
    assert "trained to the end" not in result.stdout
