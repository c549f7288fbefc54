"""Trainings in jobs of a real Slurm that are preempted, limited, cancelled, requeued, and lose nodes.

Every training is compared, bit for bit, with one that nobody disturbed.  Most of a job's life is waiting, so
that the tests that are `staged` run beside each other in threads, each on two nodes of its own.
"""

import re
import shutil
import sys
import time

import pytest

from tests.slurm.conftest import running
from tests.slurm.jobs import STEPS, Job, first_job
from tests.slurm.stages import staged

OPTIONS = ["--nodes", "10", "--grace-time", "12", "--kill-wait", "8", "--message-timeout", "5"]


@pytest.fixture(scope="module")
def cluster():
    with running(*OPTIONS, "--extra-conf", first_job("main")) as cluster:
        yield cluster


@pytest.fixture(scope="module", autouse=True)
def limited(cluster, tmp_path_factory):
    """Jobs that come to their time limit while the others run: with a signal, without any, and for good."""
    place = tmp_path_factory.mktemp("limited")
    nodes = "-p high -w n[17-18] -N2 -n2"
    with_signal = Job(
        cluster, place / "signal", options=f"{nodes} -t 2 --signal=USR1@20", program="--pace 1.6"
    )
    # So that the last of its runs does not end just before the limit, which Slurm may then take for reached.
    without = Job(cluster, place / "none", options=f"{nodes} -t 1", program="--pace 1.3")
    supervised = Job(
        cluster,
        place / "once",
        options=f"{nodes} -t 1 --no-requeue",
        step=f"srun {sys.executable} -m tf_preempt run --",
        program="--pace 1.3",
    )
    return {"signal": with_signal.submit(), "none": without.submit(), "once": supervised.submit()}


@staged
def test_a_job_preempted_three_times_is_requeued_and_ends_as_if_nothing_had_been(stage):
    job = stage.submit(program="--pace 0.1")
    for run, step in enumerate((5, 20, 40), 1):
        job.wait_for_step(step)
        stage.preempt()
        job.wait_for_exits(2 * run)
    stage.assert_as_if_undisturbed(job, restarts=3)
    assert job.output.count("preempted: the job is requeued") == 3


@staged
def test_a_preempted_job_that_cannot_reach_slurm_stays_until_slurm_requeues_it(stage):
    config = stage.place / "slurm.conf"
    config.write_text("what the job's container has here\n", encoding="utf-8")
    job = stage.submit(program="--pace 0.1", environ=f"env SLURM_CONF={config}")
    job.wait_for_step(10)
    stage.preempt()
    stage.assert_as_if_undisturbed(job, restarts=1)
    assert job.output.count("so the program waits for Slurm to do it") == 1
    assert "Leaving with exit status" not in job.output


@pytest.mark.exhaustive
@staged
def test_a_preempted_job_that_has_squeue_alone_knows_why_and_stays(stage):
    programs = stage.place / "bin"
    programs.mkdir()
    (programs / "squeue").symlink_to(shutil.which("squeue"))
    (programs / "scontrol").write_text("#!/bin/sh\necho not allowed here >&2; exit 1\n", encoding="utf-8")
    (programs / "scontrol").chmod(0o755)
    job = stage.submit(program="--pace 0.1", environ=f"env PATH={programs}")
    job.wait_for_step(10)
    stage.preempt()
    stage.assert_as_if_undisturbed(job, restarts=1)
    assert job.output.count("preempted: the job could not be requeued from here") == 1
    assert "Leaving with exit status" not in job.output


@staged
def test_a_job_preempted_while_its_program_starts_is_requeued_by_the_supervisor(stage):
    """The first life is one that has not come to its training yet."""
    started = stage.place / "started"
    wait = f"sh -c 'test -e {started} && exec \"$@\"; sleep 0.3; touch {started}; exec sleep 100' sh"
    job = stage.submit(step=f"srun {sys.executable} -m tf_preempt run --", environ=wait)
    job.wait_until(started.exists, "the first life", 60)
    stage.preempt()
    stage.assert_as_if_undisturbed(job, restarts=1)


@staged
def test_a_job_preempted_while_it_builds_its_model_is_requeued(stage):
    job = stage.submit(program="--build 60")
    for worker in (0, 1):
        job.wait_until((stage.place / "job" / f"builds-{worker}").exists, "the strategy", 60)
    stage.preempt()
    stage.assert_as_if_undisturbed(job, restarts=1)
    assert job.output.count("preempted: the job is requeued") == 1


@staged
def test_a_job_preempted_after_its_training_is_requeued_and_comes_to_its_end(stage):
    job = stage.submit(program="--linger 60")
    job.wait_until(lambda: len(job.events("finish")) == 2, "the end of the training", 90)
    stage.preempt()
    stage.assert_as_if_undisturbed(job, restarts=1)
    assert job.output.count("preempted: the job is requeued") == 1


@staged
def test_without_a_grace_a_job_preempted_before_its_training_is_requeued_by_slurm(stage):
    """GraceTime=0, the default: all get SIGTERM at once, srun too, and the job is in the queue already."""
    job = stage.submit(options="-N2 -n2 -p abrupt", program="--load 60")
    for worker in (0, 1):
        job.wait_until((job.place / f"loads-{worker}").exists, "the callback", 60)
    stage.preempt()
    stage.assert_as_if_undisturbed(job, restarts=1)
    assert job.output.count("SIGTERM came before the training began") == 2
    assert job.output.count("requeued already: Slurm runs it again by itself") == 1


@staged
def test_a_second_sigterm_while_it_saves_disturbs_nothing(stage):
    job = stage.submit(program="--pace 0.1 --save-takes 4")
    job.wait_for_step(5)
    stage.preempt()
    for worker in (0, 1):
        job.wait_until((job.place / f"saves-{worker}").exists, "the save", 30)
    stage.cluster.client("scancel", "--signal=TERM", str(job.number))
    assert not job.events("commit")
    stage.assert_as_if_undisturbed(job, restarts=1)
    for worker in (0, 1):
        assert job.output.count(f"Notice on worker {worker}: SIGTERM") == 2
    assert job.output.count("preempted: the job is requeued") == 1


@staged
def test_a_job_that_has_used_up_its_requeues_saves_and_ends(stage):
    job = stage.submit(program="--pace 0.1 --max-requeues 1")
    for run, step in enumerate((5, 20), 1):
        job.wait_for_step(step)
        stage.preempt()
        job.wait_for_exits(2 * run)
    assert job.wait_for_end() == "FAILED"
    assert (job.fields()["Restarts"], job.fields()["ExitCode"]) == ("1", "1:0")
    assert job.output.count("not requeued, as all 1 requeues are used up") == 1
    assert job.committed_step() == job.steps()[-1]


@staged
def test_a_preempted_job_without_requeue_saves_ends_and_says_so(stage):
    job = stage.submit(options="-N2 -n2 --no-requeue", program="--pace 0.1")
    job.wait_for_step(5)
    stage.preempt()
    assert job.wait_for_end() != "COMPLETED"
    assert job.fields()["Restarts"] == "0"
    assert job.output.count("not requeued, as it was submitted with --no-requeue") == 1
    assert job.committed_step() == job.steps()[-1]


@staged
def test_a_cancelled_job_saves_and_is_not_requeued(stage):
    job = stage.submit(program="--pace 0.1")
    job.wait_for_step(5)
    stage.cluster.client("scancel", str(job.number))
    assert job.wait_for_end() == "CANCELLED"
    assert job.fields()["Restarts"] == "0"
    assert job.output.count("cancelled: a job that its owner cancels, or whose batch script has ended") == 1
    assert job.committed_step() == job.steps()[-1]


@staged
def test_a_job_requeued_from_outside_is_requeued_once_and_goes_on(stage):
    job = stage.submit(program="--pace 0.1")
    job.wait_for_step(5)
    stage.cluster.client("scontrol", "requeue", str(job.number))
    stage.assert_as_if_undisturbed(job, restarts=1)
    assert job.output.count("requeued already: nothing is left to do") == 1


def assert_goes_on(job, trained):
    """From the last periodic save, ten steps at most before the step that was trained when a node died."""
    restored = job.events("restore")[0]["step"]
    assert trained - restored <= 10
    again = job.steps()[len(job.steps()) - (STEPS - restored) :]
    assert again == list(range(restored + 1, STEPS + 1))


def lose_a_node(stage, option):
    program = "--pace 0.1 --save-every 10"
    options, step = f"-N2 -n2 {option}", f"srun {option}".strip()
    job = stage.submit(options=options, step=step, program=program)
    job.wait_for_step(25)
    trained = job.steps()[-1]
    failed_at = time.time()
    assert stage.cluster.verb("fail-node", stage.nodes[1]).returncode == 0
    try:
        job.wait_for_exits(1)
        assert job.events("exit")[0]["t"] - failed_at < 15
        assert job.events("exit")[0]["code"] == 42
    finally:
        assert stage.cluster.verb("start-node", stage.nodes[1]).returncode == 0
    assert job.wait_for_end() == "COMPLETED", job.output
    assert job.fields()["Restarts"] == "1"
    assert job.result() == stage.undisturbed[2]
    assert_goes_on(job, trained)


@staged
def test_when_a_node_dies_the_others_leave_soon_and_the_requeued_job_goes_on(stage):
    lose_a_node(stage, "")


@staged
def test_when_a_node_dies_a_job_that_slurm_would_keep_is_requeued_too(stage):
    lose_a_node(stage, "--no-kill")


@pytest.mark.exhaustive
@staged
def test_when_the_node_of_chief_and_batch_script_dies_slurm_ends_and_requeues_the_job(stage):
    """With srun gone, Slurm ends the other tasks by itself, before they can say anything."""
    job = stage.submit(program="--pace 0.1 --save-every 10")
    job.wait_for_step(25)
    trained = job.steps()[-1]
    assert stage.cluster.verb("fail-node", stage.nodes[0]).returncode == 0
    try:
        job.wait_until(lambda: job.fields().get("Restarts") == "1", "the requeue", 60)
    finally:
        assert stage.cluster.verb("start-node", stage.nodes[0]).returncode == 0
    assert job.wait_for_end() == "COMPLETED", job.output
    assert job.result() == stage.undisturbed[2]
    assert_goes_on(job, trained)


@staged
def test_two_jobs_that_share_their_nodes_do_not_disturb_each_other(stage):
    jobs = [stage.submit(name) for name in ("first", "second")]
    for job in jobs:
        stage.assert_as_if_undisturbed(job, restarts=0)


@staged
def test_a_cyclic_job_of_three_workers_on_two_nodes_is_preempted(stage):
    job = stage.submit(options="-N2 -n3 -m cyclic", program="--pace 0.1")
    job.wait_for_step(10)
    stage.preempt()
    stage.assert_as_if_undisturbed(job, restarts=1, workers=3)


@staged
def test_a_heterogeneous_job_is_requeued_as_a_whole(stage):
    first, second = stage.nodes
    job = Job(
        stage.cluster, stage.place / "job", step="srun --het-group=0,1", program="--pace 0.1", options=""
    )
    parts = f"#SBATCH -p low -w {first} -n1\n#SBATCH hetjob\n#SBATCH -p low -w {second} -n1\n"
    job.script = job.script.replace("#!/bin/sh\n", f"#!/bin/sh\n{parts}")
    job.submit()
    job.wait_for_step(10)
    stage.cluster.client("scancel", "--signal=TERM", str(job.number))
    stage.assert_as_if_undisturbed(job, restarts=1)


@pytest.mark.parametrize("way", ["signal", "none"])
def test_a_job_runs_past_its_time_limit_by_requeueing(limited, undisturbed, way):
    job = limited[way]
    assert job.wait_for_end(timeout_s=300) == "COMPLETED", job.output
    restarts = int(job.fields()["Restarts"])
    assert restarts >= 1
    job.assert_trained_each_step_once()
    assert job.result() == undisturbed(2)
    source = {"signal": "SIGUSR1", "none": "Slurm's time limit"}[way]
    assert {event["source"] for event in job.events("notice")} == {source}
    assert job.output.count("its time limit: the job is requeued") == restarts


def test_just_before_the_limit_of_a_job_that_slurm_ends_for_good_nothing_is_started_again(limited):
    job = limited["once"]
    assert job.wait_for_end() == "FAILED", job.output
    assert (job.fields()["Restarts"], job.fields()["ExitCode"]) == ("0", "42:0")
    assert {event["source"] for event in job.events("notice")} == {"Slurm's time limit"}
    step = job.committed_step()
    assert job.steps() == list(range(1, step + 1))
    preempted = f"not restarting: exit status 42 = preempted, committed step {step}"
    why = rf"{preempted}, but in \d+ s the time limit ends this Slurm job for good"
    assert len(re.findall(why, job.output)) == 1, job.output
    assert "tf-preempt: restarting in" not in job.output
