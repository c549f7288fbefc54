"""Which task of a Slurm step runs on which node, and at which address it listens.

Pure functions of a `SlurmJob`: every task of a step computes the same list, without asking anybody.
So nothing that can differ between two nodes may enter it.  What a task knows only about itself (its node,
its local rank) serves to check the result, because a wrong address shows only as a start that never ends.

Two things no variable describes; they come with the job: the ranks' nodes of the arbitrary distribution,
from the host file that srun read (`with_hostfile`), and the distributions of the components of a
heterogeneous job, from the controller (`StepComponents`).

References:
    Layouts and variables: srun(1), ``--distribution``; compared with Slurm 22.05.8 for block, cyclic, plane
    and arbitrary, even and uneven, and for heterogeneous jobs, in ``tests/slurm/test_real_step.py``.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from tf_preempt._slurm import SlurmJob
from tf_preempt.cluster_resolvers._slurm_gpus import TaskNode
from tf_preempt.cluster_resolvers._slurm_ports import choose_ports
from tf_preempt.errors import SlurmError

__all__ = [
    "COMPONENTS_CURE",
    "Placement",
    "addresses",
    "check_own_placement",
    "place_ranks",
    "task_node",
]

COMPONENTS_CURE = (
    "Let the tasks run scontrol, which knows the layout; or start all components with the same "
    "`srun --distribution=block` (or cyclic), and list them in the order of their nodes."
)
"""What helps where a heterogeneous step is laid out otherwise than the variables say."""

_STEP_CURE = (
    "Start the step with an explicit `srun --distribution=block` (or cyclic), and do not set "
    "SLURM_DISTRIBUTION or other variables of the step by hand."
)


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where one task runs.

    Args:
        node: name of its node.
        node_index: position of that node in the step's node list.
        local_rank: its rank among the tasks on that node.
        component: the component of the heterogeneous job that the node belongs to; 0 in other jobs.
    """

    node: str
    node_index: int
    local_rank: int
    component: int = 0


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
    ports = choose_ports(job, [placement.local_rank for placement in placements], port_base)
    return [f"{placement.node}:{port}" for placement, port in zip(placements, ports, strict=True)]


def place_ranks(job: SlurmJob) -> list[Placement]:
    """Lays the ranks of a step over its nodes as Slurm does.

    Args:
        job: the step.

    Returns:
        One placement per rank.

    Raises:
        SlurmError: it is not known how many tasks each node has; there are several nodes and the distribution
            is one that cannot be computed (arbitrary without a host file, or plane of unknown size); or the
            host file does not fit what Slurm started.
    """
    counts = job.tasks_per_node
    if counts is None:
        raise SlurmError(
            "SLURM_STEP_TASKS_PER_NODE is not set: how many tasks run on each node is unknown.",
            hint="Pass tasks_per_node=, or let the program see the variables that srun sets.",
        )
    if len(job.nodes) > 1 and job.distribution == "arbitrary" and not job.group_distributions:
        return _as_listed(job, counts)
    placements: list[Placement] = []
    for component, (first, end) in enumerate(_stretches(job)):
        placements += _deal(job, counts, range(first, end), component)
    return placements


def task_node(job: SlurmJob, placement: Placement) -> TaskNode:
    """What matters for the GPUs of a task: how many tasks share its node's, and those of other nodes.

    Args:
        job: the step.
        placement: where the task runs, of those that `place_ranks` returned.

    Returns:
        The task's rank on its node and numbers of tasks, on its node and on the fullest of its component.
    """
    counts = job.tasks_per_node or (1,)
    first, end = _stretches(job)[placement.component]
    return TaskNode(
        local_rank=placement.local_rank,
        tasks_here=counts[placement.node_index],
        most_tasks=max(counts[first:end]),
    )


def _stretches(job: SlurmJob) -> list[tuple[int, int]]:
    """First node and end of each component of the job: ranks are laid over one after the other."""
    ends = list(itertools.accumulate(job.group_nodes or (len(job.nodes),)))
    return list(zip([0, *ends], ends, strict=False))


def _deal(job: SlurmJob, counts: Sequence[int], nodes: range, component: int) -> list[Placement]:
    """Gives each of a component's nodes some ranks in turn, until it has its `counts`."""
    block = _block_size(job, counts, nodes, component)
    placements: list[Placement] = []
    placed = dict.fromkeys(nodes, 0)
    while len(placements) < sum(counts[nodes.start : nodes.stop]):
        for index in nodes:
            turn = range(placed[index], min(counts[index], placed[index] + block))
            placements += [
                Placement(node=job.nodes[index], node_index=index, local_rank=rank, component=component)
                for rank in turn
            ]
            placed[index] += len(turn)
    return placements


def _block_size(job: SlurmJob, counts: Sequence[int], nodes: range, component: int) -> int:
    """How many consecutive ranks a node gets before it is the next node's turn."""
    most = max(counts[nodes.start : nodes.stop])
    distribution = _distribution(job, counts, component)
    if len(nodes) == 1 or most == 1 or distribution in ("", "block"):
        return most
    if distribution == "cyclic":
        return 1
    # The size is that of one component; if others have another distribution, not all tasks are told it.
    if distribution == "plane" and job.plane_size is not None and set(job.group_distributions) <= {"plane"}:
        return job.plane_size
    told = f"SLURM_DISTRIBUTION={distribution!r}"
    if job.group_distributions:
        told = f"Component {component} of the step has the distribution {distribution!r}"
    raise SlurmError(
        f"{told} on {len(nodes)} nodes: which rank runs on which node does not follow from Slurm's "
        "variables; expected block, cyclic, or plane with SLURM_DIST_PLANESIZE.",
        hint="Start the step with `srun --distribution=block` (or cyclic).",
    )


def _distribution(job: SlurmJob, counts: Sequence[int], component: int) -> str:
    """The distribution of a component: what the controller says of it, or what the variables say of all."""
    if job.group_distributions:
        return job.group_distributions[component]
    first, end = _stretches(job)[-1]
    is_last = component == len(_stretches(job)) - 1
    # Slurm's choice for as many tasks as nodes is cyclic.  If that is why the last component has it, it says
    # nothing about the others, which have more tasks: Slurm's choice for those is block.
    if job.distribution == "cyclic" and not is_last and max(counts[first:end]) == 1:
        return "block"
    return job.distribution


def _as_listed(job: SlurmJob, counts: Sequence[int]) -> list[Placement]:
    """Ranks on the nodes that the host file names."""
    if not job.rank_nodes:
        raise SlurmError(
            f"SLURM_DISTRIBUTION='arbitrary' on {len(counts)} nodes, and SLURM_HOSTFILE is not set: which "
            "rank runs on which node does not follow from Slurm's variables.",
            hint="Name each rank's node in a file and start the step with `SLURM_HOSTFILE=FILE srun`, "
            "without --nodelist; or start it with `srun --distribution=block`.",
        )
    ranks_on = collections.Counter(job.rank_nodes)
    listed = [ranks_on[node] for node in job.nodes]
    if listed != list(counts):
        raise SlurmError(
            f"SLURM_HOSTFILE={job.hostfile!r} has {listed} tasks on {list(job.nodes)}, but Slurm started "
            f"{list(counts)} there (SLURM_STEP_TASKS_PER_NODE).",
            hint="Leave the file as srun read it until all tasks have started.",
        )
    indices = {node: index for index, node in enumerate(job.nodes)}
    seen: collections.Counter[str] = collections.Counter()
    placements = []
    for node in job.rank_nodes:
        placements.append(Placement(node=node, node_index=indices[node], local_rank=seen[node]))
        seen[node] += 1
    return placements


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
            names = "/".join(job.group_distributions) or job.distribution or "block"
            raise SlurmError(
                f"By {names} distribution of {job.ntasks} tasks over {len(job.nodes)} "
                f"nodes, rank {job.procid} runs on {own.node!r} with {variable}={_text(computed)}, but Slurm "
                f"says {variable}={_text(told)}.",
                hint=COMPONENTS_CURE if job.het_size > 1 else _STEP_CURE,
            )


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
