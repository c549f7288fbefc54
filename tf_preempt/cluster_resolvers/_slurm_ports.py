"""The port at which each task of a Slurm step listens.

Every task has to choose the same, so that nothing that can differ between two hosts may have a part in it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tf_preempt._slurm import SlurmJob
from tf_preempt.errors import ConfigError, SlurmError

__all__ = ["DERIVED_PORTS", "FIRST_DERIVED_PORT", "choose_ports"]

FIRST_DERIVED_PORT = 16_384
"""Derived ports end at 32767, below the range from which Linux by default serves clients."""

DERIVED_PORTS = 16_384
"""How many ports there are to derive from."""

# Multiples of an odd number near 0.618 times the range lie far apart: jobs with neighbouring numbers, the
# ones that run on a node at the same time, get ranges that do not touch.
_PORT_STRIDE = 10_127
_STEP_STRIDE = 997


def choose_ports(job: SlurmJob, local_ranks: Sequence[int], port_base: int | None = None) -> list[int]:
    """Chooses the port at which each task listens.

    `port_base` is obeyed where it is given.  Else ports that Slurm reserved for the step are taken
    (``srun --resv-ports=N``; where slurm.conf has ``MpiParams=ports=`` steps get them unasked), unless it is
    on several components of a heterogeneous job.  Else they are derived from the numbers of job and step,
    such that the jobs on a node do not meet.  Reserved and derived ports count by global rank, where there
    are enough, because two nodes can be one host (several slurmd on a machine).

    Args:
        job: the step.
        local_ranks: of each rank of the step, its rank among those on its node.
        port_base: port of the first task on each node; the node's other tasks take the next ones.

    Returns:
        One port per rank.

    Raises:
        ConfigError: `port_base` leaves no room for the tasks of a node.
        SlurmError: fewer ports are reserved than there are tasks on a node, or there are more tasks than
            ports to derive.
    """
    most_on_a_node = max(local_ranks) + 1
    if port_base is not None:
        last = 65_536 - most_on_a_node
        if not 1 <= port_base <= last:
            raise ConfigError(
                f"port_base={port_base}, with up to {most_on_a_node} tasks on a node: expected 1 to {last}.",
                hint="Leave port_base out to have ports derived from the job's number.",
            )
        return [port_base + local_rank for local_rank in local_ranks]
    # Each component of a heterogeneous job is a step by itself, with reserved ports that only its tasks see.
    if job.resv_ports and len(job.group_nodes) <= 1:
        return _reserved_ports(job, local_ranks, most_on_a_node)
    if len(local_ranks) > DERIVED_PORTS:
        raise SlurmError(
            f"{len(local_ranks)} tasks are more than the {DERIVED_PORTS} ports to derive from.",
            hint="Reserve ports with `srun --resv-ports=N`, or pass port_base=.",
        )
    first = (job.job_id + _STEP_STRIDE * (job.step_id or 0)) * _PORT_STRIDE
    return [FIRST_DERIVED_PORT + (first + rank) % DERIVED_PORTS for rank in range(len(local_ranks))]


def _reserved_ports(job: SlurmJob, local_ranks: Sequence[int], most_on_a_node: int) -> list[int]:
    reserved = job.resv_ports
    if len(reserved) >= len(local_ranks):
        return list(reserved[: len(local_ranks)])
    if len(reserved) >= most_on_a_node:
        return [reserved[local_rank] for local_rank in local_ranks]
    raise SlurmError(
        f"SLURM_STEP_RESV_PORTS has {len(reserved)} ports, but up to {most_on_a_node} tasks run on a node.",
        hint=f"Reserve enough: `srun --resv-ports={most_on_a_node}`, or pass port_base=.",
    )
