"""Which GPUs are a task's own, without TensorFlow."""

import pytest

from tf_preempt._slurm import SlurmJob
from tf_preempt.cluster_resolvers._slurm_gpus import (
    GpuRequest,
    GpuShare,
    TaskNode,
    check_gpu_request,
    share_gpus,
    visible_devices,
)
from tf_preempt.errors import ConfigError, SlurmError

CUDA = "CUDA_VISIBLE_DEVICES"


def job(lists, on_node=None, tasks=2, bound=False, per_task=None):
    if not isinstance(lists, dict):
        lists = {} if lists is None else {CUDA: lists}
    return SlurmJob(
        job_id=5,
        step_id=0,
        procid=0,
        ntasks=tasks,
        nodes=("n0",),
        tasks_per_node=(tasks,),
        gpu_lists=tuple(lists.items()),
        gpus_on_node=on_node,
        gpus_bound=bound,
        gpus_per_task=per_task,
    )


def node(local_rank=0, tasks_here=2, most_tasks=2):
    return TaskNode(local_rank=local_rank, tasks_here=tasks_here, most_tasks=most_tasks)


@pytest.mark.parametrize(
    ("text", "devices"),
    [
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
    request = GpuRequest(**request_)
    computed = [share_gpus(request, job(visible, on_node), node(rank)).variables for rank in range(2)]
    assert computed == [{CUDA: share} for share in shares]


@pytest.mark.parametrize(
    ("lists", "variables"),
    [
        ({"ROCR_VISIBLE_DEVICES": "0,1"}, {"ROCR_VISIBLE_DEVICES": "1"}),
        ({"ROCR_VISIBLE_DEVICES": "GPU-a,GPU-b"}, {"ROCR_VISIBLE_DEVICES": "GPU-b"}),
        ({"HIP_VISIBLE_DEVICES": "0,1"}, {"HIP_VISIBLE_DEVICES": "1"}),
        ({"ROCR_VISIBLE_DEVICES": "4,5", "HIP_VISIBLE_DEVICES": "0,1"}, {"HIP_VISIBLE_DEVICES": "1"}),
        ({"ZE_AFFINITY_MASK": "0.0,0.1,1.0,1.1"}, {"ZE_AFFINITY_MASK": "1.0,1.1"}),
        ({"GPU_DEVICE_ORDINAL": "2,3"}, {"GPU_DEVICE_ORDINAL": "3"}),
        (
            dict.fromkeys((CUDA, "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK"), "0,1"),
            dict.fromkeys((CUDA, "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK"), "1"),
        ),
        ({CUDA: "", "ROCR_VISIBLE_DEVICES": "0,1"}, {"ROCR_VISIBLE_DEVICES": "1"}),
    ],
)
@pytest.mark.parametrize("on_node", [None, "as many as listed"])
def test_lists_for_rocm_and_oneapi_are_divided_as_cudas(lists, variables, on_node):
    most = max(len(visible_devices(text)) for text in lists.values())
    share = share_gpus(GpuRequest(), job(lists, on_node and most), node(1))
    assert share.variables == variables


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
    share = share_gpus(GpuRequest(**request_), job(visible, on_node), node(1))
    assert share == GpuShare(crowded=visible == "0" and on_node == 1)


@pytest.mark.parametrize("visible", ["0,1", "2,3", "0", "NoDevFiles"])
@pytest.mark.parametrize("on_node", [None, 1, 2, 4])
def test_gpus_that_slurm_says_it_bound_are_kept(visible, on_node):
    share = share_gpus(GpuRequest(), job(visible, on_node, bound=True), node(1))
    assert (share.variables, share.crowded) == ({}, False)


@pytest.mark.parametrize(
    ("visible", "request_", "own"),
    [
        ("0,1", {}, None),
        ("0,1", {"per_task": 2}, None),
        ("0,1", {"per_task": 1}, "0"),
        ("4,5,6", {"per_node": 2}, "4,5"),
        ("0,1", {"per_node": 0}, None),
        ("0,1", {"per_task": 0}, None),
        (None, {"per_node": 2}, "0,1"),
        (None, {"per_task": 1}, "0"),
        (None, {}, None),
    ],
)
def test_tasks_alone_on_their_nodes_keep_what_they_see_as_far_as_they_ask_for_it(visible, request_, own):
    on_node = None if visible is None else len(visible_devices(visible))
    share = share_gpus(GpuRequest(**request_), job(visible, on_node, 1), node(0, 1, 1))
    assert share.variables == ({} if own is None else {CUDA: own})


@pytest.mark.parametrize(("visible", "own"), [("0,1,2,3", "0,1"), ("0,1,2", "0"), ("GPU-a", None)])
def test_a_task_alone_on_its_node_gets_no_more_than_those_that_share_theirs(visible, own):
    alone = share_gpus(GpuRequest(), job(visible, len(visible_devices(visible)), 1), node(0, 1, 2))
    assert alone == GpuShare(variables={} if own is None else {CUDA: own})


@pytest.mark.parametrize(("visible", "on_node"), [("0,1", 2), ("0", 1), ("0,1", None)])
def test_fewer_gpus_than_tasks_are_left_shared_and_that_is_told_where_it_is_known(visible, on_node):
    share = share_gpus(GpuRequest(), job(visible, on_node, 3), node(2, 3, 3))
    assert share.variables == {}
    assert share.crowded == (on_node is not None)


@pytest.mark.parametrize(
    ("visible", "tasks", "request_", "words"),
    [
        (
            "4,5,6",
            2,
            {"per_task": 2},
            "2 tasks on a node ask for 2 GPUs each .* CUDA_VISIBLE_DEVICES='4,5,6'",
        ),
        ("0", 1, {"per_task": 2}, "This task asks for 2 GPUs .* there are 1: CUDA_VISIBLE_DEVICES='0'"),
        ("0", 1, {"per_node": 2}, "The node is to have more GPUs .*gpus_per_node=2"),
        ("0,1", 2, {"per_node": 5}, "The node is to have more GPUs than its tasks see .*gpus_per_node=5"),
        ("NoDevFiles", 1, {"per_task": 1}, "This task asks for 1 GPUs .* there are 0"),
    ],
)
def test_asking_for_more_than_there_is_to_see_is_a_runtime_error(visible, tasks, request_, words):
    with pytest.raises(RuntimeError, match=words) as caught:
        share_gpus(GpuRequest(**request_), job(visible, None, tasks), node(0, tasks, tasks))
    assert isinstance(caught.value, SlurmError)


def test_a_task_alone_on_its_node_is_refused_with_those_that_ask_for_too_much():
    with pytest.raises(SlurmError, match="3 tasks on a node ask for 1 GPUs each"):
        share_gpus(GpuRequest(per_task=1), job("0,1", None, 1), node(0, 1, 3))


@pytest.mark.parametrize("lists", ["0,1", {"ROCR_VISIBLE_DEVICES": "0,1"}])
def test_a_task_bound_to_fewer_gpus_than_it_asks_for_is_refused(lists):
    with pytest.raises(SlurmError, match="This task asks for 3 GPUs"):
        share_gpus(GpuRequest(per_task=3), job(lists, 8), node())


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
        check_gpu_request(GpuRequest(**request_), job("0,1", on_node), node())


@pytest.mark.parametrize(
    ("request_", "on_node"),
    [({}, None), ({"per_node": 2, "per_task": 1}, 2), ({"per_task": 1}, 2), ({"per_task": 9}, None)],
)
def test_a_request_that_fits_is_accepted(request_, on_node):
    check_gpu_request(GpuRequest(**request_), job("0,1", on_node), node())


def test_a_node_with_fewer_tasks_needs_fewer_gpus():
    # srun -n4 --gpus-per-task=1 on nodes with 3 tasks and 1: this one has one GPU.
    check_gpu_request(GpuRequest(per_task=1), job("0", 1, 1, bound=True), node(0, 1, 3))


def test_a_task_alone_on_its_node_finds_what_the_fullest_node_has_too_little_for():
    with pytest.raises(SlurmError, match=r"gpus_per_task=1 for up to 3 tasks .*SLURM_GPUS_ON_NODE=2"):
        check_gpu_request(GpuRequest(per_task=1), job("0,1", 2, 1), node(0, 1, 3))


@pytest.mark.parametrize("value", [-1, 1.5, "2", True])
@pytest.mark.parametrize("name", ["per_node", "per_task"])
def test_a_number_of_gpus_that_is_none_is_refused(name, value):
    with pytest.raises(ConfigError, match=f"gpus_{name}={value!r}"):
        GpuRequest(**{name: value})


@pytest.mark.parametrize(
    ("visible", "on_node", "per_task", "tasks_here", "own"),
    [
        # One task on this node, two on another: srun --gpus-per-task tells only those that theirs are bound.
        ("0,1", 2, 2, 1, None),
        ("0", 1, 1, 1, None),
        # All see all, with --gpu-bind=none.
        ("0,1,2,3", 4, 2, 2, "0,1"),
        # A number that the job has asked for, and the step not.
        ("0,1", 2, 4, 1, "0"),
        ("0,1", 2, None, 1, "0"),
    ],
)
def test_gpus_that_slurm_has_counted_by_task_stay_together(visible, on_node, per_task, tasks_here, own):
    share = share_gpus(
        GpuRequest(),
        job(visible, on_node, per_task=per_task),
        node(tasks_here=tasks_here, most_tasks=2),
    )
    assert share == GpuShare(variables={} if own is None else {CUDA: own})
