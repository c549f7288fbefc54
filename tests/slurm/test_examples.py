"""The batch scripts of examples/slurm, as they are, on a real Slurm that disturbs each of them.

All run at the same time, and each training is compared, bit for bit, with one that nobody disturbs.  They are
submitted from a checkout whose program trains examples/train.py with the slow steps of a larger model.  Once
disturbed they only take their time: the tests that wait for their ends come after all others of this folder.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.slurm.conftest import REPOSITORY, comes_last, running
from tests.slurm.jobs import Job, first_job, preempt
from tf_preempt.goodput.events import read_events

# With steps of 0.25 s, 9 epochs take longer than it can take until the signal before the time limit comes.
EPOCHS = {"long_training": 9, "train": 4, "train_gpu": 4, "array": 4}
STEPS_PER_EPOCH = 46
SCRIPTS = REPOSITORY / "examples" / "slurm"
PACED_PROGRAM = Path(__file__).with_name("paced_train.py")
GRACE_S = 20
OPTIONS = f"--nodes 12 --gpus-per-node 2 --grace-time {GRACE_S} --kill-wait 8 --message-timeout 5".split()


class Example(Job):
    """A job of one of the batch scripts, or an element of its array."""

    def __init__(self, slurm, number: str, output: Path, directory: Path, epochs: int) -> None:
        self._slurm = slurm
        self.number = number
        self._output = output
        self.directory = directory
        self._epochs = epochs

    @property
    def output(self) -> str:
        return self._output.read_text(encoding="utf-8", errors="replace") if self._output.exists() else ""

    def events(self, kind) -> list[dict]:
        events = read_events(str(self.directory)) if self.directory.exists() else []
        return [event for event in events if event["kind"] == kind]

    def wait_for_commit(self) -> None:
        self.wait_until(lambda: self.events("commit"), "a commit", 90)

    def node(self) -> str:
        return self.fields()["NodeList"]

    def assert_completed_with(self, expected: dict[str, np.ndarray]) -> None:
        assert self.wait_for_end() == "COMPLETED", self.output
        assert self.committed_step() == STEPS_PER_EPOCH * self._epochs
        result = result_of(self.directory)
        assert result.keys() == expected.keys()
        assert [name for name in expected if not np.array_equal(result[name], expected[name])] == []


def result_of(directory: Path) -> dict[str, np.ndarray]:
    """All that the newest checkpoint holds, except for the number of saves."""
    reader = tf.train.load_checkpoint(str(directory))
    names = [name for name in reader.get_variable_to_shape_map() if "save_counter" not in name]
    return {name: reader.get_tensor(name) for name in names if name != "_CHECKPOINTABLE_OBJECT_GRAPH"}


@pytest.fixture(scope="session")
def cluster():
    with running(*OPTIONS, "--extra-conf", first_job("examples")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def checkout(tmp_path_factory):
    """What the scripts need of a checkout: the environment and the program."""
    place = tmp_path_factory.mktemp("checkout")
    (place / ".venv").symlink_to(sys.prefix)
    (place / "examples").mkdir()
    (place / "examples" / "train.py").symlink_to(PACED_PROGRAM)
    return place


@pytest.fixture(scope="session")
def jobs(cluster, checkout):
    """All examples, each on nodes of its own; all but the long training are preempted after a first commit.

    Of the array only the last element is preempted, whose number is also that of the whole array.
    """

    def submit(script: str, *options: str) -> str:
        words = [*options, f"--chdir={checkout}", f"--output={checkout / script}-%a.out"]
        words += [str(SCRIPTS / f"{script}.sbatch"), "--epochs", str(EPOCHS[script])]
        return cluster.client("sbatch", "--parsable", *words).split(";")[0].strip()

    def example(number: str, script: str, directory: str) -> Example:
        element = number.partition("_")[2] or "4294967294"  # what Slurm writes for %a in a job without
        output = checkout / f"{script}-{element}.out"
        return Example(cluster, number, output, checkout / "runs" / directory, EPOCHS[script])

    number = submit("long_training", "-p", "high", "-w", "n[16-17]", "-t", "2", "--signal=USR1@20")
    long = example(number, "long_training", "slurm-long")
    # First alone: beside the starts of the others its own may take until the signal comes.
    long.wait_until(long.directory.exists, "the training", 60)
    train = submit("train", "-p", "low", "-w", "n[9-10]")
    gpu = submit("train_gpu", "-p", "low", "-w", "n11")
    array = submit("array", "-p", "low", "--exclude=n[9-11,18-20]", "--exclusive")
    jobs = {
        "long_training": long,
        "train": example(train, "train", "slurm"),
        "train_gpu": example(gpu, "train_gpu", "slurm-gpu"),
        **{f"array-{k}": example(f"{array}_{k}", "array", f"slurm-array/{k}") for k in (1, 2)},
    }
    for name, nodes in (("array-2", None), ("train", "n[9-10]"), ("train_gpu", "n11")):
        jobs[name].wait_for_commit()
        preempt(cluster, nodes or jobs[name].node(), count=2 if name == "train" else 1)
    return jobs


@pytest.fixture(scope="session")
def undisturbed(jobs, tmp_path_factory):
    """Gives what so many workers come to that nobody disturbs; trained without Slurm, while the jobs run."""
    program = [sys.executable, str(REPOSITORY / "examples" / "train.py")]
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    results: dict[tuple[int, int, int], dict[str, np.ndarray]] = {}

    def train(workers: int, seed: int, script: str) -> dict[str, np.ndarray]:
        key = (workers, seed, EPOCHS[script])
        if key not in results:
            directory = tmp_path_factory.mktemp("undisturbed") / "checkpoints"
            launch = [sys.executable, "-m", "tf_preempt", "launch", f"--workers={workers}", "--"]
            words = [str(directory), f"--seed={seed}", f"--epochs={EPOCHS[script]}"]
            subprocess.run([*launch, *program, *words], env=environ, timeout=150, check=True)
            results[key] = result_of(directory)
        return results[key]

    return train


@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("*.sbatch")), ids=lambda script: script.stem)
def test_without_the_environment_a_script_ends_at_once_and_says_what_to_do(script, tmp_path):
    """It went on with whatever Python the machine has, and failed when the tasks had started."""
    srun = tmp_path / "bin" / "srun"
    srun.parent.mkdir()
    srun.write_text("#!/bin/sh\ntouch started\n", encoding="utf-8")
    srun.chmod(0o755)
    environ = {**os.environ, "PATH": f"{srun.parent}{os.pathsep}{os.environ['PATH']}"}
    run = ["bash", str(script)]
    done = subprocess.run(
        run, cwd=tmp_path, env=environ, timeout=30, check=False, text=True, capture_output=True
    )
    assert done.returncode == 1
    assert f"No .venv in {tmp_path}: make it there with 'make setup'" in done.stderr
    assert not (tmp_path / "started").exists()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "activate").touch()
    subprocess.run(run, cwd=tmp_path, env=environ, timeout=30, check=True)
    assert (tmp_path / "started").exists()


class Listener(Job):
    """A job that trains nothing, and notes when SIGTERM reaches it."""

    LISTEN = "trap 'date +%s.%N > part; mv part heard; exit 1' TERM; touch ready; while :; do sleep 0.1; done"

    def __init__(self, slurm, place: Path, line: str, node: str) -> None:
        super().__init__(slurm, place, options=f"-p low -w {node} -n1 --chdir={place}")
        (place / "listen.sh").write_text(f"#!/bin/sh\n{self.LISTEN}\n", encoding="utf-8")
        self.script = f"#!/bin/sh\n{line}\n"
        self.submit()

    def heard_after(self, since: float) -> float:
        self.wait_until(lambda: (self.place / "heard").exists(), "SIGTERM", 60)
        return float((self.place / "heard").read_text()) - since


@pytest.mark.usefixtures("jobs")
def test_what_the_lines_of_the_scripts_are_for(cluster, tmp_path):
    """Without srun a program hears nothing before the grace is over; one that does not save is gone."""
    bare = Listener(cluster, tmp_path / "bare", "exec sh listen.sh", "n18")
    step = Listener(cluster, tmp_path / "step", "exec srun sh listen.sh", "n19")
    early = Listener(cluster, tmp_path / "early", "touch ready; exec srun sleep 120", "n20")
    for job in (bare, step, early):
        job.wait_until((job.place / "ready").exists, "its start", 30)
    preempted_at = time.time()
    preempt(cluster, "n[18-20]", count=3)
    assert step.heard_after(preempted_at) < GRACE_S / 2
    assert (early.wait_for_end(), early.fields()["Restarts"]) == ("FAILED", "0")
    assert bare.heard_after(preempted_at) > GRACE_S


@comes_last
def test_elements_of_an_array_train_apart_and_only_the_preempted_one_is_requeued(jobs, undisturbed):
    first, second = jobs["array-1"], jobs["array-2"]
    second.assert_completed_with(undisturbed(1, 2, "array"))
    assert second.fields()["Restarts"] == "1"
    assert second.output.count("preempted: the job is requeued") == 1
    assert first.wait_for_end() == "COMPLETED"
    assert first.fields()["Restarts"] == "0"
    seeds = [result_of(job.directory) for job in (first, second)]
    assert any(not np.array_equal(seeds[0][name], seeds[1][name]) for name in seeds[0])


@comes_last
@pytest.mark.parametrize("script", ["train", "train_gpu"])
def test_a_preempted_training_is_requeued_and_ends_as_if_nothing_had_been(jobs, undisturbed, script):
    jobs[script].assert_completed_with(undisturbed(2, 1, script))
    assert jobs[script].fields()["Restarts"] == "1"
    assert jobs[script].output.count("preempted: the job is requeued") == 1
    assert jobs[script].output.count("Restored step") == 1


@comes_last
def test_a_long_training_runs_past_its_time_limit(jobs, undisturbed):
    job = jobs["long_training"]
    job.assert_completed_with(undisturbed(2, 1, "long_training"))
    assert int(job.fields()["Restarts"]) >= 1
    assert {event["source"] for event in job.events("notice")} == {"SIGUSR1"}
    assert job.output.count("its time limit: the job is requeued") >= 1
