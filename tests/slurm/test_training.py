"""Trainings in jobs of a real Slurm that are preempted, limited, cancelled, requeued, and lose nodes.

Four nodes; every training is compared, bit for bit, with one that nobody disturbed.
"""

import json
import os
import subprocess
import sys
import time

import pytest

from tests.slurm.conftest import running
from tests.slurm.jobs import PROGRAM, STEPS, Job, preempt

OPTIONS = ["--nodes", "4", "--grace-time", "10", "--kill-wait", "5", "--message-timeout", "5"]


@pytest.fixture(scope="module")
def cluster():
    with running(*OPTIONS) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Gives the result of so many workers that nobody disturbs, trained without Slurm."""
    results = {}

    def train(workers=2):
        if workers not in results:
            place = tmp_path_factory.mktemp(f"undisturbed-{workers}")
            launch = [sys.executable, "-m", "tf_preempt", "launch", f"--workers={workers}", "--"]
            subprocess.run(
                [*launch, sys.executable, str(PROGRAM), str(place / "checkpoints")],
                env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"},
                timeout=120,
                check=True,
            )
            results[workers] = json.loads((place / "result.json").read_text(encoding="utf-8"))
        return results[workers]

    return train


@pytest.fixture(scope="module", autouse=True)
def limited(cluster, tmp_path_factory):
    """Two jobs that run past their time limit while the other tests run: with a signal, and without any."""
    place = tmp_path_factory.mktemp("limited")
    nodes, pace = "-p high -w n[11-12] -N2 -n2 --overcommit", "--pace 1.6"
    with_signal = Job(cluster, place / "signal", options=f"{nodes} -t 2 --signal=USR1@20", program=pace)
    without = Job(cluster, place / "none", options=f"{nodes} -t 1", program=pace)
    return {"signal": with_signal.submit(), "none": without.submit()}


def test_a_job_preempted_three_times_is_requeued_and_ends_as_if_nothing_had_been(
    cluster, undisturbed, tmp_path
):
    job = Job(cluster, tmp_path / "job", options="-p low -w n[9-10] -N2 -n2", program="--pace 0.1").submit()
    for run, step in enumerate((5, 20, 40), 1):
        job.wait_for_step(step)
        preempt(cluster, "n[9-10]", count=2)
        job.wait_for_exits(2 * run)
    assert job.wait_for_end() == "COMPLETED"
    assert job.fields()["Restarts"] == "3"
    job.assert_trained_each_step_once()
    assert job.result() == undisturbed()
    assert job.output.count("preempted: the job is requeued") == 3


def test_a_preempted_job_that_cannot_reach_slurm_stays_until_slurm_requeues_it(
    cluster, undisturbed, tmp_path
):
    config = tmp_path / "slurm.conf"
    config.write_text("what the job's container has here\n", encoding="utf-8")
    blind = f"env SLURM_CONF={config}"
    options = "-p low -w n[9-10] -N2 -n2"
    job = Job(cluster, tmp_path / "job", options=options, program="--pace 0.1", environ=blind).submit()
    job.wait_for_step(10)
    preempt(cluster, "n[9-10]", count=2)
    assert job.wait_for_end() == "COMPLETED"
    assert job.fields()["Restarts"] == "1"
    job.assert_trained_each_step_once()
    assert job.result() == undisturbed()
    assert job.output.count("so the program waits for Slurm to do it") == 1


def test_a_job_preempted_while_its_program_starts_is_requeued_by_the_supervisor(
    cluster, undisturbed, tmp_path
):
    """The first life is one that has not come to its training yet."""
    started = tmp_path / "started"
    wait = f"sh -c 'test -e {started} && exec \"$@\"; sleep 0.3; touch {started}; exec sleep 100' sh"
    step = f"srun {sys.executable} -m tf_preempt run --"
    job = Job(cluster, tmp_path / "job", options="-p low -w n[9-10] -N2 -n2", step=step, environ=wait)
    job.submit()
    job.wait_until(started.exists, "the first life", 60)
    preempt(cluster, "n[9-10]", count=2)
    assert job.wait_for_end() == "COMPLETED"
    assert job.fields()["Restarts"] == "1"
    job.assert_trained_each_step_once()
    assert job.result() == undisturbed()


def test_a_preempted_job_without_requeue_saves_ends_and_says_so(cluster, tmp_path):
    options = "-p low -w n[9-10] -N2 -n2 --no-requeue"
    job = Job(cluster, tmp_path / "job", options=options, program="--pace 0.1").submit()
    job.wait_for_step(5)
    preempt(cluster, "n[9-10]", count=2)
    assert job.wait_for_end() != "COMPLETED"
    assert job.fields()["Restarts"] == "0"
    assert job.output.count("not requeued, as it was submitted with --no-requeue") == 1
    assert job.committed_step() == job.steps()[-1]


def test_a_cancelled_job_saves_and_is_not_requeued(cluster, tmp_path):
    job = Job(cluster, tmp_path / "job", options="-p low -w n[9-10] -N2 -n2", program="--pace 0.1").submit()
    job.wait_for_step(5)
    cluster.client("scancel", str(job.number))
    assert job.wait_for_end() == "CANCELLED"
    assert job.fields()["Restarts"] == "0"
    assert job.output.count("cancelled: a job that its owner cancels is not requeued") == 1
    assert job.committed_step() == job.steps()[-1]


def test_a_job_requeued_from_outside_is_requeued_once_and_goes_on(cluster, undisturbed, tmp_path):
    job = Job(cluster, tmp_path / "job", options="-p low -w n[9-10] -N2 -n2", program="--pace 0.1").submit()
    job.wait_for_step(5)
    cluster.client("scontrol", "requeue", str(job.number))
    assert job.wait_for_end() == "COMPLETED"
    assert job.fields()["Restarts"] == "1"
    job.assert_trained_each_step_once()
    assert job.result() == undisturbed()
    assert job.output.count("requeued already: nothing is left to do") == 1


@pytest.mark.parametrize("options", ["", "--no-kill"], ids=["plain", "no-kill"])
def test_when_a_node_dies_the_others_leave_soon_and_the_requeued_job_goes_on(
    cluster, undisturbed, tmp_path, options
):
    nodes = "-p low -w n[9-10] -N2 -n2"
    step = f"srun {options}".strip()
    program = "--pace 0.1 --save-every 10"
    job = Job(cluster, tmp_path / "job", options=f"{nodes} {options}", step=step, program=program).submit()
    job.wait_for_step(25)
    trained = job.steps()
    failed_at = time.time()
    assert cluster.verb("fail-node", "n10").returncode == 0
    try:
        job.wait_for_exits(1)
        assert job.events("exit")[0]["t"] - failed_at < 15
        assert job.events("exit")[0]["code"] == 42
    finally:
        assert cluster.verb("start-node", "n10").returncode == 0
    assert job.wait_for_end() == "COMPLETED"
    assert job.fields()["Restarts"] == "1"
    assert job.result() == undisturbed()
    restored = job.events("restore")[0]["step"]
    assert trained[-1] - restored <= 10 + 10  # ten steps at most, and those that it took to see it
    again = job.steps()[len(job.steps()) - (STEPS - restored) :]
    assert again == list(range(restored + 1, STEPS + 1))


@pytest.mark.exhaustive
def test_when_the_node_of_chief_and_batch_script_dies_slurm_ends_and_requeues_the_job(
    cluster, undisturbed, tmp_path
):
    """With srun gone, Slurm ends the other tasks by itself, before they can say anything."""
    options, program = "-p low -w n[9-10] -N2 -n2", "--pace 0.1 --save-every 10"
    job = Job(cluster, tmp_path / "job", options=options, program=program).submit()
    job.wait_for_step(25)
    assert cluster.verb("fail-node", "n9").returncode == 0
    try:
        job.wait_until(lambda: job.fields().get("Restarts") == "1", "the requeue", 60)
    finally:
        assert cluster.verb("start-node", "n9").returncode == 0
    assert job.wait_for_end() == "COMPLETED"
    assert job.result() == undisturbed()


def test_two_jobs_that_share_their_nodes_do_not_disturb_each_other(cluster, undisturbed, tmp_path):
    options = "-p low -w n[9-10] -N2 -n2"
    jobs = [Job(cluster, tmp_path / name, options=options).submit() for name in ("first", "second")]
    for job in jobs:
        assert job.wait_for_end() == "COMPLETED"
        job.assert_trained_each_step_once()
        assert job.result() == undisturbed()


def test_a_cyclic_job_of_three_workers_on_two_nodes_is_preempted(cluster, undisturbed, tmp_path):
    options = "-p low -w n[9-10] -N2 -n3 -m cyclic"
    job = Job(cluster, tmp_path / "job", options=options, program="--pace 0.1").submit()
    job.wait_for_step(10)
    preempt(cluster, "n[9-10]", count=2)
    assert job.wait_for_end() == "COMPLETED"
    job.assert_trained_each_step_once(workers=3)
    assert job.result() == undisturbed(3)


def test_a_heterogeneous_job_is_requeued_as_a_whole(cluster, undisturbed, tmp_path):
    job = Job(cluster, tmp_path / "job", step="srun --het-group=0,1", program="--pace 0.1", options="")
    parts = "#SBATCH -p low -w n9 -n1\n#SBATCH hetjob\n#SBATCH -p low -w n10 -n1\n"
    job.script = job.script.replace("#!/bin/sh\n", f"#!/bin/sh\n{parts}")
    job.submit()
    job.wait_for_step(10)
    cluster.client("scancel", "--signal=TERM", str(job.number))
    assert job.wait_for_end() == "COMPLETED"
    job.assert_trained_each_step_once()
    assert job.result() == undisturbed()


@pytest.mark.parametrize("way", ["signal", "none"])
def test_a_job_runs_past_its_time_limit_by_requeueing(limited, undisturbed, way):
    job = limited[way]
    assert job.wait_for_end(timeout_s=300) == "COMPLETED"
    assert int(job.fields()["Restarts"]) >= 1
    job.assert_trained_each_step_once()
    assert job.result() == undisturbed()
    source = {"signal": "SIGUSR1", "none": "Slurm's time limit"}[way]
    assert {event["source"] for event in job.events("notice")} == {source}
    assert job.output.count("its time limit: the job is requeued") == int(job.fields()["Restarts"])
