import pytest

from tf_preempt._slurm import SlurmJob
from tf_preempt.cli.doctor.finding import Status
from tf_preempt.cli.doctor.gpus import listed_gpus, step_gpus

CUDA = "CUDA_VISIBLE_DEVICES"


def job(lists, *, procid=0, tasks=2, on_node=None, bound=False):
    return SlurmJob(
        job_id=5,
        step_id=0,
        procid=procid,
        ntasks=tasks,
        nodes=("n0",),
        tasks_per_node=(tasks,),
        gpu_lists=tuple(lists.items()),
        gpus_on_node=on_node,
        gpus_bound=bound,
    )


@pytest.mark.parametrize(
    ("step", "names", "said"),
    [
        (job({}), (), "Slurm gives this step no GPUs"),
        (job({CUDA: "0,1"}, on_node=2), ("0",), f"{CUDA}=0, this task's share of 0,1"),
        (job({CUDA: "0,1"}, on_node=2, procid=1), ("1",), f"{CUDA}=1, this task's share of 0,1"),
        (job({CUDA: "2,3"}, on_node=4, bound=True), ("2", "3"), f"{CUDA}=2,3, bound to this task by Slurm"),
        (job({CUDA: "0,1"}, on_node=2, tasks=1), ("0", "1"), f"{CUDA}=0,1"),
        (job({"ROCR_VISIBLE_DEVICES": "0,1"}, on_node=2), ("0",), "ROCR_VISIBLE_DEVICES=0,"),
    ],
)
def test_a_task_is_told_its_own_gpus(step, names, said):
    gpus = step_gpus(step)
    assert gpus.names == names
    (finding,) = gpus.findings()
    assert finding.status is Status.INFO
    assert f"{len(names)}: {said}" in finding.message
    assert finding.values == {"count": len(names), "which": list(names)}


def test_fewer_gpus_than_tasks_is_a_warning():
    _, crowd = step_gpus(job({CUDA: "0"}, on_node=1)).findings()
    assert crowd.status is Status.WARNING
    assert "1 GPU(s) for 2 tasks" in crowd.message


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        ({}, None),
        ({CUDA: ""}, ()),
        ({CUDA: "-1"}, ()),
        ({CUDA: "3,5"}, ("3", "5")),
        ({"HIP_VISIBLE_DEVICES": "1"}, ("1",)),
    ],
)
def test_outside_of_a_step_the_list_counts(environ, names):
    gpus = listed_gpus(environ)
    assert gpus.names == names
    assert gpus.findings()[0].values["count"] == (None if names is None else len(names))
