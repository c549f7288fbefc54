"""Which GPUs are a task's own, without TensorFlow."""

import pytest

from tf_preempt._slurm import SlurmJob
from tf_preempt.cluster_resolvers._slurm_gpus import (
    GpuRequest,
    check_gpu_request,
    own_devices,
    visible_devices,
)
from tf_preempt.errors import ConfigError, SlurmError


def job(visible, on_node=None, tasks=2):
    return SlurmJob(
        job_id=5,
        step_id=0,
        procid=0,
        ntasks=tasks,
        nodes=("n0",),
        tasks_per_node=(tasks,),
        cuda_visible_devices=visible,
        gpus_on_node=on_node,
    )


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        (None, None),
        ("", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
        ("0", ("0",)),
        ("4, 5", ("4", "5")),
        ("GPU-8932f937,MIG-GPU-8932f937/1/0", ("GPU-8932f937", "MIG-GPU-8932f937/1/0")),
    ],
)
def test_reads_the_visible_devices(text, devices):
    assert visible_devices(text) == devices


@pytest.mark.parametrize(
    ("visible", "on_node", "request_", "shares"),
    [
        ("0,1", 2, {}, ["0", "1"]),
        ("4,5,6,7", 4, {}, ["4,5", "6,7"]),
        ("4,5,6,7", None, {}, ["4,5", "6,7"]),
        ("0,1,2", 3, {}, ["0", "1"]),
        ("0,1,2,3", 4, {"per_task": 1}, ["0", "1"]),
        ("0,1,2,3", 4, {"per_node": 2}, ["0", "1"]),
        ("GPU-a,GPU-b", 2, {}, ["GPU-a", "GPU-b"]),
        (None, None, {"per_node": 4}, ["0,1", "2,3"]),
        (None, None, {"per_task": 1}, ["0", "1"]),
    ],
)
def test_a_shared_list_is_divided_by_local_rank(visible, on_node, request_, shares):
    computed = [
        own_devices(
            GpuRequest(**request_),
            job(visible, on_node),
            local_rank=rank,
            tasks_here=2,
            most_tasks_on_a_node=2,
        )
        for rank in range(2)
    ]
    assert [",".join(devices) for devices in computed] == shares


@pytest.mark.parametrize(
    ("visible", "on_node", "request_"),
    [
        ("0", 2, {}),
        ("2,3", 4, {}),
        ("2,3", 4, {"per_task": 2}),
        ("0,1", None, {"per_node": 4}),
        ("NoDevFiles", 2, {}),
        ("", None, {}),
        ("-1", None, {"per_task": 0}),
        ("0", 1, {}),
        (None, None, {}),
        (None, None, {"per_node": 0, "per_task": 0}),
        ("0,1", 2, {"per_task": 0}),
    ],
)
def test_what_is_the_tasks_own_is_kept(visible, on_node, request_):
    kept = own_devices(
        GpuRequest(**request_), job(visible, on_node), local_rank=1, tasks_here=2, most_tasks_on_a_node=2
    )
    assert kept is None


def test_a_task_alone_on_its_node_keeps_all_it_sees():
    assert (
        own_devices(GpuRequest(), job("0,1", 2, 1), local_rank=0, tasks_here=1, most_tasks_on_a_node=1)
        is None
    )


def test_fewer_gpus_than_tasks_are_left_shared():
    kept = own_devices(GpuRequest(), job("0,1", 2, 3), local_rank=2, tasks_here=3, most_tasks_on_a_node=3)
    assert kept is None


def test_tasks_that_ask_for_more_than_they_see_are_refused():
    request = GpuRequest(per_task=2)
    with pytest.raises(SlurmError, match=r"gpus_per_task=2 for 2 tasks.*CUDA_VISIBLE_DEVICES='4,5,6'"):
        own_devices(request, job("4,5,6"), local_rank=0, tasks_here=2, most_tasks_on_a_node=2)


@pytest.mark.parametrize(
    ("request_", "on_node", "words"),
    [
        ({"per_node": 4}, 2, "gpus_per_node=4 is more than SLURM_GPUS_ON_NODE=2"),
        ({"per_task": 2}, 2, "gpus_per_task=2 for up to 2 tasks.*SLURM_GPUS_ON_NODE=2"),
        ({"per_node": 1, "per_task": 1}, None, "gpus_per_task=1 for up to 2 tasks.*gpus_per_node=1"),
    ],
)
def test_more_gpus_than_there_are_is_a_runtime_error(request_, on_node, words):
    with pytest.raises(RuntimeError, match=words):
        check_gpu_request(GpuRequest(**request_), job("0,1", on_node), 2)


@pytest.mark.parametrize(
    ("request_", "on_node"),
    [({}, None), ({"per_node": 2, "per_task": 1}, 2), ({"per_task": 1}, 2), ({"per_task": 9}, None)],
)
def test_a_request_that_fits_is_accepted(request_, on_node):
    check_gpu_request(GpuRequest(**request_), job("0,1", on_node), 2)


@pytest.mark.parametrize("value", [-1, 1.5, "2", True])
@pytest.mark.parametrize("name", ["per_node", "per_task"])
def test_a_number_of_gpus_that_is_none_is_refused(name, value):
    with pytest.raises(ConfigError, match=f"gpus_{name}={value!r}"):
        GpuRequest(**{name: value})
