"""Narrows the lists of GPUs in the environment to what is this task's own, once."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping

from tf_preempt._slurm import GPU_VARIABLES, SlurmJob
from tf_preempt.cluster_resolvers._slurm_gpus import GpuRequest, share_gpus
from tf_preempt.cluster_resolvers._slurm_layout import Placement, task_node

__all__ = ["settle_gpus"]

_LOG = logging.getLogger("tf_preempt")
# Task, and the lists as they were left.
_MARK_VARIABLE = "TF_PREEMPT_OWN_GPUS"


def settle_gpus(
    environ: MutableMapping[str, str], job: SlurmJob, request: GpuRequest, own: Placement
) -> None:
    """Sets the lists to this task's share, and marks them, so that a share is not divided again.

    Args:
        environ: environment variables; those of `GPU_VARIABLES` that are to change are set in them.
        job: the step; its `gpu_lists` are those of `environ`.
        request: what the program asked for.
        own: where this task runs.

    Raises:
        SlurmError: see `share_gpus`.

    Environment:
        `GPU_VARIABLES` and TF_PREEMPT_OWN_GPUS are set where something was to be divided.
    """
    task = f"{job.job_id}.{job.step_id}.{job.procid}"
    before = _lists(environ)
    if environ.get(_MARK_VARIABLE) == f"{task}:{before}":
        return
    share = share_gpus(request, job, task_node(job, own))
    environ.update(share.variables)
    if share.variables or share.crowded:
        environ[_MARK_VARIABLE] = f"{task}:{_lists(environ)}"
    if share.variables:
        _LOG.info(
            "GPUs of rank %d (local rank %d on %s): %s, its share of %s",
            job.procid,
            own.local_rank,
            own.node,
            ";".join(f"{name}={value}" for name, value in share.variables.items()),
            before or "the node's GPUs",
        )
    if share.crowded:
        _LOG.warning(
            "%s has fewer GPUs than tasks: each task sees and takes all of %s. "
            "HINT: start no more tasks on a node than it has GPUs (`srun --ntasks-per-node`).",
            own.node,
            before,
        )


def _lists(environ: MutableMapping[str, str]) -> str:
    return ";".join(f"{name}={environ[name]}" for name in GPU_VARIABLES if name in environ)
