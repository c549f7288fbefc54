"""The cluster that the tasks of a Slurm step make up."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import tensorflow as tf

from tf_preempt._slurm import SlurmJob
from tf_preempt.cluster_resolvers._client_ports import client_ports
from tf_preempt.cluster_resolvers._slurm_gpus import GpuRequest, check_gpu_request, own_devices
from tf_preempt.cluster_resolvers._slurm_layout import addresses, place_ranks
from tf_preempt.cluster_resolvers.base import ClusterResolverBase
from tf_preempt.errors import ConfigError, SlurmError

__all__ = ["SlurmClusterResolver"]

_LOG = logging.getLogger("tf_preempt")
_OWN_GPUS = "TF_PREEMPT_OWN_GPUS"


class SlurmClusterResolver(ClusterResolverBase):
    """Resolves the cluster from the variables that ``srun`` sets for each task.

    Use it in a program that is started with ``srun``; no argument is needed.  It takes what TensorFlow's
    resolver of the same name takes, and differs where that one is wrong or fails: the tasks' addresses follow
    Slurm's order of nodes and its distribution, jobs without GPUs work, GPUs that Slurm bound to a task stay
    as they are, ports of two jobs differ, and the task is known as soon as the resolver is built.

    Example:
        >>> resolver = SlurmClusterResolver()
        >>> strategy = tf_preempt.strategies.MultiWorkerMirroredStrategy(resolver)

    Args:
        jobs: job names to numbers of tasks, together as many as the step has; by default all are workers.
            Ranks are given to the chief first and then in the order of the mapping.
        port_base: port of the first task on each node, the node's other tasks take the next ones; by default
            those that Slurm reserved (``--resv-ports``), or else derived from the numbers of job and step.
        gpus_per_node: number of GPUs on each node; by default what Slurm says.
        gpus_per_task: number of GPUs for each task; by default the node's, divided by the tasks on it.
        tasks_per_node: number of tasks on each node, or on each by name; by default what Slurm says.
        auto_set_gpu: whether to narrow ``CUDA_VISIBLE_DEVICES`` where all tasks of a node see the same list.
        rpc_layer: protocol between the tasks.
        environ: environment variables; ``CUDA_VISIBLE_DEVICES`` is set in them.
        host_ports: ports that this host gives to clients.  Only reported: what differs between hosts cannot
            have a part in choosing ports, since all tasks have to choose the same.

    Raises:
        SlurmError: this is no Slurm job, or a batch script or shell of a job of several tasks, outside of
            ``srun``; a variable is missing or malformed; the variables contradict each other, `jobs` or
            `tasks_per_node`; more GPUs per node are requested than there are; the distribution cannot be
            followed.
        ConfigError: an argument has a value that cannot be used.

    Environment:
        Slurm's variables (see `SlurmJob.from_environ`) and CUDA_VISIBLE_DEVICES are read.
        CUDA_VISIBLE_DEVICES: narrowed to this task's share, once.
        TF_PREEMPT_OWN_GPUS: set with it, so that other resolvers in this process and its children see that
            the list is this task's own already.
    """

    def __init__(
        self,
        jobs: Mapping[str, int] | None = None,
        port_base: int | None = None,
        gpus_per_node: int | None = None,
        gpus_per_task: int | None = None,
        tasks_per_node: int | Mapping[str, int] | None = None,
        auto_set_gpu: bool = True,
        rpc_layer: str | None = "grpc",
        *,
        environ: MutableMapping[str, str] = os.environ,
        host_ports: Callable[[], range] = client_ports,
    ) -> None:
        self._environ = environ
        self._jobs = None if jobs is None else dict(jobs)
        self._port_base = port_base
        self._tasks_per_node = tasks_per_node
        self._gpus = GpuRequest(per_node=gpus_per_node, per_task=gpus_per_task)
        job = self._job()
        cluster = self._cluster(job)
        task_type, task_id = _task_of_rank(cluster, job.procid)
        super().__init__(task_type=task_type, task_id=task_id, rpc_layer=rpc_layer)
        self._report_client_port(job, cluster[task_type][task_id], host_ports)
        self._settle_gpus(job, auto_set_gpu)

    def _job(self) -> SlurmJob:
        job = _as_step(SlurmJob.from_environ(self._environ))
        if self._tasks_per_node is None:
            return job
        return _with_tasks_per_node(job, self._tasks_per_node)

    def _cluster(self, job: SlurmJob) -> dict[str, list[str]]:
        sizes = _job_sizes(self._jobs, job.ntasks)
        ranks = iter(addresses(job, self._port_base))
        return {name: [next(ranks) for _ in range(size)] for name, size in sizes.items()}

    def cluster_spec(self) -> tf.train.ClusterSpec:
        """The addresses of all tasks, resolved anew from the environment.

        Raises:
            SlurmError: Slurm's variables were changed since the resolver was built, to values that are wrong.
        """
        return tf.train.ClusterSpec(self._cluster(self._job()))

    def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: Any = None,
    ) -> dict[str, int]:
        """Number of GPUs of a task: `gpus_per_task` if it was given, else those that TensorFlow sees here.

        Args:
            task_type: job name of the task that is asked about; all tasks are taken to be alike.
            task_id: index of that task.
            config_proto: not used; there for TensorFlow's callers.

        Returns:
            Accelerator type to number; empty where there is none.
        """
        if self._gpus.per_task is not None:
            return {"GPU": self._gpus.per_task} if self._gpus.per_task else {}
        return super().num_accelerators(task_type, task_id, config_proto)

    def _report_client_port(self, job: SlurmJob, address: str, host_ports: Callable[[], range]) -> None:
        """Says so where a client on this host may hold the port that was derived for this task."""
        port = int(address.rpartition(":")[2])
        if self._port_base is None and not job.resv_ports and port in (clients := host_ports()):
            _LOG.info(
                "%s is in this host's range for clients (%d to %d), so another program may hold it. HINT: "
                "if so, reserve ports with `srun --resv-ports=N`, or pass port_base=.",
                address,
                clients.start,
                clients.stop - 1,
            )

    def _settle_gpus(self, job: SlurmJob, auto_set_gpu: bool) -> None:
        placements = place_ranks(job)
        own = placements[job.procid]
        most = max(job.tasks_per_node or (1,))
        check_gpu_request(self._gpus, job, most)
        task = f"{job.job_id}.{job.step_id}.{job.procid}"
        if not auto_set_gpu or self._environ.get(_OWN_GPUS) == f"{task}:{job.cuda_visible_devices}":
            return
        devices = own_devices(
            self._gpus,
            job,
            local_rank=own.local_rank,
            tasks_here=sum(placement.node_index == own.node_index for placement in placements),
            most_tasks_on_a_node=most,
        )
        if devices is None:
            return
        text = ",".join(devices)
        before = job.cuda_visible_devices
        self._environ["CUDA_VISIBLE_DEVICES"] = text
        self._environ[_OWN_GPUS] = f"{task}:{text}"
        _LOG.info(
            "GPUs of rank %d (local rank %d on %s): CUDA_VISIBLE_DEVICES=%s, its share of %s",
            job.procid,
            own.local_rank,
            own.node,
            text,
            "the node's GPUs" if before is None else before,
        )


def _as_step(job: SlurmJob) -> SlurmJob:
    """A job without srun as a step of one task, if one is all it has."""
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


def _with_tasks_per_node(job: SlurmJob, asked: int | Mapping[str, int]) -> SlurmJob:
    """The job with the numbers that the caller gave, which Slurm's own must not contradict."""
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


def _job_sizes(jobs: Mapping[str, int] | None, ntasks: int) -> dict[str, int]:
    """Number of tasks of each job, in the order in which ranks are given to them."""
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


def _task_of_rank(cluster: Mapping[str, list[str]], rank: int) -> tuple[str, int]:
    tasks = [(name, index) for name, members in cluster.items() for index in range(len(members))]
    return tasks[rank]
