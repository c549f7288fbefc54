"""``tf-preempt doctor`` in jobs of a real Slurm."""

import contextlib
import json
import random
import socket
import sys

import pytest

from tests.slurm.conftest import running
from tests.slurm.jobs import Job

DOCTOR = [sys.executable, "-m", "tf_preempt", "doctor", "--size-mb", "1"]


def ports():
    """Ports for the steps, in the words of slurm.conf.

    They are free on this machine: those that follow from a job's number are the same in all its sandboxes.
    """
    for first in random.sample(range(12_000, 32_000), 100):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + 40):
                stack.enter_context(socket.create_server(("", port)))
            return f"MpiParams=ports={first}-{first + 39}"
    raise OSError("there are no 40 free ports in a row")


@pytest.fixture(scope="module")
def slurm():
    with running("--extra-conf", ports()) as cluster:
        yield cluster


def checks_of(report, rank=0):
    return {check["name"]: check for check in report["checks"] if check["rank"] == rank}


def trouble_in(report):
    return [check for check in report["checks"] if check["status"] in ("warning", "error")]


@pytest.fixture
def shared(tmp_path):
    return tmp_path / "runs"


def test_a_step_of_two_nodes_is_all_right(slurm, shared):
    report = json.loads(slurm.client("srun", "-N2", "-n2", *DOCTOR, str(shared), "--json", "--all-tasks"))
    assert trouble_in(report) == []
    first, second = checks_of(report), checks_of(report, rank=1)
    assert first["cluster"]["values"] == {**second["cluster"]["values"], "resolver": "SlurmClusterResolver"}
    addresses = [task["address"] for task in first["cluster"]["values"]["tasks"]]
    assert [address.split(":")[0] for address in addresses] == ["n9", "n10"]
    assert second["task"]["values"]["port"] == int(addresses[1].split(":")[1])
    assert [checks["peers"]["status"] for checks in (first, second)] == ["ok", "ok"]
    assert first["shared"]["message"].startswith("all 2 tasks see")
    preemption = {"mode": "REQUEUE", "owner": "partition low", "grace_s": 5.0, "kill_wait_s": 5.0}
    assert preemption.items() <= first["preemption"]["values"].items()
    assert first["time-limit"]["values"]["limit_s"] == 3600.0
    assert not shared.exists()


def test_only_the_first_task_prints_where_all_is_right(slurm):
    output = slurm.client("srun", "-N3", "-n3", "--resv-ports=3", *DOCTOR)
    assert output.count(" peers ") == output.count(" versions ") == 1
    assert "2 of 2 other task(s) reached" in output
    assert "rank " not in output.replace("rank 0 of 3", "")


def in_batch(slurm, tmp_path, line, *, options="", step="srun"):
    """The report of a batch script with one ``#SBATCH`` line."""
    script, out = tmp_path / "job.sh", tmp_path / "out"
    command = " ".join([step, *DOCTOR, "--json"])
    script.write_text(f"#!/bin/sh\n#SBATCH -N2 -n2\n#SBATCH {line}\n{command}\n", encoding="utf-8")
    apart = ["-o", str(out), "-e", "/dev/null"]  # srun tells of a status that is not 0
    slurm.verb("exec", "sbatch", "--wait", *options.split(), *apart, str(script))
    return json.loads(out.read_text(encoding="utf-8"))


def test_a_batch_script_as_the_readme_has_it_is_all_right(slurm, tmp_path):
    report = in_batch(slurm, tmp_path, "--requeue --open-mode=append --signal=TERM@120")
    assert trouble_in(report) == []
    checks = checks_of(report)
    assert [checks[name]["status"] for name in ("step", "requeue", "signal", "open-mode")] == ["ok"] * 4
    assert checks["signal"]["values"] == {"signal": "TERM@120", "lead_s": 120.0}


def test_what_a_batch_script_lacks_is_told_with_the_cure(slurm, tmp_path):
    report = in_batch(slurm, tmp_path, "--requeue --signal=B:USR1@60")
    hints = {check["name"]: check["hint"] for check in trouble_in(report)}
    assert hints.keys() == {"signal", "open-mode"}
    assert hints["signal"].startswith("#SBATCH --signal=USR1@60 (60 s: ")
    assert hints["open-mode"] == "#SBATCH --open-mode=append"
    assert checks_of(report)["exec"]["hint"] == "put exec before it: exec srun ..."


def test_a_signal_to_a_script_in_whose_place_srun_stands_is_all_right(slurm, tmp_path):
    options = "--requeue --open-mode=append --signal=B:USR1@60"
    report = in_batch(slurm, tmp_path, options, step="exec srun")
    assert trouble_in(report) == []
    assert checks_of(report)["signal"]["status"] == "ok"
    assert "exec" not in checks_of(report)


def test_a_sigterm_to_the_batch_script_is_an_error_with_the_cure(slurm, tmp_path):
    (signal,) = trouble_in(in_batch(slurm, tmp_path, "--requeue --open-mode=append --signal=B:TERM@60"))
    assert (signal["status"], signal["name"]) == ("error", "signal")
    assert signal["hint"].startswith("#SBATCH --signal=USR1@60, or TERM@60 (60 s: ")


def test_a_sigterm_to_the_batch_script_kills_the_tasks_unheard(slurm, tmp_path):
    """As `--signal=B:TERM` sends it; what the error of the doctor says."""
    place = tmp_path / "job"
    job = Job(slurm, place, options=f"-N1 -n1 --chdir={place}")
    listen = "trap 'touch heard; exit 0' TERM; touch ready; while :; do sleep 0.1; done"
    job.script = f'#!/bin/sh\nexec srun sh -c "{listen}"\n'
    job.submit().wait_until((place / "ready").exists, "its start", 30)
    slurm.client("scancel", "--signal=TERM", "--batch", str(job.number))
    assert job.wait_for_end(60) == "FAILED"
    assert not (place / "heard").exists()


@pytest.mark.parametrize(
    ("start", "state", "is_heard"), [("exec srun", "COMPLETED", True), ("srun", "FAILED", False)]
)
def test_a_sigusr1_to_the_batch_script_is_heard_only_where_srun_stands_in_its_place(
    slurm, tmp_path, start, state, is_heard
):
    """As `--signal=B:USR1` sends it; what the warning of the doctor says, and where there is none."""
    place = tmp_path / "job"
    job = Job(slurm, place, options=f"-N1 -n1 --chdir={place}")
    listen = "trap 'touch heard; exit 0' USR1; touch ready; while :; do sleep 0.1; done"
    job.script = f'#!/bin/sh\n{start} sh -c "{listen}"\n'
    job.submit().wait_until((place / "ready").exists, "its start", 30)
    slurm.client("scancel", "--signal=USR1", "--batch", str(job.number))
    assert job.wait_for_end(60) == state
    assert (place / "heard").exists() is is_heard


def test_a_signal_of_sbatchs_command_line_is_not_to_be_seen(slurm, tmp_path):
    options = "--signal=USR1@60 --open-mode=append"  # but of this one sbatch tells the job
    report = in_batch(slurm, tmp_path, "--requeue", options=options)
    assert "not to be seen from a job" in checks_of(report)["signal"]["message"]
    assert trouble_in(report) == []


def test_outside_of_a_job_it_says_where_it_belongs(slurm, shared):
    report = json.loads(slurm.client(*DOCTOR, str(shared), "--json"))
    assert trouble_in(report) == []
    hint = checks_of(report)["slurm"]["hint"]
    assert f"`exec srun tf-preempt doctor {shared}` into the batch script" in hint


def test_a_job_that_is_not_to_be_requeued_is_told(slurm, tmp_path):
    report = in_batch(slurm, tmp_path, "--no-requeue --open-mode=append")
    assert [check["name"] for check in trouble_in(report)] == ["requeue"]


def test_a_script_without_srun_is_told_to_use_it(slurm, tmp_path):
    report = in_batch(slurm, tmp_path, "--requeue --open-mode=append", step="")
    assert [check["name"] for check in trouble_in(report)] == ["step"]
    checks = checks_of(report)
    assert checks["cluster"]["values"]["resolver"] == "LocalClusterResolver"
    assert "srun did not start this process" in checks["peers"]["message"]


def test_a_partition_that_is_not_preempted_is_told(slurm):
    report = json.loads(slurm.client("srun", "-p", "high", "-N1", "-n1", *DOCTOR, "--json"))
    preemption = checks_of(report)["preemption"]
    assert (preemption["status"], preemption["values"]["mode"]) == ("info", "OFF")


def test_a_save_that_does_not_fit_into_the_grace_is_an_error(slurm, shared):
    events = shared / "events"
    events.mkdir(parents=True)
    line = {
        "v": 1,
        "t": 1.0,
        "worker": 0,
        "incarnation": 0,
        "kind": "commit",
        "checkpoint": "c-1",
        "seconds": 11,
    }
    (events / "00000-00000.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
    done = slurm.verb("exec", "srun", "-N1", "-n1", *DOCTOR, str(shared), "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["exit_status"]) == (1, 1)
    (saves,) = trouble_in(report)
    assert (saves["name"], saves["values"]["notice_s"]) == ("saves", 10.0)
    assert "longer GraceTime of partition low" in saves["hint"]


def test_a_directory_of_its_own_on_each_node_is_an_error(slurm, tmp_path):
    own = f"TF_PREEMPT_DIR_OVERRIDE={tmp_path}/$SLURM_PROCID {' '.join(DOCTOR)} --json"
    (tmp_path / "0").mkdir()
    (tmp_path / "1").mkdir()
    done = slurm.verb("exec", "srun", "-N2", "-n2", "sh", "-c", own)
    assert done.returncode == 1
    assert [(check["rank"], check["name"]) for check in trouble_in(json.loads(done.stdout))] == [
        (0, "shared"),
        (1, "shared"),
    ]


def test_gpus_are_those_that_slurm_has_bound():
    with running("--gpus-per-node", "4", "--extra-conf", ports()) as slurm:
        step = ["srun", "-N1", "-n2", "--gpus-per-task=2", *DOCTOR, "--json", "--all-tasks"]
        report = json.loads(slurm.client(*step))
    gpus = [checks_of(report, rank)["gpus"] for rank in (0, 1)]
    assert [found["values"]["which"] for found in gpus] == [["0", "1"], ["2", "3"]]
    assert all("bound to this task by Slurm" in found["message"] for found in gpus)


def test_a_partition_without_grace_and_a_cluster_that_kills_all_with_one_are_warned_of():
    with running("--grace-time", "0", "--extra-conf", "KillOnBadExit=1") as slurm:
        report = json.loads(slurm.client("srun", "-N1", "-n1", *DOCTOR, "--json"))
    trouble = {check["name"]: check for check in trouble_in(report)}
    assert {name: check["status"] for name, check in trouble.items()} == {
        "preemption": "warning",
        "bad-exit": "warning",
    }
    assert "GraceTime=0" in trouble["preemption"]["message"]
    assert "srun --kill-on-bad-exit=0" in trouble["bad-exit"]["hint"]
    assert report["exit_status"] == 0
