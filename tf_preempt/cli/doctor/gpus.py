"""Which GPUs this task gets: what Slurm has bound, the share that the resolver takes, or what a list says."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tf_preempt._slurm import GPU_VARIABLES, SlurmJob
from tf_preempt.cli.doctor.finding import Finding, Status
from tf_preempt.cluster_resolvers._slurm_gpus import GpuRequest, share_gpus, visible_devices
from tf_preempt.cluster_resolvers._slurm_layout import place_ranks, task_node

__all__ = ["Gpus", "listed_gpus", "step_gpus"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gpus:
    """The GPUs of a task.

    Args:
        names: numbers or UUIDs; None if nobody says which.
        note: which, and who says so.
        crowded_by: how many tasks share them because the node has fewer GPUs than tasks; 0 if none do.
    """

    names: tuple[str, ...] | None
    note: str
    crowded_by: int = 0

    def findings(self) -> list[Finding]:
        """What there is to say about them."""
        count = None if self.names is None else len(self.names)
        found = Finding(
            Status.INFO,
            "gpus",
            self.note if count is None else f"{count}: {self.note}",
            values={"count": count, "which": None if self.names is None else list(self.names)},
        )
        if not self.crowded_by:
            return [found]
        crowd = Finding(
            Status.WARNING,
            "gpus",
            f"The node has {count} GPU(s) for {self.crowded_by} tasks: each task sees and takes all of them.",
            "start no more tasks on a node than it has GPUs (srun --ntasks-per-node), or ask for more GPUs",
        )
        return [found, crowd]


def step_gpus(job: SlurmJob) -> Gpus:
    """What the Slurm resolver makes of the lists of GPUs in a step.

    Args:
        job: the step, with the nodes of all ranks.

    Raises:
        SlurmError: see `share_gpus` and `place_ranks`.
    """
    if not job.gpu_lists:
        return Gpus(names=(), note="Slurm gives this step no GPUs")
    node = task_node(job, place_ranks(job)[job.procid])
    share = share_gpus(GpuRequest(), job, node)
    lists = dict(job.gpu_lists)
    name = next(iter(share.variables), next(iter(lists)))
    names = visible_devices(share.variables.get(name, lists[name]))
    note = f"{name}={','.join(names)}"
    if share.variables:
        note += f", this task's share of {lists[name]}, which all {node.tasks_here} tasks of the node see"
    elif job.gpus_bound:
        note += ", bound to this task by Slurm"
    return Gpus(names=names, note=note, crowded_by=node.tasks_here if share.crowded else 0)


def listed_gpus(environ: Mapping[str, str]) -> Gpus:
    """What the first list of GPUs in an environment says; nobody divides it outside of a Slurm step.

    Args:
        environ: environment variables.

    Environment:
        See `GPU_VARIABLES`.
    """
    name = next((name for name in GPU_VARIABLES if name in environ), None)
    if name is None:
        return Gpus(names=None, note=f"{GPU_VARIABLES[0]} is not set: TensorFlow takes all of this machine's")
    return Gpus(names=visible_devices(environ[name]), note=f"{name}={environ[name]}")
