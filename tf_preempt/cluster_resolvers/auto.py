"""Which resolver fits the environment of this process."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING

from tf_preempt._slurm import SlurmJob, is_slurm_job
from tf_preempt.cluster_resolvers._tf_config_parser import TFConfig, parse_tf_config
from tf_preempt.errors import SlurmError

if TYPE_CHECKING:
    from tf_preempt.cluster_resolvers.base import ClusterResolverBase

__all__ = ["auto", "slurm_contradiction"]

_LOG = logging.getLogger("tf_preempt")


def auto(environ: MutableMapping[str, str] = os.environ) -> ClusterResolverBase:
    """Picks the resolver: ``TF_CONFIG`` if it is set, else the Slurm step, else a single local worker.

    Use it in a program that runs unchanged on a laptop, under ``tf-preempt launch``, under ``srun`` and on
    managed platforms.  What was chosen and why is one line of the log.

    Example:
        >>> resolver = tf_preempt.cluster_resolvers.auto()

    Args:
        environ: environment variables; those for GPUs may be set in them, see `SlurmClusterResolver`.

    Returns:
        A `TFConfigClusterResolver`, a `SlurmClusterResolver` or a `LocalClusterResolver`.

    Raises:
        ClusterConfigError: ``TF_CONFIG`` is set and malformed.
        SlurmError: this is a task of a Slurm step (and ``TF_CONFIG`` is not set), and Slurm's variables are
            wrong or cannot be followed.

    Environment:
        TF_CONFIG, and Slurm's variables (see `SlurmJob.from_environ`).
    """
    config = parse_tf_config(environ.get("TF_CONFIG"))
    if config.cluster:
        _LOG.info("Cluster from TF_CONFIG, because it is set: %s", _describe(config))
        if (problem := slurm_contradiction(config, environ)) is not None:
            _LOG.warning("%s", problem)
        from tf_preempt.cluster_resolvers.tf_config import TFConfigClusterResolver

        return TFConfigClusterResolver(environ=environ)
    job = SlurmJob.from_environ(environ) if is_slurm_job(environ) else None
    if job is not None and job.step_id is not None:
        from tf_preempt.cluster_resolvers.slurm import SlurmClusterResolver

        resolver = SlurmClusterResolver(environ=environ)
        _LOG.info(
            "Cluster from Slurm, because this is a task of step %d.%d and TF_CONFIG is not set: %s %d of %d",
            job.job_id,
            job.step_id,
            resolver.task_type,
            resolver.task_id,
            job.ntasks,
        )
        return resolver
    if job is not None and job.ntasks > 1:
        _LOG.warning(
            "Slurm job %d is for %d tasks, but srun did not start this process: it trains alone. HINT: "
            "start the program with `srun`, or several workers on this machine with `tf-preempt launch`.",
            job.job_id,
            job.ntasks,
        )
    _LOG.info(
        "A single local worker, because TF_CONFIG is not set and %s",
        "this is no Slurm job" if job is None else "srun did not start this process",
    )
    from tf_preempt.cluster_resolvers.local import LocalClusterResolver

    return LocalClusterResolver()


def _describe(config: TFConfig) -> str:
    sizes = ", ".join(f"{len(tasks)} {job}" for job, tasks in config.cluster.items())
    return f"{config.task_type} {config.task_id} of a cluster of {sizes}"


def slurm_contradiction(config: TFConfig, environ: Mapping[str, str]) -> SlurmError | None:
    """What Slurm's variables say against ``TF_CONFIG``, which is used all the same.

    Args:
        config: what ``TF_CONFIG`` says, with a cluster.
        environ: environment variables.

    Returns:
        What is wrong and the cure, not to be raised; None if nothing is.

    Environment:
        Slurm's variables (see `SlurmJob.from_environ`).
    """
    if not is_slurm_job(environ):
        return None
    try:
        job = SlurmJob.from_environ(environ)
    except SlurmError as error:
        problem = str(error).split("\nHINT: ")[0]
        return SlurmError(
            f"TF_CONFIG is used; Slurm's variables are there too, but wrong: {problem}", hint=error.hint
        )
    tasks = sum(map(len, config.cluster.values()))
    # One Slurm task may well start a cluster of its own on its node; several that disagree may not.
    if job.step_id is None or job.ntasks == 1 or tasks == job.ntasks:
        return None
    return SlurmError(
        f"TF_CONFIG describes {tasks} tasks, but the Slurm step {job.job_id}.{job.step_id} has {job.ntasks}: "
        "TF_CONFIG is used.",
        hint="unset TF_CONFIG to train on the step's tasks",
    )
