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
ACCELERATORS = [sys.executable, str(HERE / "print_accelerators.py")]


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


ASK_RUN = (
    "import os; from tf_preempt._slurm import SlurmRun; print(SlurmRun.from_environ(os.environ).requeue_as)"
)


def test_a_job_submitted_from_an_arrays_element_is_not_requeued_as_that(slurm, tmp_path):
    inner, outer = tmp_path / "inner.sh", tmp_path / "outer.sh"
    ask = f"echo $SLURM_ARRAY_JOB_ID $SLURM_JOB_ID $({sys.executable} -c '{ASK_RUN}')\n"
    inner.write_text("#!/bin/sh\n" + ask, encoding="utf-8")
    outer.write_text(f"#!/bin/sh\n{ask}sbatch -Q --wait -o {tmp_path}/out-inner {inner}\n", encoding="utf-8")
    slurm.client("sbatch", "--wait", "--array=3", "-o", str(tmp_path / "out-outer"), str(outer))
    array, job, name = (tmp_path / "out-outer").read_text(encoding="utf-8").splitlines()[0].split()
    assert (array, name) == (job, f"{array}_3")
    inherited, job, name = (tmp_path / "out-inner").read_text(encoding="utf-8").split()
    assert (inherited, name) == (array, job)
    assert job != array


ASK_END = """
import os, time
from tf_preempt._slurm_control import SlurmControl
print(SlurmControl(os.environ).job(int(os.environ["SLURM_JOB_ID"])).end_time - time.time())
"""


def test_the_end_of_a_job_is_read_in_any_zone_and_format(slurm, tmp_path):
    script = tmp_path / "ask.py"
    script.write_text(ASK_END, encoding="utf-8")
    user = ["env", "TZ=America/New_York", "SLURM_TIME_FORMAT=relative"]
    left_s = float(slurm.client("srun", "-t", "10", "-J", "EndTime=x", *user, sys.executable, str(script)))
    assert 480.0 < left_s < 605.0


@pytest.mark.parametrize(
    ("lines", "hosts"),
    [
        (["n11", "n9", "n11"], ["n11", "n9", "n11"]),
        (["# ranks", "n10*2  # two", "n9,n11"], ["n10", "n10", "n9", "n11"]),
    ],
)
def test_an_arbitrary_distribution_is_followed_through_its_host_file(slurm, tmp_path, lines, hosts):
    path = tmp_path / "hosts"
    path.write_text("\n".join([*lines, "n9"]), encoding="utf-8")  # one more than there are ranks
    tmp_path.chmod(0o755)
    step = f"SLURM_HOSTFILE={path} srun -n{len(hosts)} --distribution=arbitrary {' '.join(PLACEMENT)}"
    tasks = tasks_of(slurm.client("sh", "-c", step))
    assert [task["nodename"] for task in tasks] == hosts
    for task in tasks:
        assert [address.split(":")[0] for address in task["addresses"]] == hosts


def test_an_arbitrary_distribution_without_a_host_file_ends_every_task_with_the_reason(slurm):
    done = slurm.verb("exec", "srun", "-w", "n11,n9", "-n2", "--distribution=arbitrary", *PLACEMENT)
    assert done.returncode != 0
    assert done.stderr.count("'arbitrary' on 2 nodes, and SLURM_HOSTFILE is not set") == 2


@pytest.fixture
def meeting(tmp_path):
    """A directory for tasks that wait for each other."""
    place = tmp_path / "meeting"
    place.mkdir()
    return place


def step_of(first, second, program):
    return ["srun", "-Q", *first.split(), *program, ":", *second.split(), *program]


@pytest.mark.parametrize(
    ("first", "second", "hosts", "distributions"),
    [
        # What the tasks are told is the last component's distribution, which is not the first one's.
        ("-N2 -n4 -m cyclic", "-n2 -m block", "n9 n10 n9 n9 n11 n11", ["cyclic", "block"]),
        # Their list of nodes is n[9-11], but the ranks begin on n11.
        ("-w n11 -n2", "-N2 -n4", "n11 n11 n9 n9 n9 n10", ["block", "block"]),
        ("-w n10 -n2", "-w n9,n11 -n2", "n10 n10 n9 n11", []),
    ],
)
def test_components_that_variables_do_not_tell_apart_are_asked_for(
    slurm, meeting, first, second, hosts, distributions
):
    step = step_of(first, second, [*PLACEMENT, str(meeting)])
    tasks = tasks_of(slurm.client(*step))
    assert [task["nodename"] for task in tasks] == hosts.split()
    assert [task["addresses"] for task in tasks] == [tasks[0]["addresses"]] * len(tasks)
    assert [address.split(":")[0] for address in tasks[0]["addresses"]] == hosts.split()
    assert [task["distributions"] for task in tasks] == [distributions] * len(tasks)


def test_components_that_cannot_be_asked_for_are_refused_with_the_cure(slurm, tmp_path):
    scontrol = tmp_path / "scontrol"
    scontrol.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    scontrol.chmod(0o755)
    cut_off = ["env", f"PATH={tmp_path}", *PLACEMENT]
    done = slurm.verb("exec", *step_of("-N2 -n4 -m cyclic", "-n2 -m block", cut_off))
    assert done.stderr.count("could not be asked; all are taken to have the distribution block") == 6
    refusals = [line for line in done.stderr.splitlines() if "By block distribution" in line]
    assert len(refusals) == 4
    assert done.stderr.count("\nHINT: Let the tasks run scontrol") == 4


HETEROGENEOUS = """#!/bin/sh
#SBATCH -N2 --ntasks-per-node=2
#SBATCH hetjob
#SBATCH -N1 -n2
"""


@pytest.mark.parametrize(
    ("step", "hosts"),
    [
        ("srun --het-group=0,1 {}", ["n9", "n9", "n10", "n10", "n11", "n11"]),
        # All that the tasks are told about the distribution is the last component's: cyclic.
        ("srun -n4 {0} : -n1 {0}", ["n9", "n9", "n10", "n10", "n11"]),
        ("srun --het-group=1 {}", ["n11", "n11"]),
        ("srun {}", ["n9", "n9", "n10", "n10"]),
    ],
)
def test_each_task_of_a_heterogeneous_job_knows_where_all_run(slurm, tmp_path, meeting, step, hosts):
    script, out = tmp_path / "job.sh", tmp_path / "out"
    program = " ".join([*PLACEMENT, str(meeting)])
    script.write_text(HETEROGENEOUS + step.format(program) + "\n", encoding="utf-8")
    slurm.client("sbatch", "--wait", "-o", str(out), str(script))
    tasks = tasks_of(out.read_text(encoding="utf-8"))
    assert [task["nodename"] for task in tasks] == hosts
    assert [task["addresses"] for task in tasks] == [tasks[0]["addresses"]] * len(hosts)
    assert [address.split(":")[0] for address in tasks[0]["addresses"]] == hosts


@pytest.mark.parametrize(
    ("options", "seen", "own"),
    [
        ("-n2 --gpus-per-node=4", ["0,1,2,3", "0,1,2,3"], ["0,1", "2,3"]),
        ("-n3 --gres=gpu:3", ["0,1,2"] * 3, ["0", "1", "2"]),
        ("-n2 --gpus-per-task=2", ["0,1", "2,3"], ["0,1", "2,3"]),
        ("-n2 --gpus-per-node=4 --gpu-bind=map_gpu:3,1", ["3", "1"], ["3", "1"]),
        ("-n2 --gpus-per-node=4 --gpu-bind=mask_gpu:3,12", ["0,1", "2,3"], ["0,1", "2,3"]),
        ("-n2 --gpus-per-node=4 --gpu-bind=single:2", ["0", "0"], ["0", "0"]),
        ("-n1 --gpus-per-node=2", ["0,1"], ["0,1"]),
        ("-n2", [None, None], [None, None]),
    ],
)
def test_each_task_has_the_gpus_that_slurm_bound_to_it_or_its_share(slurm_with_gpus, options, seen, own):
    tasks = tasks_of(slurm_with_gpus.client("srun", "-N1", *options.split(), *PLACEMENT))
    assert [(task["seen"], task["own"]) for task in tasks] == list(zip(seen, own, strict=True))


def test_a_step_with_a_part_of_the_jobs_gpus_divides_that_part(slurm_with_gpus):
    step = ["srun", "-n2", "--gres=gpu:2", *PLACEMENT]
    tasks = tasks_of(slurm_with_gpus.client("salloc", "-N1", "-n4", "--gpus-per-node=4", *step))
    assert [(task["seen"], task["own"]) for task in tasks] == [("0,1", "0"), ("0,1", "1")]


@pytest.mark.parametrize(
    ("options", "step", "counts"),
    [
        ("-N2 -n2 --gpus=6", "", [4, 2]),
        ("-N2 -n3 --gpus=6", "", [2, 2, 1]),
        ("-N2 -n3 --gpus-per-task=2", "", [2, 2, 2]),
        ("-N1 -n1 -w n9 : -N1 -n1 -w n10 --gpus=2", "--het-group=0,1", [0, 2]),
    ],
)
def test_each_task_knows_the_gpus_of_tasks_on_nodes_with_others(
    slurm_with_uneven_gpus, options, step, counts
):
    words = ["salloc", "-Q", *options.split(), "srun", *step.split(), *ACCELERATORS]
    output = slurm_with_uneven_gpus.client(*words, timeout_s=150)
    tasks = tasks_of("".join(line for line in output.splitlines(True) if line[:1] == "{"))
    assert [task["own"] for task in tasks] == counts
    assert [task["counts"] for task in tasks] == [counts] * len(counts)
    assert [task["unknown"] for task in tasks] == [[]] * len(counts)


def test_a_step_with_a_part_of_the_jobs_gpus_takes_other_nodes_to_be_as_its_own(slurm_with_uneven_gpus):
    step = ["srun", "-N2", "-n2", "--gres=gpu:1", *ACCELERATORS]
    output = slurm_with_uneven_gpus.client("salloc", "-Q", "-N2", "-n2", "--gpus=6", *step, timeout_s=150)
    tasks = tasks_of("".join(line for line in output.splitlines(True) if line[:1] == "{"))
    assert [task["counts"] for task in tasks] == [[1, 1], [1, 1]]
    assert ["but this step 1" in line for task in tasks for line in task["unknown"]] == [True, True]


def test_a_step_that_overrides_what_the_job_asked_for_is_believed(slurm):
    step = ["srun", "-N1", "-n3", "--overcommit", *PLACEMENT]
    tasks = tasks_of(slurm.client("salloc", "-N2", "--ntasks-per-node=1", *step))
    assert len({task["nodename"] for task in tasks}) == 1
    assert len(tasks[0]["addresses"]) == 3


def test_two_jobs_on_the_same_nodes_choose_different_ports(slurm):
    jobs = [tasks_of(slurm.client("srun", "-N2", "-n2", *PLACEMENT)) for _ in range(2)]
    ports = [address.split(":")[1] for tasks in jobs for address in tasks[0]["addresses"]]
    assert len(set(ports)) == 4


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
