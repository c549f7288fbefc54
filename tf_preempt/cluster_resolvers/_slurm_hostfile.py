"""The file that names the node of each rank of a step with arbitrary distribution.

srun reads it before it starts the tasks, and they inherit its path in ``SLURM_HOSTFILE``.  No variable says
what was in it, so that it has to be read again, by every task.

References:
    srun(1), ``SLURM_HOSTFILE``.  What srun 22.05.8 was seen to take: a name on a line or several with commas,
    ``name*3`` for three ranks, comments from ``#`` on, and more names than ranks; it refuses ranges, blank
    lines with spaces, and fewer names.
"""

from __future__ import annotations

import dataclasses
import re

from tf_preempt._slurm import SlurmJob
from tf_preempt.errors import SlurmError

__all__ = ["parse_hostfile", "with_hostfile"]

_MOST_BYTES = 16 * 1024 * 1024
_NAME = re.compile(r"([^\s,*#\[\]]+)(?:\*([0-9]{1,7}))?")


def with_hostfile(job: SlurmJob) -> SlurmJob:
    """Adds what the host file says about the ranks' nodes.

    Args:
        job: the step.

    Returns:
        `job` with `rank_nodes`; as it is, if its distribution is not arbitrary, there is no host file, all
        tasks run on one node, or the distribution of each of its components is known.

    Raises:
        SlurmError: the file cannot be read on this node, or see `parse_hostfile`.
    """
    if job.distribution != "arbitrary" or job.hostfile is None or len(job.nodes) == 1:
        return job
    if job.group_distributions:
        return job  # those decide
    try:
        with open(job.hostfile, encoding="utf-8") as file:
            text = file.read(_MOST_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise SlurmError(
            f"SLURM_HOSTFILE={job.hostfile!r} cannot be read on {job.nodename or 'this node'}, and it alone "
            f"says which rank runs on which node (SLURM_DISTRIBUTION='arbitrary'): {error}.",
            hint="Put the file where all nodes see it, with an absolute path, and leave it there while the "
            "tasks start; or start the step with `srun --distribution=block`.",
        ) from error
    return dataclasses.replace(job, rank_nodes=parse_hostfile(text, job.hostfile, job.ntasks))


def parse_hostfile(text: str, path: str, ntasks: int) -> tuple[str, ...]:
    """Reads the node of each rank.

    Example:
        >>> parse_hostfile("n9*2  # two ranks\\nn10\\n", "hosts", 3)
        ('n9', 'n9', 'n10')

    Args:
        text: content of the host file.
        path: where it is from; for messages.
        ntasks: number of ranks; what the file has beyond them is left out, as srun does.

    Returns:
        One node for each rank.

    Raises:
        SlurmError: a line is malformed, or there are fewer names than ranks.
    """
    nodes: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        for item in filter(None, (part.strip() for part in line.partition("#")[0].split(","))):
            match = _NAME.fullmatch(item)
            if not match:
                raise SlurmError(
                    f"Line {number} of SLURM_HOSTFILE={path!r} has {item!r}; expected a node's name, or "
                    "name*N for N ranks.",
                    hint="Write one name on each line; srun does not take ranges in this file.",
                )
            nodes += [match[1]] * min(int(match[2] or 1), ntasks)
    if len(nodes) < ntasks:
        raise SlurmError(
            f"SLURM_HOSTFILE={path!r} names the nodes of {len(nodes)} ranks, but the step has {ntasks} "
            "(SLURM_STEP_NUM_TASKS).",
            hint="Leave the file as srun read it until all tasks have started.",
        )
    return tuple(nodes[:ntasks])
