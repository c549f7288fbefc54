"""Which of a node's GPUs belong to this task of a Slurm step.

Slurm either binds GPUs to each task (``--gpus-per-task``, ``--gpu-bind``), or shows all tasks of a node the
same list (``--gpus-per-node``, ``--gres``).  The second kind of list is divided here, by local rank.  A list
that is a task's own is cut only where the program asks for fewer GPUs than it has.

What holds for ``CUDA_VISIBLE_DEVICES`` holds for the variables of ROCm and oneAPI, which Slurm treats alike.
One is special: the numbers in ``HIP_VISIBLE_DEVICES`` are positions in ``ROCR_VISIBLE_DEVICES``.  Where both
are set, only HIP's is divided, because those positions would not hold in a shorter list.

References:
    srun(1), ``--gpus-per-task`` and ``--gpu-bind``; what Slurm 22.05.8 sets for each of them is recorded in
    ``tests/data/slurm_env/gpus_*.json`` and ``gres_*.json``.  In a step with a part of the job's GPUs,
    ``SLURM_GPUS_ON_NODE`` is the step's (22.05.8, seen).  ROCm documentation, "GPU isolation techniques".
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tf_preempt._slurm import SlurmJob
from tf_preempt.errors import ConfigError, SlurmError

__all__ = ["GpuRequest", "GpuShare", "TaskNode", "check_gpu_request", "share_gpus", "visible_devices"]

# What Slurm, CUDA and users write to say "none".
_NO_DEVICES = {"", "-1", "nodevfiles", "none", "void"}


@dataclass(frozen=True, kw_only=True)
class GpuRequest:
    """What the program asked for.

    Args:
        per_node: number of GPUs on each node; None: as Slurm says.
        per_task: number of GPUs for each task; None: the node's GPUs divided by its tasks.

    Raises:
        ConfigError: a number is not a whole number of at least 0.
    """

    per_node: int | None = None
    per_task: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("gpus_per_node", self.per_node), ("gpus_per_task", self.per_task)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise ConfigError(
                    f"{name}={value!r}: expected a whole number of at least 0, or None.",
                    hint="Leave it out to use what Slurm gives the task.",
                )


@dataclass(frozen=True, kw_only=True)
class TaskNode:
    """The node of a task, as far as GPUs are concerned.

    Args:
        local_rank: rank of the task among those on its node.
        tasks_here: number of tasks on its node.
        most_tasks: tasks on the node that has most of them; all tasks get the same number of GPUs.
    """

    local_rank: int
    tasks_here: int
    most_tasks: int


@dataclass(frozen=True, kw_only=True)
class GpuShare:
    """What is this task's own.

    Args:
        variables: what to set the variables to; empty where they are to stay as they are.
        crowded: whether a node is known to have fewer GPUs than tasks, so that each task sees all.
    """

    variables: dict[str, str] = field(default_factory=dict)
    crowded: bool = False


def visible_devices(text: str) -> tuple[str, ...]:
    """Reads a list of devices: indices, UUIDs, MIG names, or oneAPI's ``device.tile``.

    Args:
        text: value of one of `GPU_VARIABLES`.

    Returns:
        The devices; empty if there are none.
    """
    return tuple(part.strip() for part in text.split(",") if part.strip().lower() not in _NO_DEVICES)


def check_gpu_request(request: GpuRequest, job: SlurmJob, node: TaskNode) -> None:
    """Compares what was asked for with the numbers that Slurm gives.

    Args:
        request: what the program asked for.
        job: the step.
        node: this task's node.

    Raises:
        SlurmError: more GPUs per node are asked for than the step has on this node, or the tasks of a node
            together more than there are on it.
    """
    if request.per_node is not None and job.gpus_on_node is not None and request.per_node > job.gpus_on_node:
        raise SlurmError(
            f"gpus_per_node={request.per_node} is more than SLURM_GPUS_ON_NODE={job.gpus_on_node}.",
            hint="Ask Slurm for more (`--gpus-per-node`), or leave gpus_per_node out.",
        )
    # The number is the same on each node, so that all tasks find what only the fullest node has too little
    # for; but where Slurm counts by task, this node has what its own tasks need.
    available, origin, tasks = job.gpus_on_node, "SLURM_GPUS_ON_NODE", node.most_tasks
    if request.per_node is not None:
        available, origin = request.per_node, "gpus_per_node"
    elif job.gpus_bound:
        tasks = node.tasks_here
    if request.per_task is not None and available is not None and request.per_task * tasks > available:
        raise SlurmError(
            f"gpus_per_task={request.per_task} for up to {tasks} tasks on a node takes more GPUs per node "
            f"than there are: {origin}={available}.",
            hint="Lower gpus_per_task, or start fewer tasks on each node (`--ntasks-per-node`).",
        )


def share_gpus(request: GpuRequest, job: SlurmJob, node: TaskNode) -> GpuShare:
    """Decides which GPUs are this task's own.

    Args:
        request: what the program asked for.
        job: the step; its `gpu_lists` are what this task sees now.
        node: this task's node.

    Returns:
        This task's share.  Lists stay as they are where the task sees no GPU or only its own (all tasks are
        alone on their nodes, Slurm bound them to it, or it sees fewer than the step has on the node) and asks
        for no fewer; also where there are fewer GPUs than tasks.

    Raises:
        SlurmError: this task, or the tasks of the fullest node together, ask for more GPUs than they see.
    """
    lists = {name: visible_devices(text) for name, text in job.gpu_lists}
    if "HIP_VISIBLE_DEVICES" in lists:
        lists.pop("ROCR_VISIBLE_DEVICES", None)
    if not lists:
        # Slurm manages no GPUs here: count as CUDA does, as far as the program says how many there are.
        per_task = request.per_task or 0
        count = per_task * node.most_tasks if request.per_node is None else request.per_node
        lists = {"CUDA_VISIBLE_DEVICES": tuple(map(str, range(count)))} if count else {}
    variables, crowded = {}, False
    for name, devices in lists.items():
        own = _own_devices(request, job, node, name, devices)
        if own != devices or not job.gpu_lists:
            variables[name] = ",".join(own)
        crowded = crowded or _is_crowded(request, job, node, devices)
    return GpuShare(variables=variables, crowded=crowded)


def _own_devices(
    request: GpuRequest, job: SlurmJob, node: TaskNode, name: str, devices: tuple[str, ...]
) -> tuple[str, ...]:
    """What of `devices`, the list in variable `name`, is this task's."""
    if 0 in (request.per_task, request.per_node) or not (devices or request.per_task):
        return devices
    if job.gpus_on_node is None and (request.per_node or 0) > len(devices) * node.tasks_here:
        raise _too_few("The node is to have more GPUs than its tasks see", request, name, devices)
    # Of a single GPU nobody knows whether it is this task's: to leave it is right, or shows as a crowd.
    single = len(devices) == 1 and request.per_task in (None, 1)
    if node.most_tasks == 1 or single or _is_bound(request, job, devices):
        asked = request.per_node if request.per_task is None and node.most_tasks == 1 else request.per_task
        if (asked or 0) > len(devices):
            raise _too_few(f"This task asks for {asked} GPUs", request, name, devices)
        return devices[:asked]
    shared = devices[: request.per_node]
    # The fullest node decides: collectives need as many replicas on each worker, also on one alone on a node.
    share = len(shared) // node.most_tasks if request.per_task is None else request.per_task
    if share * node.most_tasks > len(shared):
        raise _too_few(f"{node.most_tasks} tasks on a node ask for {share} GPUs each", request, name, devices)
    first = node.local_rank * share
    return shared[first : first + share] if share else devices


def _is_bound(request: GpuRequest, job: SlurmJob, devices: tuple[str, ...]) -> bool:
    """Whether a list is one task's own, although the node has several tasks."""
    on_node = request.per_node if job.gpus_on_node is None else job.gpus_on_node
    # Where a node has one task, nothing but this number tells that tasks elsewhere have as many each.
    is_asked_for = job.gpus_per_task is not None and len(devices) == job.gpus_per_task
    return job.gpus_bound or is_asked_for or (on_node is not None and len(devices) < on_node)


def _is_crowded(request: GpuRequest, job: SlurmJob, node: TaskNode, devices: tuple[str, ...]) -> bool:
    """Whether all that the step has on the node is too little for one GPU per task, and not by request."""
    if job.gpus_bound or not devices or 0 in (request.per_task, request.per_node):
        return False
    return job.gpus_on_node is not None and job.gpus_on_node <= len(devices) < node.tasks_here


def _too_few(who: str, request: GpuRequest, name: str, devices: tuple[str, ...]) -> SlurmError:
    return SlurmError(
        f"{who} (gpus_per_task={request.per_task}, gpus_per_node={request.per_node}), but there are "
        f"{len(devices)}: {name}={','.join(devices)!r}.",
        hint="Lower the numbers or leave them out, or ask Slurm for more GPUs.",
    )
