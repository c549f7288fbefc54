"""What a program asks of a Slurm step in the way of tasks, compared with what Slurm gives it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tf_preempt._slurm import SlurmJob
from tf_preempt.errors import ConfigError, SlurmError

__all__ = ["as_step", "job_sizes", "with_tasks_per_node"]


def as_step(job: SlurmJob) -> SlurmJob:
    """Takes a job without srun for a step of one task, if one is all it has.

    Args:
        job: what Slurm says.

    Returns:
        `job`, if srun started this process, else a step of one task on this node.

    Raises:
        SlurmError: the job is for several tasks, and srun did not start this process.
    """
    if job.step_id is not None:
        return job
    if job.ntasks > 1:
        raise SlurmError(
            f"SLURM_STEP_ID is not set, so srun did not start this process, but job {job.job_id} is for "
            f"{job.ntasks} tasks on {max(1, len(job.nodes))} node(s): the other tasks do not exist.",
            hint="Start the program with srun in the batch script or shell: `srun python train.py`.",
        )
    return dataclasses.replace(
        job,
        nodes=(job.nodename or "localhost",),
        tasks_per_node=(1,),
        nodeid=None,
        localid=None,
        gtids=(),
    )


def with_tasks_per_node(job: SlurmJob, asked: int | Mapping[str, int]) -> SlurmJob:
    """Adds the numbers of tasks that the program gave, which Slurm's own must not contradict.

    Args:
        job: the step.
        asked: number of tasks on each node, or on each by name.

    Returns:
        `job` with `tasks_per_node`.

    Raises:
        ConfigError: a number is not a whole number of at least 1.
        SlurmError: the numbers are not those of Slurm, or not for the nodes or the tasks of this step.
    """
    if isinstance(asked, Mapping):
        if set(asked) != set(job.nodes):
            raise SlurmError(
                f"tasks_per_node is for the nodes {sorted(asked)}, but the step has {sorted(job.nodes)}.",
                hint="Leave tasks_per_node out: Slurm's own numbers are then used.",
            )
        counts = tuple(asked[node] for node in job.nodes)
    else:
        counts = (asked,) * len(job.nodes)
    for count in counts:
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ConfigError(
                f"tasks_per_node={asked!r}: expected whole numbers of at least 1.",
                hint="Leave tasks_per_node out: Slurm's own numbers are then used.",
            )
    if job.tasks_per_node is not None and job.tasks_per_node != counts:
        raise SlurmError(
            f"tasks_per_node={asked!r} does not match what Slurm started: {list(job.tasks_per_node)} "
            f"tasks on {list(job.nodes)} (SLURM_STEP_TASKS_PER_NODE).",
            hint="Leave tasks_per_node out, or start the step with `srun --ntasks-per-node`.",
        )
    return dataclasses.replace(job, tasks_per_node=counts)


def job_sizes(jobs: Mapping[str, int] | None, ntasks: int) -> dict[str, int]:
    """Decides which job gets how many tasks.

    Args:
        jobs: what the program asked for; None: all tasks are workers.
        ntasks: number of tasks of the step.

    Returns:
        Number of tasks of each job, in the order in which ranks are given to them: the chief first, then in
        the order of the mapping.

    Raises:
        ConfigError: a number is not a whole number of at least 0, or there is more than one chief.
        SlurmError: the step has more or fewer tasks.
    """
    if jobs is None:
        return {"worker": ntasks}
    for name, size in jobs.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise ConfigError(
                f"jobs={dict(jobs)!r}: {size!r} tasks for {name!r}; expected a whole number of at least 0.",
                hint='Give each job its number of tasks: jobs={"chief": 1, "worker": 3}.',
            )
    if jobs.get("chief", 0) > 1:
        raise ConfigError(
            f"jobs={dict(jobs)!r}: expected one chief at most.", hint="Make the others workers."
        )
    if sum(jobs.values()) != ntasks:
        raise SlurmError(
            f"jobs={dict(jobs)!r} requests {sum(jobs.values())} tasks, but {ntasks} were assigned by Slurm "
            "(SLURM_STEP_NUM_TASKS).",
            hint=f"Start the step with `srun --ntasks={sum(jobs.values())}`, or leave jobs out.",
        )
    return {name: jobs[name] for name in sorted(jobs, key=lambda name: name != "chief") if jobs[name]}
