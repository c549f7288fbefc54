"""What Slurm says about this process, read once from its environment variables.

This is the one module that knows the names of Slurm's variables.  Not all of them mean what they seem to:

* A batch script also has ``SLURM_PROCID=0`` and ``SLURM_NTASKS``; only a task that ``srun`` started has a
  ``SLURM_STEP_ID`` (and ``salloc``'s interactive shell has one too, with a number that is reserved).
* In a step on part of the allocation ``SLURM_NODELIST`` is still the whole job's, so that the step's own
  variables are read.
* A job that was submitted from inside a step, for example from ``srun --pty bash``, inherits that step's
  ``SLURM_STEP_*`` until its own ``srun`` replaces them.
* ``SLURM_DISTRIBUTION`` is absent under a plain ``srun``, and can have a second part about sockets and cores
  (``block:cyclic,nopack``), which does not move a task to another node.  In a step over several components of
  a heterogeneous job it is that of one component, mostly the last, and not the same one in all tasks.
* ``SLURM_STEP_NODELIST`` and ``SLURM_STEP_TASKS_PER_NODE`` of such a step are sorted by the nodes' names, but
  ranks and ``SLURM_NODEID`` go through one component after the other.
* ``SLURM_NTASKS_PER_NODE`` is what the job asked for.  Where a step's number of tasks does not fit, srun
  warns, ignores it and leaves it set: it counts only where ``SLURM_STEP_TASKS_PER_NODE`` is not to be seen.
* ``SLURMD_TRES_BIND`` is unset on a node with one task, whatever the others have.
* ``SLURM_RESTART_COUNT`` is unset in the first run (Slurm 22.05), or 0 (newer versions).  Where it is unset,
  a job submitted from inside a requeued one inherits that one's.
* ``SLURM_ARRAY_JOB_ID`` may be inherited likewise, from the array whose element has submitted this job.
  ``scontrol requeue`` takes the own number of an element, but for the last element's, which is the array's.
* ``SLURM_JOB_ID`` is the first component's in all steps of a heterogeneous job.  Those of all components
  (``SLURM_JOB_ID_HET_GROUP_0`` and so on) are inherited, too, by jobs that are submitted from there.  If srun
  itself made the job, they have only their former names (``SLURM_JOB_ID_PACK_GROUP_0``), in Slurm 22.05.

References:
    srun(1), sbatch(1), section OUTPUT ENVIRONMENT VARIABLES; the environments of every task of 31 jobs under
    Slurm 22.05.8 in ``tests/data/slurm_env/``.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tf_preempt._hostlist import expand_tasks_per_node
from tf_preempt._slurm_variables import SlurmVariables
from tf_preempt.errors import SlurmError

__all__ = ["GPU_VARIABLES", "SlurmJob", "SlurmRun", "is_slurm_job", "rank_in_step", "tasks_in_step"]

GPU_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "ZE_AFFINITY_MASK",
)
"""Lists of the GPUs that a process may use: CUDA, ROCm (its driver, then HIP on top of it), OpenCL, oneAPI.

Slurm sets those that ``gres.conf`` names in ``Flags``; without any, all but HIP's (``gres.conf(5)``)."""

# Step numbers from here on are none of srun: interactive shell (seen: use_interactive_step), batch, extern.
_FIRST_RESERVED_STEP = 0xFFFF_FFFA
# What slurmd did, not what somebody asked for: gpu:per_task:1 and the like; gpu:none is none.
_GPU_BINDING = re.compile(r"gpu:(?:verbose,)?(?:per_task|single|map_gpu|mask_gpu)")
# Slurm's own limit for heterogeneous jobs; keeps a nonsensical number from costing time.
_MOST_COMPONENTS = 128
_GROUP_WORDS = ("HET", "PACK")


def is_slurm_job(environ: Mapping[str, str]) -> bool:
    """Says whether `environ` is of a process in a Slurm job (a task, a batch script, or a shell)."""
    return bool(environ.get("SLURM_JOB_ID"))


def rank_in_step(environ: Mapping[str, str]) -> int:
    """The rank of this task as Slurm says it; 0 outside of a step, and where it says nothing readable.

    Environment:
        SLURM_PROCID.
    """
    rank = environ.get("SLURM_PROCID", "")
    return int(rank) if rank.isascii() and rank.isdigit() else 0


@dataclass(frozen=True, kw_only=True)
class SlurmRun:
    """One run of a job: a job that is requeued keeps its number and runs again from the top.

    Args:
        job_id: number of the job (of an array's element, its own; of a heterogeneous job, its first
            component's, by which alone it can be requeued).
        requeue_as: what ``scontrol requeue`` calls it: its own number, and ``12_3`` for the last element of
            an array, whose number is the whole array's.
        restart_count: how often it was requeued before this run.
        end_time: when its time limit ends it, in seconds since the epoch, as known at its start; None where
            Slurm does not say (22.05 does not).
    """

    job_id: int
    requeue_as: str
    restart_count: int = 0
    end_time: float | None = None

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> SlurmRun:
        """Reads which run of which job this process belongs to.

        Raises:
            SlurmError: there is no Slurm job, or a variable is malformed.

        Environment:
            SLURM_JOB_ID, SLURM_ARRAY_JOB_ID, SLURM_ARRAY_TASK_ID, SLURM_RESTART_COUNT, SLURM_JOB_END_TIME.
        """
        variables = SlurmVariables(environ)
        job_id = variables.integer("SLURM_JOB_ID", minimum=1)
        if job_id is None:
            raise SlurmError(
                "SLURM_JOB_ID is not set: this process does not run in a Slurm job.",
                hint="Start the program with srun or sbatch.",
            )
        # A job that was submitted from an array's element inherits these two: then the array has another
        # number, and its elements are none of this job's business.
        array, element = variables.integer("SLURM_ARRAY_JOB_ID"), variables.integer("SLURM_ARRAY_TASK_ID")
        return cls(
            job_id=job_id,
            requeue_as=str(job_id) if array != job_id or element is None else f"{array}_{element}",
            restart_count=variables.integer("SLURM_RESTART_COUNT") or 0,
            end_time=variables.integer("SLURM_JOB_END_TIME", minimum=1),
        )


@dataclass(frozen=True, kw_only=True)
class SlurmJob:
    """A Slurm job as one of its processes sees it.

    Built with `from_environ`.  Outside a step (`step_id` is None) `nodes` and `ntasks` are the job's and say
    what ``srun`` would start; inside one they are the step's.

    Args:
        job_id: number of the job; the same after a requeue.
        step_id: number of the step that this task belongs to; None in a batch script or an interactive shell.
        procid: rank of this task among the step's; 0 outside a step.
        nodeid: position of this task's node in `nodes`; None if Slurm does not say.
        localid: rank of this task among those on its node; None if Slurm does not say.
        ntasks: number of tasks.
        nodes: names of the nodes, in Slurm's order: component by component in a heterogeneous job.
        tasks_per_node: number of tasks on each of `nodes`; None if no variable says so.
        distribution: how tasks are laid over the nodes: ``block``, ``cyclic``, ``plane``, ``arbitrary``, in
            lower case and without the parts about sockets and cores; empty if Slurm does not say.
        plane_size: tasks in a block of the plane distribution; None if Slurm does not say.
        gtids: ranks of all tasks on this task's node; empty if Slurm does not say.
        nodename: Slurm's name of this node; None if Slurm does not say.
        restart_count: how often the job was requeued.
        gpu_lists: those of `GPU_VARIABLES` that are set, with what they say; set by Slurm or by the user.
        hostfile: file that names the node of each rank (arbitrary distribution); None if there is none.
        het_size: number of components of the job; 1 if it is not heterogeneous.
        group_nodes: how many of `nodes` belong to each component of a heterogeneous job that has any; empty
            for other jobs, and if the variables do not say whose the nodes are.
        group_distributions: distribution of each of these; from the resolver, Slurm has no variable; empty if
            it did not ask.
        rank_nodes: node of each rank, where a host file says so; from the resolver, Slurm has no variable.
        step_gpus: Slurm's numbers of the GPUs bound to this task or its step; empty if none.
        gpus_on_node: number of GPUs that this step (or job, outside a step) has on this node; None if Slurm
            manages none.
        gpus_bound: whether Slurm gave each task of the step GPUs of its own.
        gpus_per_task: number of GPUs that each task was asked for; None if Slurm does not say.
        resv_ports: TCP ports reserved for the step (``srun --resv-ports``); empty if none.

    Raises:
        SlurmError: the numbers contradict each other.
    """

    job_id: int
    step_id: int | None
    procid: int
    nodeid: int | None = None
    localid: int | None = None
    ntasks: int
    nodes: tuple[str, ...]
    tasks_per_node: tuple[int, ...] | None = None
    distribution: str = ""
    plane_size: int | None = None
    gtids: tuple[int, ...] = ()
    nodename: str | None = None
    restart_count: int = 0
    gpu_lists: tuple[tuple[str, str], ...] = ()
    hostfile: str | None = None
    het_size: int = 1
    group_nodes: tuple[int, ...] = ()
    group_distributions: tuple[str, ...] = ()
    rank_nodes: tuple[str, ...] = field(default=(), repr=False)
    step_gpus: tuple[str, ...] = ()
    gpus_on_node: int | None = None
    gpus_bound: bool = False
    gpus_per_task: int | None = None
    resv_ports: tuple[int, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if self.step_id is None:
            return
        if self.procid >= self.ntasks:
            raise SlurmError(
                f"SLURM_PROCID={self.procid} is not a rank of this step of {self.ntasks} tasks "
                "(SLURM_STEP_NUM_TASKS).",
                hint="Do not change or inherit Slurm's variables; let srun set them.",
            )
        if self.tasks_per_node is not None:
            self._check_counts(self.tasks_per_node)

    def _check_counts(self, counts: tuple[int, ...]) -> None:
        if len(counts) != len(self.nodes):
            raise SlurmError(
                f"The tasks per node {list(counts)} are for {len(counts)} nodes, but the step has "
                f"{len(self.nodes)} (SLURM_STEP_NODELIST): {_shorten(self.nodes)}.",
                hint="Leave tasks_per_node out, and let srun set SLURM_STEP_TASKS_PER_NODE.",
            )
        if sum(counts) != self.ntasks:
            raise SlurmError(
                f"The tasks per node {list(counts)} add up to {sum(counts)}, but the step has {self.ntasks} "
                "tasks (SLURM_STEP_NUM_TASKS).",
                hint="Leave tasks_per_node out, and let srun set SLURM_STEP_TASKS_PER_NODE.",
            )

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> SlurmJob:
        """Reads Slurm's variables.

        Args:
            environ: environment variables of a process in a Slurm job.

        Returns:
            The job, seen from the process that has this environment.

        Raises:
            SlurmError: there is no Slurm job, a variable that is needed is missing, one is malformed (its
                name, its value and what was expected are given), or two contradict each other.

        Environment:
            SLURM_JOB_ID, SLURM_STEP_ID, SLURM_PROCID, SLURM_NODEID, SLURM_LOCALID, SLURM_GTIDS,
            SLURMD_NODENAME, SLURM_STEP_NUM_TASKS, SLURM_STEP_NUM_NODES, SLURM_STEP_NODELIST,
            SLURM_STEP_TASKS_PER_NODE, SLURM_STEP_RESV_PORTS, SLURM_STEP_GPUS, SLURM_GPUS_ON_NODE,
            SLURM_GPUS_PER_TASK, SLURMD_TRES_BIND, SLURM_DISTRIBUTION, SLURM_DIST_PLANESIZE, SLURM_HOSTFILE,
            SLURM_HET_SIZE, SLURM_JOB_ID_HET_GROUP_0, SLURM_JOB_NODELIST_HET_GROUP_0 and so on (or PACK in
            place of HET), SLURM_RESTART_COUNT, and `GPU_VARIABLES`; as second choice or check SLURM_NTASKS,
            SLURM_NPROCS, SLURM_NNODES, SLURM_NTASKS_PER_NODE, SLURM_JOB_NODELIST, SLURM_NODELIST.
        """
        variables = SlurmVariables(environ)
        job_id = variables.integer("SLURM_JOB_ID", minimum=1)
        if job_id is None:
            raise SlurmError(
                "SLURM_JOB_ID is not set: this process does not run in a Slurm job.",
                hint="Start the program with srun or sbatch, or use tf_preempt.cluster_resolvers.auto().",
            )
        step_id = variables.integer("SLURM_STEP_ID", "SLURM_STEPID")
        if step_id is not None and (step_id >= _FIRST_RESERVED_STEP or _is_inherited(variables)):
            step_id = None
        layout = _step_layout(variables) if step_id is not None else _job_layout(variables)
        het_size = _het_size(variables, job_id)
        groups = _groups(variables, job_id, het_size, layout.nodes)
        layout = layout.in_order_of(groups)
        return cls(
            job_id=job_id,
            step_id=step_id,
            nodeid=variables.integer("SLURM_NODEID"),
            localid=variables.integer("SLURM_LOCALID"),
            distribution=re.split("[:,]", variables.text("SLURM_DISTRIBUTION") or "")[0].lower(),
            plane_size=variables.integer("SLURM_DIST_PLANESIZE", minimum=1),
            gtids=variables.integers("SLURM_GTIDS"),
            nodename=variables.text("SLURMD_NODENAME"),
            restart_count=variables.integer("SLURM_RESTART_COUNT") or 0,
            gpu_lists=tuple((name, environ[name]) for name in GPU_VARIABLES if name in environ),
            hostfile=variables.text("SLURM_HOSTFILE"),
            het_size=het_size,
            group_nodes=tuple(map(len, groups)),
            step_gpus=tuple(part for part in (variables.text("SLURM_STEP_GPUS") or "").split(",") if part),
            gpus_on_node=variables.integer("SLURM_GPUS_ON_NODE"),
            gpus_bound=bool(_GPU_BINDING.search(variables.text("SLURMD_TRES_BIND") or "")),
            gpus_per_task=_number_of_one_kind(variables.text("SLURM_GPUS_PER_TASK")),
            resv_ports=variables.ports("SLURM_STEP_RESV_PORTS"),
            procid=layout.procid,
            ntasks=layout.ntasks,
            nodes=layout.nodes,
            tasks_per_node=layout.tasks_per_node,
        )


def _number_of_one_kind(text: str | None) -> int | None:
    """The number in ``2`` or ``a100:2``; None in what names several kinds or none."""
    match = re.fullmatch(r"(?:[^,]*:)?([0-9]{1,9})", text or "")
    return int(match[1]) if match else None


def _is_inherited(variables: SlurmVariables) -> bool:
    """Whether the step's variables are those of another job's step: this process is on none of its nodes."""
    nodename, nodes = variables.text("SLURMD_NODENAME"), variables.hosts("SLURM_STEP_NODELIST")
    return nodename is not None and bool(nodes) and nodename not in nodes


def _refuse_other_size(variables: SlurmVariables) -> None:
    """The step's size is given twice, and differs where one of the two is of another step or job."""
    for own, steps in (("SLURM_NTASKS", "SLURM_STEP_NUM_TASKS"), ("SLURM_NNODES", "SLURM_STEP_NUM_NODES")):
        first, second = variables.integer(own), variables.integer(steps)
        if first is not None and second is not None and first != second:
            raise SlurmError(
                f"{own}={first}, but {steps}={second}: one of them belongs to another step or job.",
                hint="Start the program with srun, without --preserve-env.  A batch script that is submitted "
                "from inside a step inherits that step's variables: `unset ${!SLURM_STEP_@}` drops them.",
            )


def tasks_in_step(environ: Mapping[str, str]) -> int:
    """Number of tasks in the step of this process; 0 outside of a step, and where that cannot be told."""
    try:
        job = SlurmJob.from_environ(environ)
    except SlurmError:
        return 0
    return job.ntasks if job.step_id is not None else 0


@dataclass(frozen=True, kw_only=True)
class _Layout:
    procid: int
    ntasks: int
    nodes: tuple[str, ...]
    tasks_per_node: tuple[int, ...] | None

    def in_order_of(self, groups: Sequence[tuple[str, ...]]) -> _Layout:
        """The same, node by node of `groups`, if there are any."""
        if not groups:
            return self
        nodes = tuple(itertools.chain(*groups))
        counts = self.tasks_per_node
        if counts is not None and len(counts) == len(nodes):
            on_node = dict(zip(self.nodes, counts, strict=True))
            counts = tuple(on_node[node] for node in nodes)
        return dataclasses.replace(self, nodes=nodes, tasks_per_node=counts)


def _step_layout(variables: SlurmVariables) -> _Layout:
    """Tasks and nodes of the step that this task belongs to."""
    _refuse_other_size(variables)
    procid = variables.integer("SLURM_PROCID")
    ntasks = variables.integer("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", minimum=1)
    nodes = variables.hosts("SLURM_STEP_NODELIST")
    if procid is None:
        raise variables.missing("SLURM_PROCID", "the rank of this task")
    if ntasks is None:
        raise variables.missing("SLURM_STEP_NUM_TASKS", "the number of tasks of this step")
    if not nodes:
        raise variables.missing("SLURM_STEP_NODELIST", "the nodes of this step")
    return _Layout(
        procid=procid,
        ntasks=ntasks,
        nodes=nodes,
        tasks_per_node=_tasks_per_node(variables, ntasks=ntasks, nodes=len(nodes)),
    )


def _tasks_per_node(variables: SlurmVariables, *, ntasks: int, nodes: int) -> tuple[int, ...] | None:
    if (text := variables.text("SLURM_STEP_TASKS_PER_NODE")) is not None:
        try:
            return tuple(expand_tasks_per_node(text))
        except SlurmError as error:
            raise variables.malformed(
                "SLURM_STEP_TASKS_PER_NODE", "one number of tasks per node", error
            ) from error
    per_node = variables.integer("SLURM_NTASKS_PER_NODE", minimum=1)
    if per_node is not None and per_node * nodes != ntasks:
        raise SlurmError(
            f"SLURM_NTASKS_PER_NODE={per_node} on {nodes} node(s) makes {per_node * nodes} tasks, but the "
            f"step has {ntasks} (SLURM_STEP_NUM_TASKS).",
            hint="Let the program see SLURM_STEP_TASKS_PER_NODE, which srun sets and which decides; or unset "
            "SLURM_NTASKS_PER_NODE and pass tasks_per_node=.",
        )
    if nodes in (1, ntasks):
        return (ntasks // nodes,) * nodes
    return None if per_node is None else (per_node,) * nodes


def _het_size(variables: SlurmVariables, job_id: int) -> int:
    """Number of components; 1 where the variables are those of the job from which this one was submitted."""
    owners = [variables.integer(f"SLURM_JOB_ID_{word}_GROUP_0") for word in _GROUP_WORDS]
    if any(owners) and job_id not in owners:
        return 1
    return max(1, min(variables.integer("SLURM_HET_SIZE") or 1, _MOST_COMPONENTS))


def _groups(
    variables: SlurmVariables, job_id: int, size: int, nodes: tuple[str, ...]
) -> list[tuple[str, ...]]:
    """The step's nodes of each component that has some; empty if the variables do not say whose they are."""
    for word in _GROUP_WORDS if size > 1 else ():
        if variables.integer(f"SLURM_JOB_ID_{word}_GROUP_0") not in (None, job_id):
            continue  # inherited
        members = [variables.hosts(f"SLURM_JOB_NODELIST_{word}_GROUP_{group}") for group in range(size)]
        in_step = set(nodes)
        groups = [tuple(node for node in group if node in in_step) for group in members]
        if sorted(itertools.chain(*groups)) == sorted(nodes):
            return [group for group in groups if group]
    return []


def _job_layout(variables: SlurmVariables) -> _Layout:
    """What srun would start; a job that names no number of tasks gets one on each node."""
    nodes = variables.hosts("SLURM_JOB_NODELIST") or variables.hosts("SLURM_NODELIST")
    ntasks = variables.integer("SLURM_NTASKS", "SLURM_NPROCS", minimum=1)
    return _Layout(procid=0, ntasks=ntasks or max(1, len(nodes)), nodes=nodes, tasks_per_node=None)


def _shorten(names: tuple[str, ...], limit: int = 8) -> str:
    return ",".join(names[:limit]) + (f",... ({len(names)} in all)" if len(names) > limit else "")
