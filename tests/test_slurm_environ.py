"""What is made of Slurm's variables: those of recorded jobs, and wrong values one by one."""

import json
from pathlib import Path

import pytest

from tf_preempt._slurm import SlurmJob, SlurmRun, is_slurm_job
from tf_preempt.errors import SlurmError

RECORDED = sorted((Path(__file__).parent / "data" / "slurm_env").glob("*.json"))
STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "2",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_NODELIST": "n[9-10]",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
    "SLURM_DISTRIBUTION": "block",
    "SLURMD_NODENAME": "n10",
}


def recorded_tasks():
    return [
        pytest.param(name, environ, id=f"{path.stem}-{name}")
        for path in RECORDED
        for name, environ in json.loads(path.read_text(encoding="utf-8"))["tasks"].items()
    ]


def test_all_recorded_jobs_are_there():
    assert len(RECORDED) == 31
    assert len(recorded_tasks()) == 127


@pytest.mark.parametrize(("name", "environ"), recorded_tasks())
def test_reads_every_recorded_process(name, environ):
    job = SlurmJob.from_environ(environ)
    assert job.job_id == int(environ["SLURM_JOB_ID"])
    assert job.nodename == environ.get("SLURMD_NODENAME")
    assert job.restart_count == 0
    if name.startswith(("batch", "salloc")):
        assert job.step_id is None
        assert job.procid == 0
        return
    assert job.step_id == int(environ["SLURM_STEP_ID"])
    assert (job.procid, job.nodeid, job.localid) == tuple(
        int(environ[f"SLURM_{key}"]) for key in ("PROCID", "NODEID", "LOCALID")
    )
    assert job.nodes[job.nodeid] == job.nodename
    assert job.gtids[job.localid] == job.procid
    assert len(job.gtids) == job.tasks_per_node[job.nodeid]
    assert sum(job.tasks_per_node) == job.ntasks == int(environ["SLURM_NTASKS"])


def test_reads_the_step_and_not_the_job():
    job = SlurmJob.from_environ({**STEP, "SLURM_NODELIST": "n[1-99]", "SLURM_JOB_NUM_NODES": "99"})
    assert (job.nodes, job.ntasks) == (("n9", "n10"), 3)


@pytest.mark.parametrize(
    ("change", "attribute", "value"),
    [
        ({"SLURM_DISTRIBUTION": "Cyclic:block,NoPack"}, "distribution", "cyclic"),
        ({"SLURM_DISTRIBUTION": None}, "distribution", ""),
        ({"SLURM_DIST_PLANESIZE": "4"}, "plane_size", 4),
        ({"SLURM_GTIDS": "0,3,4"}, "gtids", (0, 3, 4)),
        ({"SLURM_RESTART_COUNT": "2"}, "restart_count", 2),
        ({"SLURM_RESTART_COUNT": "0"}, "restart_count", 0),
        ({"SLURM_STEP_ID": None, "SLURM_STEPID": "5"}, "step_id", 5),
        ({"SLURM_STEP_ID": "4294967290"}, "step_id", None),
        ({"SLURM_STEP_ID": "4294967289"}, "step_id", 4294967289),
        ({"SLURMD_NODENAME": "n8"}, "step_id", None),
        ({"SLURM_STEP_GPUS": "0,3"}, "step_gpus", ("0", "3")),
        ({"SLURM_GPUS_ON_NODE": "4"}, "gpus_on_node", 4),
        ({"CUDA_VISIBLE_DEVICES": ""}, "gpu_lists", (("CUDA_VISIBLE_DEVICES", ""),)),
        ({"ZE_AFFINITY_MASK": "0.1"}, "gpu_lists", (("ZE_AFFINITY_MASK", "0.1"),)),
        ({}, "gpu_lists", ()),
        ({"SLURMD_TRES_BIND": "gpu:per_task:1"}, "gpus_bound", True),
        ({"SLURMD_TRES_BIND": "gpu:verbose,single:2"}, "gpus_bound", True),
        ({"SLURMD_TRES_BIND": "gpu:none"}, "gpus_bound", False),
        ({"SLURMD_TRES_BIND": "gpu:closest"}, "gpus_bound", False),
        ({}, "gpus_per_task", None),
        ({"SLURM_GPUS_PER_TASK": "2"}, "gpus_per_task", 2),
        ({"SLURM_GPUS_PER_TASK": "a100:2"}, "gpus_per_task", 2),
        ({"SLURM_GPUS_PER_TASK": "a100:2,v100:1"}, "gpus_per_task", None),
        ({"SLURM_HOSTFILE": "/hosts"}, "hostfile", "/hosts"),
        ({"SLURM_STEP_RESV_PORTS": "12000"}, "resv_ports", (12000,)),
        ({"SLURM_STEP_RESV_PORTS": "12000-12002"}, "resv_ports", (12000, 12001, 12002)),
        ({"SLURM_STEP_RESV_PORTS": "[12000-12001,12010]"}, "resv_ports", (12000, 12001, 12010)),
        ({"SLURM_STEP_RESV_PORTS": "(null)"}, "resv_ports", ()),
        ({"SLURM_NODEID": None}, "nodeid", None),
        ({"SLURMD_NODENAME": None}, "nodename", None),
        ({"SLURM_STEP_NUM_TASKS": None, "SLURM_NTASKS": "3"}, "ntasks", 3),
    ],
)
def test_reads_a_variable(change, attribute, value):
    assert getattr(SlurmJob.from_environ(changed(change)), attribute) == value


@pytest.mark.parametrize(
    ("change", "tasks_per_node"),
    [
        ({"SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS_PER_NODE": "2"}, (2, 2)),
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}, (1, 1)),
        ({"SLURM_STEP_NODELIST": "n10"}, (3,)),
        ({}, None),
    ],
)
def test_without_the_steps_own_counts(change, tasks_per_node):
    job = SlurmJob.from_environ(changed({"SLURM_STEP_TASKS_PER_NODE": None, **change}))
    assert job.tasks_per_node == tasks_per_node


def test_the_steps_own_counts_win_over_what_the_job_asked_for():
    # As srun leaves them: it warns that it ignores --ntasks-per-node=1.
    job = SlurmJob.from_environ(changed({"SLURM_NTASKS_PER_NODE": "1"}))
    assert job.tasks_per_node == (2, 1)


@pytest.mark.parametrize(
    ("nodes", "groups", "sizes"),
    [
        ("n[9-10],a1", ["n[9-10]", "a1"], (2, 1)),
        ("n10,a1", ["n[9-10]", "a1"], (1, 1)),
        ("n10,b1", ["n[9-10]", "a1", "b1"], (1, 1)),
        ("n[9-10]", ["n[9-10]", "a1"], (2,)),
        ("a1,n[9-10]", ["n[9-10]", "a1"], (2, 1)),
        ("n[9-11]", ["n[9-10]", "a1"], ()),
        ("n[9-10]", ["n[9-10]", "n10"], ()),
        ("n[9-10]", [], ()),
    ],
)
def test_knows_which_nodes_belong_to_which_component(nodes, groups, sizes):
    lists = {f"SLURM_JOB_NODELIST_HET_GROUP_{group}": text for group, text in enumerate(groups)}
    named = {"SLURM_STEP_NODELIST": nodes, "SLURM_STEP_TASKS_PER_NODE": None, "SLURMD_NODENAME": None}
    job = SlurmJob.from_environ(
        changed({**named, **lists, "SLURM_HET_SIZE": str(len(groups) or 999_999_999)})
    )
    assert job.group_nodes == sizes


def named_groups(word, *groups, job_id=None):
    """Variables of the components of a heterogeneous job, in one of the two ways they are named."""
    owner = {} if job_id is None else {f"SLURM_JOB_ID_{word}_GROUP_0": str(job_id)}
    return owner | {f"SLURM_JOB_NODELIST_{word}_GROUP_{group}": text for group, text in enumerate(groups)}


OWN = ("n11", "n[9,12]")


# SLURM_STEP_NODELIST is n[9,11-12], of which n11 is the first component's.
@pytest.mark.parametrize(
    ("groups", "size", "nodes", "counts", "sizes"),
    [
        (named_groups("HET", *OWN, job_id=7), 2, "n11 n9 n12", (2, 3, 1), (1, 2)),
        # srun that makes the job itself names them so in Slurm 22.05.
        (named_groups("PACK", *OWN, job_id=7), 2, "n11 n9 n12", (2, 3, 1), (1, 2)),
        # Inherited from the job that has submitted this one: all of them, or some.
        (named_groups("HET", *OWN, job_id=6), 1, "n9 n11 n12", (3, 2, 1), ()),
        (
            named_groups("HET", "n[9,12]", "n11", job_id=6) | named_groups("PACK", *OWN, job_id=7),
            2,
            "n11 n9 n12",
            (2, 3, 1),
            (1, 2),
        ),
        ({}, 2, "n9 n11 n12", (3, 2, 1), ()),
    ],
)
def test_nodes_of_a_heterogeneous_step_come_component_by_component(groups, size, nodes, counts, sizes):
    step = {
        "SLURM_STEP_NODELIST": "n[9,11-12]",
        "SLURM_STEP_TASKS_PER_NODE": "3,2,1",
        "SLURMD_NODENAME": None,
    }
    numbers = {"SLURM_STEP_NUM_TASKS": "6", "SLURM_HET_SIZE": "2"}
    job = SlurmJob.from_environ(changed({**step, **numbers, **groups}))
    assert (job.het_size, job.nodes, job.tasks_per_node) == (size, tuple(nodes.split()), counts)
    assert job.group_nodes == sizes


def test_counts_that_are_not_for_the_nodes_of_a_heterogeneous_step_are_refused():
    step = {"SLURM_STEP_NODELIST": "n[9,11-12]", "SLURM_STEP_NUM_TASKS": "6", "SLURM_HET_SIZE": "2"}
    with pytest.raises(SlurmError, match="are for 2 nodes, but the step has 3"):
        SlurmJob.from_environ(
            changed(
                {
                    **step,
                    **named_groups("HET", *OWN, job_id=7),
                    "SLURM_STEP_TASKS_PER_NODE": "3(x2)",
                    "SLURMD_NODENAME": None,
                }
            )
        )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"SLURM_JOB_ID": None}, ["SLURM_JOB_ID is not set"]),
        ({"SLURM_JOB_ID": "seven"}, ["SLURM_JOB_ID='seven'", "whole number of at least 1"]),
        ({"SLURM_JOB_ID": "0"}, ["SLURM_JOB_ID='0'", "at least 1"]),
        ({"SLURM_STEP_ID": "-1"}, ["SLURM_STEP_ID='-1'", "whole number"]),
        ({"SLURM_PROCID": None}, ["SLURM_PROCID is not set", "rank"]),
        ({"SLURM_PROCID": "1.0"}, ["SLURM_PROCID='1.0'", "whole number"]),
        ({"SLURM_PROCID": "3"}, ["SLURM_PROCID=3", "3 tasks", "SLURM_STEP_NUM_TASKS"]),
        ({"SLURM_NODEID": "x"}, ["SLURM_NODEID='x'"]),
        ({"SLURM_LOCALID": "x"}, ["SLURM_LOCALID='x'"]),
        ({"SLURM_GTIDS": "0;1"}, ["SLURM_GTIDS='0;1'", "separated by commas"]),
        ({"SLURM_STEP_NUM_TASKS": None}, ["SLURM_STEP_NUM_TASKS is not set"]),
        ({"SLURM_STEP_NUM_TASKS": "0"}, ["SLURM_STEP_NUM_TASKS='0'", "at least 1"]),
        ({"SLURM_STEP_NODELIST": None}, ["SLURM_STEP_NODELIST is not set", "nodes of this step"]),
        ({"SLURM_STEP_NODELIST": "n[9-"}, ["SLURM_STEP_NODELIST='n[9-'", "at position 1"]),
        ({"SLURM_STEP_NODELIST": "n9,n9"}, ["SLURM_STEP_NODELIST='n9,n9'", "each node once"]),
        ({"SLURM_STEP_TASKS_PER_NODE": "2+1"}, ["SLURM_STEP_TASKS_PER_NODE='2+1'", "at position 0"]),
        ({"SLURM_STEP_TASKS_PER_NODE": "2"}, ["[2]", "1 nodes", "has 2", "n9,n10"]),
        ({"SLURM_STEP_TASKS_PER_NODE": "2(x2)"}, ["[2, 2]", "add up to 4", "has 3"]),
        (
            {"SLURM_STEP_TASKS_PER_NODE": None, "SLURM_NTASKS_PER_NODE": "2"},
            ["SLURM_NTASKS_PER_NODE=2 on 2 node(s) makes 4 tasks", "has 3 (SLURM_STEP_NUM_TASKS)"],
        ),
        (
            {"SLURM_STEP_TASKS_PER_NODE": None, "SLURM_NTASKS_PER_NODE": "2", "SLURM_STEP_NODELIST": "n10"},
            ["SLURM_NTASKS_PER_NODE=2 on 1 node(s) makes 2 tasks", "has 3 (SLURM_STEP_NUM_TASKS)"],
        ),
        ({"SLURM_NTASKS": "1"}, ["SLURM_NTASKS=1", "SLURM_STEP_NUM_TASKS=3", "unset ${!SLURM_STEP_@}"]),
        ({"SLURM_NNODES": "3", "SLURM_STEP_NUM_NODES": "2"}, ["SLURM_NNODES=3", "SLURM_STEP_NUM_NODES=2"]),
        ({"SLURM_DIST_PLANESIZE": "0"}, ["SLURM_DIST_PLANESIZE='0'", "at least 1"]),
        ({"SLURM_RESTART_COUNT": "one"}, ["SLURM_RESTART_COUNT='one'"]),
        ({"SLURM_GPUS_ON_NODE": "all"}, ["SLURM_GPUS_ON_NODE='all'"]),
        ({"SLURM_STEP_RESV_PORTS": "9-1"}, ["SLURM_STEP_RESV_PORTS='9-1'", "ports between 1 and 65535"]),
        ({"SLURM_STEP_RESV_PORTS": "70000"}, ["SLURM_STEP_RESV_PORTS='70000'"]),
        ({"SLURM_STEP_RESV_PORTS": "http"}, ["SLURM_STEP_RESV_PORTS='http'"]),
    ],
)
def test_a_wrong_variable_is_named_with_its_value(change, words):
    with pytest.raises(SlurmError) as caught:
        SlurmJob.from_environ(changed(change))
    assert [word for word in words if word not in str(caught.value)] == []
    assert "HINT:" in str(caught.value)


@pytest.mark.parametrize(
    ("environ", "ntasks"),
    [
        ({"SLURM_JOB_NODELIST": "n[1-3]"}, 3),
        ({"SLURM_NODELIST": "n[1-2]", "SLURM_NTASKS": "8"}, 8),
        ({"SLURM_NODELIST": "n1", "SLURM_NPROCS": "2"}, 2),
        ({}, 1),
    ],
)
def test_a_batch_script_knows_how_many_tasks_srun_would_start(environ, ntasks):
    job = SlurmJob.from_environ({"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", **environ})
    assert (job.step_id, job.ntasks) == (None, ntasks)


def test_says_whether_there_is_a_job():
    assert is_slurm_job(STEP)
    assert not is_slurm_job({"PATH": "/bin", "SLURM_CONF": "/etc/slurm/slurm.conf"})


@pytest.mark.parametrize(("name", "environ"), recorded_tasks())
def test_every_recorded_process_knows_which_run_of_which_job_it_belongs_to(name, environ):
    run = SlurmRun.from_environ(environ)
    assert (run.job_id, run.restart_count, run.end_time) == (int(environ["SLURM_JOB_ID"]), 0, None)
    is_array = environ.get("SLURM_ARRAY_JOB_ID") == environ["SLURM_JOB_ID"]
    element = f"_{environ['SLURM_ARRAY_TASK_ID']}" if is_array else ""
    assert run.requeue_as == environ["SLURM_JOB_ID"] + element


@pytest.mark.parametrize(
    ("change", "attribute", "value"),
    [
        ({}, "job_id", 7),
        ({}, "requeue_as", "7"),
        # The last element has the array's number, by which Slurm would requeue all elements.
        ({"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}, "requeue_as", "7_3"),
        ({"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "0"}, "requeue_as", "7_0"),
        ({"SLURM_ARRAY_JOB_ID": "6", "SLURM_ARRAY_TASK_ID": "3"}, "requeue_as", "7"),
        ({"SLURM_ARRAY_JOB_ID": "7"}, "requeue_as", "7"),
        ({"SLURM_HET_SIZE": "2", "SLURM_JOB_ID_HET_GROUP_0": "7"}, "requeue_as", "7"),
        # Inherited from the heterogeneous job that has submitted this one.
        ({"SLURM_HET_SIZE": "2", "SLURM_JOB_ID_HET_GROUP_0": "5"}, "requeue_as", "7"),
        ({"SLURM_HET_JOB_ID": "5"}, "requeue_as", "7"),
        ({}, "restart_count", 0),
        ({"SLURM_RESTART_COUNT": "0"}, "restart_count", 0),
        ({"SLURM_RESTART_COUNT": "3"}, "restart_count", 3),
        ({}, "end_time", None),
        ({"SLURM_JOB_END_TIME": "1796029063"}, "end_time", 1796029063),
        ({"SLURM_JOB_END_TIME": ""}, "end_time", None),
    ],
)
def test_reads_which_run_it_is(change, attribute, value):
    assert getattr(SlurmRun.from_environ(changed(change)), attribute) == value


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"SLURM_JOB_ID": None}, "SLURM_JOB_ID is not set"),
        ({"SLURM_JOB_ID": "7_3"}, "SLURM_JOB_ID='7_3' is malformed"),
        ({"SLURM_ARRAY_JOB_ID": "x"}, "SLURM_ARRAY_JOB_ID='x' is malformed"),
        ({"SLURM_RESTART_COUNT": "-1"}, "SLURM_RESTART_COUNT='-1' is malformed"),
        (
            {"SLURM_JOB_END_TIME": "0"},
            "SLURM_JOB_END_TIME='0' is malformed: expected a whole number of at least 1",
        ),
    ],
)
def test_a_run_with_a_wrong_variable_is_refused(change, words):
    with pytest.raises(SlurmError, match=words) as caught:
        SlurmRun.from_environ(changed(change))
    assert caught.value.hint


def changed(change):
    merged = {**STEP, **change}
    return {name: value for name, value in merged.items() if value is not None}
