"""Training jobs on the private Slurm: submitted, watched, compared with the undisturbed training."""

import json
import os
import re
import shlex
import sys
import time
from pathlib import Path

from tf_preempt.goodput.events import read_events

PROGRAM = Path(__file__).with_name("train_job.py")
STEPS = 64


def first_job(cluster: str) -> str:
    """The line of slurm.conf that says where the numbers of jobs begin.

    Workers derive their ports from the job's number, and two clusters may be two test runs on this machine.
    """
    begin = {"main": 0, "examples": 70}[cluster]
    return f"FirstJobId={1 + os.getpid() % 16_384 * 100 + begin}"


class Job:
    """A job of workers that train, with a directory of its own.

    Args:
        slurm: the cluster.
        place: where its files go.
    """

    def __init__(self, slurm, place: Path, *, options="-N2 -n2", step="srun", program="", environ="") -> None:
        self._slurm = slurm
        self.place = place
        place.mkdir(parents=True)
        # exec: an srun that outlives its batch script would, later, end the step of the job's next run.
        command = f"exec {step} {environ} {sys.executable} {PROGRAM} {place / 'checkpoints'} {program}"
        self.script = f"#!/bin/sh\nexport TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES=-1\n{command}\n"
        self._options = options
        self.number = 0

    def submit(self) -> "Job":
        path = self.place / "job.sh"
        path.write_text(self.script, encoding="utf-8")
        words = [*shlex.split(self._options), "-o", str(self.place / "out"), "--open-mode=append", str(path)]
        self.number = int(self._slurm.client("sbatch", "--parsable", *words).split(";")[0])
        return self

    @property
    def output(self) -> str:
        path = self.place / "out"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def steps(self, worker=0) -> list[int]:
        """The steps that a worker has trained, in order."""
        path = self.place / f"steps-{worker}.txt"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def events(self, kind) -> list[dict]:
        return [event for event in read_events(str(self.place / "checkpoints")) if event["kind"] == kind]

    def fields(self) -> dict[str, str]:
        """What Slurm says of the job."""
        said = self._slurm.scontrol("show", "job", "-o", str(self.number)).stdout
        return dict(re.findall(r"(\S+?)=(\S*)", said))

    def wait_for_step(self, step, timeout_s=90) -> None:
        self.wait_until(lambda: max(self.steps(), default=0) >= step, f"step {step}", timeout_s)

    def wait_for_exits(self, count, timeout_s=40) -> None:
        """Waits until so many workers, of all runs together, have left."""
        self.wait_until(lambda: len(self.events("exit")) >= count, f"the exit of {count} workers", timeout_s)

    def committed_step(self) -> int:
        """The newest step that a commit has."""
        return max(event["step"] for event in self.events("commit"))

    def wait_for_end(self, timeout_s=150) -> str:
        """Waits until the job is over for good; returns its state."""
        over = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY"}
        self.wait_until(lambda: self.fields().get("JobState") in over, "the job's end", timeout_s)
        return self.fields()["JobState"]

    def wait_until(self, test, what, timeout_s) -> None:
        end = time.monotonic() + timeout_s
        while not test():
            assert time.monotonic() < end, (
                f"{what} did not come within {timeout_s} s; {self.fields()}\n{self.output}"
            )
            time.sleep(0.1)

    def result(self) -> dict:
        return json.loads((self.place / "result.json").read_text(encoding="utf-8"))

    def assert_trained_each_step_once(self, workers=2) -> None:
        for worker in range(workers):
            assert self.steps(worker) == list(range(1, STEPS + 1)), self.output


def preempt(slurm, nodes: str, *, count: int, for_s=1) -> None:
    """Has a job of the partition with more priority take the nodes for a moment."""
    words = ["-p", "high", "-w", nodes, f"-N{count}", "--exclusive", "-o", "/dev/null"]
    slurm.client("sbatch", *words, "--wrap", f"sleep {for_s}")
