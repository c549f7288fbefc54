"""Steps of a real Slurm: what each task computes, compared with where it really runs.

The nodes are n9, n10 and n11, whose order is not that of the alphabet.
"""

import json
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tf_preempt._hostlist import expand_hostlist
from tf_preempt.errors import SlurmError

HERE = Path(__file__).parent
PLACEMENT = [sys.executable, str(HERE / "print_placement.py")]


def tasks_of(output):
    return sorted(map(json.loads, output.splitlines()), key=lambda task: task["rank"])


@pytest.mark.parametrize(
    ("options", "hosts"),
    [
        ("-N1 -n2", ["n9", "n9"]),
        ("-N2 -n2", ["n9", "n10"]),
        ("-N3 -n3", ["n9", "n10", "n11"]),
        ("-N2 -n4 --ntasks-per-node=2", ["n9", "n9", "n10", "n10"]),
        ("-N3 -n5", ["n9", "n9", "n9", "n10", "n11"]),
        ("-N3 -n5 -m block:cyclic", ["n9", "n9", "n9", "n10", "n11"]),
        ("-N2 -n4 --ntasks-per-node=2 -m cyclic", ["n9", "n10", "n9", "n10"]),
        ("-N3 -n5 -m cyclic:block", ["n9", "n10", "n11", "n9", "n9"]),
        ("-N3 -n7 -m plane=2", ["n9", "n9", "n10", "n10", "n11", "n9", "n9"]),
        ("-N2 -n4 -w n[10-11] --ntasks-per-node=2", ["n10", "n10", "n11", "n11"]),
    ],
)
def test_each_task_knows_where_all_of_them_run(slurm, options, hosts):
    tasks = tasks_of(slurm.client("srun", *options.split(), *PLACEMENT))
    assert [task["hostname"] for task in tasks] == [task["nodename"] for task in tasks] == hosts
    addresses = tasks[0]["addresses"]
    assert [task["addresses"] for task in tasks] == [addresses] * len(hosts)
    assert [address.split(":")[0] for address in addresses] == hosts
    assert len({address.split(":")[1] for address in addresses}) == len(hosts)


def test_a_step_on_part_of_a_job(slurm):
    step = ["srun", "-N1", "-n2", "-w", "n10", *PLACEMENT]
    tasks = tasks_of(slurm.client("salloc", "-N3", "--ntasks-per-node=2", *step))
    assert [task["hostname"] for task in tasks] == ["n10", "n10"]
    assert [address.split(":")[0] for address in tasks[0]["addresses"]] == ["n10", "n10"]


@pytest.mark.parametrize(
    "options", ["-N2 -n3", "-N2 -n3 --resv-ports=3", "-N2 -n4 --ntasks-per-node=2 --resv-ports=2"]
)
def test_ports_that_slurm_reserved_are_used(slurm_that_reserves_ports, options):
    tasks = tasks_of(slurm_that_reserves_ports.client("srun", *options.split(), *PLACEMENT))
    reserved = tasks[0]["reserved"]
    assert set(reserved) <= set(range(12_000, 12_100))
    assert {int(address.split(":")[1]) for address in tasks[0]["addresses"]} <= set(reserved)
    assert len(set(tasks[0]["addresses"])) == len(tasks)
    assert [task["addresses"] for task in tasks] == [tasks[0]["addresses"]] * len(tasks)


def test_a_job_submitted_from_inside_a_step_does_not_take_that_step_for_its_own(slurm, tmp_path):
    script, out = tmp_path / "job.sh", tmp_path / "out"
    ask = (
        "import os; from tf_preempt._slurm import SlurmJob; print(SlurmJob.from_environ(os.environ).step_id)"
    )
    script.write_text(
        "#!/bin/sh\necho inherited $SLURM_STEP_NODELIST\n"
        f"{sys.executable} -c '{ask}'\nsrun {' '.join(PLACEMENT)}\n",
        encoding="utf-8",
    )
    submit = f"sbatch --wait -N2 -n2 -w n[9-10] -o {out} {script}"
    slurm.client("srun", "-N1", "-n1", "-w", "n11", "sh", "-c", submit)
    inherited, step_id, *tasks = out.read_text(encoding="utf-8").splitlines()
    assert (inherited, step_id) == ("inherited n11", "None")
    assert [task["hostname"] for task in tasks_of("\n".join(tasks))] == ["n9", "n10"]


def test_an_arbitrary_distribution_ends_every_task_with_the_reason(slurm, tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("n11\nn9\n", encoding="utf-8")
    step = f"SLURM_HOSTFILE={hosts} srun -N2 -n2 --distribution=arbitrary {' '.join(PLACEMENT)}"
    done = slurm.verb("exec", "sh", "-c", step)
    assert done.returncode != 0
    assert done.stderr.count("SLURM_DISTRIBUTION='arbitrary' on 2 nodes") == 2


def test_workers_on_two_nodes_meet_through_the_resolver(slurm):
    step = ["srun", "-N2", "-n2", sys.executable, str(HERE / "all_reduce.py")]
    tasks = [json.loads(line) for line in slurm.client(*step, timeout_s=150).splitlines() if line[:1] == "{"]
    tasks.sort(key=lambda task: task["task"])
    assert [task["task"] for task in tasks] == [["worker", 0], ["worker", 1]]
    assert [task["hostname"] for task in tasks] == [task["nodename"] for task in tasks] == ["n9", "n10"]
    assert [address.split(":")[0] for address in tasks[0]["cluster"]["worker"]] == ["n9", "n10"]
    assert {task["resolver"] for task in tasks} == {"SlurmClusterResolver"}
    assert [task["total"] for task in tasks] == [1.0, 1.0]


LITERALS = st.sampled_from(["n", "rack", "gpu-a", "r1c", "x.y"])
# Small ranges: brackets multiply, and scontrol expands whatever comes out.
NUMBERS = st.one_of(st.integers(0, 12).map(str), st.sampled_from(["00", "01", "007", "010"]))
RANGES = st.one_of(NUMBERS, st.tuples(NUMBERS, NUMBERS).map("-".join))
BRACKETS = st.lists(RANGES, min_size=1, max_size=2).map(lambda ranges: f"[{','.join(ranges)}]")
NAMES = st.lists(st.tuples(LITERALS, BRACKETS), min_size=1, max_size=3).map(
    lambda pieces: "".join(literal + bracket for literal, bracket in pieces)
)
LISTS = st.lists(st.one_of(NAMES, LITERALS), min_size=1, max_size=3).map(",".join)


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    database=None,
)
@given(text=LISTS)
def test_host_lists_agree_with_scontrol(slurm, text):
    done = slurm.scontrol("show", "hostnames", text)
    refused = "Invalid" in done.stderr or "Invalid" in done.stdout
    try:
        hosts = expand_hostlist(text)
    except SlurmError:
        assert refused
    else:
        assert not refused
        assert hosts == done.stdout.splitlines()
