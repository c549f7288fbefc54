"""Which of a node's GPUs belong to this task of a Slurm step.

Slurm either binds GPUs to each task (``--gpus-per-task``, ``--gpu-bind``), or shows all tasks of a node the
same list (``--gpus-per-node``, ``--gres``).  Only the second kind of list is divided here, by local rank; a
binding that Slurm made is never changed.

References:
    srun(1), ``--gpus-per-task`` and ``--gpu-bind``; what Slurm 22.05.8 sets for each of them is recorded in
    ``tests/data/slurm_env/gpus_*.json`` and ``gres_*.json``.
"""

from __future__ import annotations

from dataclasses import dataclass

from tf_preempt._slurm import SlurmJob
from tf_preempt.errors import ConfigError, SlurmError

__all__ = ["GpuRequest", "check_gpu_request", "own_devices", "visible_devices"]

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


def visible_devices(text: str | None) -> tuple[str, ...] | None:
    """Reads ``CUDA_VISIBLE_DEVICES``: indices, UUIDs or MIG names.

    Args:
        text: value of the variable, None if it is unset.

    Returns:
        The devices; empty if there are none; None if the variable is unset, so that nobody knows.
    """
    if text is None:
        return None
    return tuple(part.strip() for part in text.split(",") if part.strip().lower() not in _NO_DEVICES)


def check_gpu_request(request: GpuRequest, job: SlurmJob, most_tasks_on_a_node: int) -> None:
    """Compares what was asked for with what there is.

    Args:
        request: what the program asked for.
        job: the step.
        most_tasks_on_a_node: tasks on the node that has most of them.

    Raises:
        SlurmError: more GPUs per node are asked for than the job has on this node, or the tasks of a node
            together more than there are on it.
    """
    if request.per_node is not None and job.gpus_on_node is not None and request.per_node > job.gpus_on_node:
        raise SlurmError(
            f"gpus_per_node={request.per_node} is more than SLURM_GPUS_ON_NODE={job.gpus_on_node}.",
            hint="Ask Slurm for more (`--gpus-per-node`), or leave gpus_per_node out.",
        )
    available = job.gpus_on_node if request.per_node is None else request.per_node
    if request.per_task is None or available is None:
        return
    if request.per_task * most_tasks_on_a_node > available:
        origin = "SLURM_GPUS_ON_NODE" if request.per_node is None else "gpus_per_node"
        raise SlurmError(
            f"gpus_per_task={request.per_task} for up to {most_tasks_on_a_node} tasks on a node takes more "
            f"GPUs per node than there are: {origin}={available}.",
            hint="Lower gpus_per_task, or start fewer tasks on each node (`--ntasks-per-node`).",
        )


def own_devices(
    request: GpuRequest, job: SlurmJob, *, local_rank: int, tasks_here: int, most_tasks_on_a_node: int
) -> tuple[str, ...] | None:
    """Decides what to narrow ``CUDA_VISIBLE_DEVICES`` to.

    Args:
        request: what the program asked for.
        job: the step; its `cuda_visible_devices` is what this task sees now.
        local_rank: rank of this task among those on its node.
        tasks_here: number of tasks on its node.
        most_tasks_on_a_node: tasks on the node that has most of them; all tasks get the same number of GPUs.

    Returns:
        The devices of this task, or None where nothing is to be changed: the task is alone on its node, sees
        no GPU or just one, sees fewer than the job has on the node (so they are bound to it already), or
        there are fewer GPUs than tasks.

    Raises:
        SlurmError: the tasks of this node together ask for more GPUs than they see.
    """
    shared = _shared_devices(request, job, most_tasks_on_a_node)
    if tasks_here == 1 or len(shared) <= 1:
        return None
    share = len(shared) // most_tasks_on_a_node if request.per_task is None else request.per_task
    if share == 0:
        return None
    if share * tasks_here > len(shared):
        raise SlurmError(
            f"gpus_per_task={share} for {tasks_here} tasks on this node takes more GPUs than there are: "
            f"CUDA_VISIBLE_DEVICES={','.join(shared)!r}.",
            hint="Lower gpus_per_task, or ask Slurm for more GPUs per node.",
        )
    return shared[local_rank * share : (local_rank + 1) * share]


def _shared_devices(request: GpuRequest, job: SlurmJob, most_tasks_on_a_node: int) -> tuple[str, ...]:
    """The list that all tasks of the node see; empty if there is none, or if each task has its own."""
    visible = visible_devices(job.cuda_visible_devices)
    if visible is None:
        # Slurm manages no GPUs here: count as CUDA does, as far as the program says how many there are.
        per_task = request.per_task or 0
        count = per_task * most_tasks_on_a_node if request.per_node is None else request.per_node
        return tuple(str(index) for index in range(count))
    on_node = request.per_node if job.gpus_on_node is None else job.gpus_on_node
    if on_node is not None and len(visible) < on_node:
        return ()
    return visible[: request.per_node]
