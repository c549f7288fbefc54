"""`tf-preempt run` around and inside of `srun` on a real Slurm: one restarts or one requeues, never both."""

import sys

import psutil
import pytest

from tests.slurm.conftest import running
from tests.slurm.jobs import PROGRAM, STEPS, Job, first_job
from tests.slurm.stages import NODES, staged

OPTIONS = ["--nodes", str(NODES), "--kill-wait", "8", "--message-timeout", "5"]
SUPERVISOR = f"{sys.executable} -m tf_preempt run --backoff-initial 0.1 --"


@pytest.fixture(scope="module")
def cluster():
    with running(*OPTIONS, "--grace-time", "20", "--extra-conf", first_job("main")) as cluster:
        yield cluster


def worker_of(job: Job, rank: int) -> psutil.Process:
    """The training process of a rank, found as one would find it on its node."""
    found = []
    for process in psutil.process_iter():
        try:
            words, environ = process.cmdline(), process.environ()
        except psutil.Error:
            continue
        is_program = words[1:3] == [str(PROGRAM), str(job.place / "checkpoints")]
        if is_program and environ.get("SLURM_PROCID") == str(rank):
            found.append(process)
    assert len(found) == 1, found
    return found[0]


def assert_repeats_at_most(job: Job, most: int) -> None:
    """All steps were trained in order, and after the loss no more than so many a second time."""
    steps = job.steps()
    restored = job.events("restore")[0]["step"]
    again = steps[len(steps) - (STEPS - restored) :]
    before = steps[: len(steps) - len(again)]
    assert again == list(range(restored + 1, STEPS + 1))
    assert before == list(range(1, len(before) + 1))
    assert len(before) - restored <= most


def restart_a_killed_worker(stage, step, *, supervisors):
    job = stage.submit(step=step, program="--pace 0.1 --save-every 10")
    job.wait_for_step(25)
    worker_of(job, 1).kill()
    assert job.wait_for_end() == "COMPLETED"
    assert job.fields()["Restarts"] == "0"
    assert job.output.count("tf-preempt: restarting in") == supervisors
    assert_repeats_at_most(job, 10)
    assert job.result() == stage.undisturbed[2]


@staged
def test_a_killed_worker_is_restarted_within_the_job(stage):
    restart_a_killed_worker(stage, f"{SUPERVISOR} srun -K", supervisors=1)


@staged
def test_a_killed_worker_is_restarted_within_the_job_by_the_supervisors_of_its_tasks(stage):
    """Each restarts its own worker, whichever is there first, and none ends, so that -K has nothing to do."""
    restart_a_killed_worker(stage, f"srun -K {SUPERVISOR}", supervisors=2)


@pytest.mark.exhaustive
@staged
def test_a_killed_worker_is_restarted_within_the_job_without_kill_on_bad_exit(stage):
    restart_a_killed_worker(stage, f"{SUPERVISOR} srun", supervisors=1)


def kill_without_a_supervisor(stage, rank):
    job = stage.submit(program="--pace 0.1 --save-every 10")
    job.wait_for_step(25)
    worker_of(job, rank).kill()
    assert job.wait_for_end() == "COMPLETED"
    assert job.fields()["Restarts"] == "1"
    assert_repeats_at_most(job, 10)
    assert job.result() == stage.undisturbed[2]
    assert job.output.count("a worker was lost: the job is requeued") == 1


@staged
def test_without_a_supervisor_a_killed_worker_has_the_job_requeued(stage):
    kill_without_a_supervisor(stage, 0)


@pytest.mark.exhaustive
@staged
def test_without_a_supervisor_a_killed_worker_that_is_not_the_chief_has_the_job_requeued(stage):
    kill_without_a_supervisor(stage, 1)


def preempt_a_supervised_job(stage, step):
    job = stage.submit(step=step, program="--pace 0.1")
    job.wait_for_step(10)
    stage.preempt()
    stage.assert_as_if_undisturbed(job, restarts=1)
    assert job.output.count("preempted: the job is requeued") == 1
    assert job.output.count("; Slurm runs this job again)") == 1
    assert "tf-preempt: restarting in" not in job.output


@staged
def test_a_preempted_job_is_requeued_once_and_not_restarted_in_between(stage):
    preempt_a_supervised_job(stage, f"srun -K {SUPERVISOR}")


@pytest.mark.exhaustive
@staged
def test_a_preempted_job_with_a_supervisor_around_srun_is_requeued_once(stage):
    preempt_a_supervised_job(stage, f"{SUPERVISOR} srun -K")


@pytest.mark.exhaustive
@staged
def test_around_srun_a_program_that_is_preempted_at_its_start_lives_twice_before_the_requeue(stage):
    """The notice ends the first life and comes to tasks only: the supervisor hears of it after the grace."""
    lives = stage.place / "lives"
    # Only the job's second run comes to its training.
    run = 'test -n "$SLURM_RESTART_COUNT" || exec sleep 100; exec "$@"'
    wait = f"sh -c 'echo $SLURM_STEP_ID >>{lives}; {run}' sh"
    job = stage.submit(step=f"{SUPERVISOR} srun", environ=wait)
    job.wait_until(lives.exists, "the first life", 60)
    stage.preempt()
    stage.assert_as_if_undisturbed(job, restarts=1)
    assert job.output.count("tf-preempt: restarting in") == 1
    assert lives.read_text().split() == ["0", "0", "1", "1", "0", "0"]


def signal_all_processes(stage, step, *, option=""):
    job = stage.submit(step=step, program="--pace 0.1")
    job.wait_for_step(10)
    stage.cluster.client("scancel", "--signal=USR1", *option.split(), str(job.number))
    stage.assert_as_if_undisturbed(job, restarts=1)
    assert job.output.count("a notice while the job runs on: the job is requeued") == 1
    assert {event["source"] for event in job.events("notice")} == {"SIGUSR1"}
    assert "tf-preempt: restarting in" not in job.output


@staged
def test_a_signal_of_the_jobs_own_ends_no_supervisor(stage):
    """`--signal=USR1` reaches every process of the step, as `scancel --signal` does."""
    signal_all_processes(stage, f"srun {SUPERVISOR}")


@pytest.mark.exhaustive
@staged
def test_a_signal_of_the_jobs_own_ends_no_supervisor_around_srun(stage):
    """The batch script, here the supervisor, and what it has started get it too."""
    signal_all_processes(stage, f"{SUPERVISOR} srun", option="--full")


@staged
def test_a_signal_to_the_batch_script_is_passed_on_to_the_workers(stage):
    """`--signal=B:USR1` reaches the batch script only, here the supervisor, and srun passes it on."""
    job = stage.submit(step=f"{SUPERVISOR} srun", program="--pace 0.1")
    job.wait_for_step(10)
    stage.cluster.client("scancel", "--signal=USR1", "--batch", str(job.number))
    stage.assert_as_if_undisturbed(job, restarts=1)
    assert job.output.count("tf-preempt: passing SIGUSR1 on") == 1
    assert {event["source"] for event in job.events("notice")} == {"SIGUSR1"}


def preempt_without_a_grace(stage, step):
    """All get SIGTERM at once then, the batch script too, which here is the supervisor or srun itself."""
    job = stage.submit(options="-N2 -n2 -p abrupt", step=step, program="--pace 0.1")
    job.wait_for_step(10)
    stage.preempt()
    stage.assert_as_if_undisturbed(job, restarts=1)
    assert "tf-preempt: restarting in" not in job.output


@staged
def test_without_a_grace_the_time_until_the_kill_is_used(stage):
    preempt_without_a_grace(stage, "srun")


@pytest.mark.exhaustive
@staged
def test_without_a_grace_the_time_until_the_kill_is_used_by_a_supervised_job(stage):
    preempt_without_a_grace(stage, f"{SUPERVISOR} srun")
