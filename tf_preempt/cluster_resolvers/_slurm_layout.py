"""Which task of a Slurm step runs on which node, and at which address it listens.

Pure functions of a `SlurmJob`: every task of a step computes the same list, without asking anybody.
So nothing that can differ between two nodes may enter it.  What a task knows only about itself (its node,
its local rank) serves to check the result, because a wrong address shows only as a start that never ends.

References:
    Layouts and variables: srun(1), ``--distribution``; compared with Slurm 22.05.8 for block, cyclic and
    plane, even and uneven, in ``tests/slurm/test_real_step.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tf_preempt._slurm import SlurmJob
from tf_preempt.errors import ConfigError, SlurmError

__all__ = [
    "DERIVED_PORTS",
    "FIRST_DERIVED_PORT",
    "Placement",
    "addresses",
    "check_own_placement",
    "choose_ports",
    "place_ranks",
]

FIRST_DERIVED_PORT = 16_384
"""Derived ports end at 32767, below the range from which Linux by default serves clients."""

DERIVED_PORTS = 16_384
"""How many ports there are to derive from."""

# Multiples of an odd number near 0.618 times the range lie far apart: jobs with neighbouring numbers, the
# ones that run on a node at the same time, get ranges that do not touch.
_PORT_STRIDE = 10_127
_STEP_STRIDE = 997


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where one task runs.

    Args:
        node: name of its node.
        node_index: position of that node in the step's node list.
        local_rank: its rank among the tasks on that node.
    """

    node: str
    node_index: int
    local_rank: int


def addresses(job: SlurmJob, port_base: int | None = None) -> list[str]:
    """Computes the ``host:port`` of every rank of a step and checks it against what Slurm told this task.

    Example:
        >>> step = {"job_id": 1, "step_id": 0, "procid": 0, "ntasks": 2}
        >>> addresses(SlurmJob(**step, nodes=("n9", "n10"), tasks_per_node=(1, 1)), 8888)
        ['n9:8888', 'n10:8888']

    Args:
        job: the step.
        port_base: see `choose_ports`.

    Returns:
        One address per rank, all different.

    Raises:
        ConfigError: see `choose_ports`.
        SlurmError: see `place_ranks`, `check_own_placement` and `choose_ports`.
    """
    placements = place_ranks(job)
    check_own_placement(job, placements)
    ports = choose_ports(job, placements, port_base)
    return [f"{placement.node}:{port}" for placement, port in zip(placements, ports, strict=True)]


def place_ranks(job: SlurmJob) -> list[Placement]:
    """Lays the ranks of a step over its nodes as Slurm does.

    Args:
        job: the step.

    Returns:
        One placement per rank.

    Raises:
        SlurmError: it is not known how many tasks each node has, or there are several nodes and the
            distribution is one that cannot be computed from Slurm's variables (arbitrary, or plane of
            unknown size).
    """
    counts = job.tasks_per_node
    if counts is None:
        raise SlurmError(
            "SLURM_STEP_TASKS_PER_NODE is not set: how many tasks run on each node is unknown.",
            hint="Pass tasks_per_node=, or let the program see the variables that srun sets.",
        )
    block = _block_size(job, counts)
    placements: list[Placement] = []
    placed = [0] * len(counts)
    while len(placements) < sum(counts):
        for index, (node, count) in enumerate(zip(job.nodes, counts, strict=True)):
            turn = range(placed[index], min(count, placed[index] + block))
            placements += [Placement(node=node, node_index=index, local_rank=rank) for rank in turn]
            placed[index] += len(turn)
    return placements


def _block_size(job: SlurmJob, counts: Sequence[int]) -> int:
    """How many consecutive ranks a node gets before it is the next node's turn."""
    if len(counts) == 1 or job.distribution in ("", "block"):
        return max(counts)
    if job.distribution == "cyclic":
        return 1
    if job.distribution == "plane" and job.plane_size is not None:
        return job.plane_size
    raise SlurmError(
        f"SLURM_DISTRIBUTION={job.distribution!r} on {len(counts)} nodes: which rank runs on which node does "
        "not follow from Slurm's variables; expected block, cyclic, or plane with SLURM_DIST_PLANESIZE.",
        hint="Start the step with `srun --distribution=block` (or cyclic).",
    )


def check_own_placement(job: SlurmJob, placements: Sequence[Placement]) -> None:
    """Compares what was computed for this task with what Slurm told it.

    Args:
        job: the step, seen from this task.
        placements: what `place_ranks` returned for it.

    Raises:
        SlurmError: they differ, so that the other tasks would look for this one at a wrong address.
    """
    own = placements[job.procid]
    ranks_here = tuple(rank for rank, other in enumerate(placements) if other.node_index == own.node_index)
    for variable, told, computed in (
        ("SLURM_NODEID", job.nodeid, own.node_index),
        ("SLURMD_NODENAME", job.nodename, own.node),
        ("SLURM_LOCALID", job.localid, own.local_rank),
        ("SLURM_GTIDS", tuple(sorted(job.gtids)) or None, ranks_here),
    ):
        if told is not None and told != computed:
            raise SlurmError(
                f"By {job.distribution or 'block'} distribution of {job.ntasks} tasks over {len(job.nodes)} "
                f"nodes, rank {job.procid} runs on {own.node!r} with {variable}={_text(computed)}, but Slurm "
                f"says {variable}={_text(told)}.",
                hint="Start the step with an explicit `srun --distribution=block` (or cyclic), and do not "
                "set SLURM_DISTRIBUTION or other variables of the step by hand.",
            )


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def choose_ports(job: SlurmJob, placements: Sequence[Placement], port_base: int | None = None) -> list[int]:
    """Chooses the port at which each task listens.

    `port_base` is obeyed where it is given.  Else ports that Slurm reserved for the step are taken
    (``srun --resv-ports=N``; where slurm.conf has ``MpiParams=ports=`` steps get them unasked), else ports
    derived from the numbers of job and step, such that the jobs on a node do not meet.  Reserved and
    derived ports count by global rank, where there are enough, because two nodes can be one host (several
    slurmd on a machine).

    Args:
        job: the step.
        placements: what `place_ranks` returned for it.
        port_base: port of the first task on each node; the node's other tasks take the next ones.

    Returns:
        One port per rank.

    Raises:
        ConfigError: `port_base` leaves no room for the tasks of a node.
        SlurmError: fewer ports are reserved than there are tasks on a node, or there are more tasks than
            ports to derive.
    """
    most_on_a_node = max(placement.local_rank for placement in placements) + 1
    if port_base is not None:
        last = 65_536 - most_on_a_node
        if not 1 <= port_base <= last:
            raise ConfigError(
                f"port_base={port_base}, with up to {most_on_a_node} tasks on a node: expected 1 to {last}.",
                hint="Leave port_base out to have ports derived from the job's number.",
            )
        return [port_base + placement.local_rank for placement in placements]
    if job.resv_ports:
        return _reserved_ports(job, placements, most_on_a_node)
    if len(placements) > DERIVED_PORTS:
        raise SlurmError(
            f"{len(placements)} tasks are more than the {DERIVED_PORTS} ports to derive from.",
            hint="Reserve ports with `srun --resv-ports=N`, or pass port_base=.",
        )
    first = (job.job_id + _STEP_STRIDE * (job.step_id or 0)) * _PORT_STRIDE
    return [FIRST_DERIVED_PORT + (first + rank) % DERIVED_PORTS for rank in range(len(placements))]


def _reserved_ports(job: SlurmJob, placements: Sequence[Placement], most_on_a_node: int) -> list[int]:
    reserved = job.resv_ports
    if len(reserved) >= len(placements):
        return list(reserved[: len(placements)])
    if len(reserved) >= most_on_a_node:
        return [reserved[placement.local_rank] for placement in placements]
    raise SlurmError(
        f"SLURM_STEP_RESV_PORTS has {len(reserved)} ports, but up to {most_on_a_node} tasks run on a node.",
        hint=f"Reserve enough: `srun --resv-ports={most_on_a_node}`, or pass port_base=.",
    )
