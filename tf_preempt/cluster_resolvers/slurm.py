"""The cluster that the tasks of a Slurm step make up."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import tensorflow as tf

from tf_preempt._slurm import SlurmJob
from tf_preempt._slurm_control import SlurmControl
from tf_preempt.cluster_resolvers._client_ports import client_ports
from tf_preempt.cluster_resolvers._slurm_components import StepComponents
from tf_preempt.cluster_resolvers._slurm_gpus import GpuRequest, check_gpu_request
from tf_preempt.cluster_resolvers._slurm_hostfile import with_hostfile
from tf_preempt.cluster_resolvers._slurm_layout import addresses, place_ranks, task_node
from tf_preempt.cluster_resolvers._slurm_other_gpus import GpusOfNodes, gpus_of_task
from tf_preempt.cluster_resolvers._slurm_own_gpus import settle_gpus
from tf_preempt.cluster_resolvers._slurm_tasks import as_step, job_sizes, with_tasks_per_node
from tf_preempt.cluster_resolvers.base import ClusterResolverBase
from tf_preempt.errors import ClusterConfigError

__all__ = ["SlurmClusterResolver"]

_LOG = logging.getLogger("tf_preempt")


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
        auto_set_gpu: whether to narrow ``CUDA_VISIBLE_DEVICES`` and the like, where all tasks of a node see
            the same list.
        rpc_layer: protocol between the tasks.
        environ: environment variables; the lists of GPUs are set in them.
        control: Slurm's controller, which is asked for the GPUs of other nodes, and, if the step has several
            components of a heterogeneous job whose distributions matter, for those; None: the one that
            `environ` leads to.
        host_ports: ports that this host gives to clients.  Only reported: what differs between hosts cannot
            have a part in choosing ports, since all tasks have to choose the same.

    Raises:
        SlurmError: this is no Slurm job, or a batch script or shell of a job of several tasks, outside of
            ``srun``; a variable is missing or malformed; the variables contradict each other, `jobs` or
            `tasks_per_node`; more GPUs are requested than there are; the distribution cannot be followed, or
            its host file cannot be read.
        ConfigError: an argument has a value that cannot be used.

    Environment:
        Slurm's variables (see `SlurmJob.from_environ`) are read.
        CUDA_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES, GPU_DEVICE_ORDINAL, ZE_AFFINITY_MASK:
            read, and those that are set narrowed to this task's share, once.
        TF_PREEMPT_OWN_GPUS: set with them, so that other resolvers in this process and its children see that
            the lists are this task's own already.
        PATH, SLURM_CONF: where ``scontrol`` is, and what it asks.
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
        control: SlurmControl | None = None,
        host_ports: Callable[[], range] = client_ports,
    ) -> None:
        self._environ = environ
        self._jobs = None if jobs is None else dict(jobs)
        self._port_base = port_base
        self._tasks_per_node = tasks_per_node
        self._gpus = GpuRequest(per_node=gpus_per_node, per_task=gpus_per_task)
        self._auto_set_gpu = auto_set_gpu
        control = control or SlurmControl(environ)
        self._components, self._gpus_of_nodes = StepComponents(control), GpusOfNodes(control)
        self._rank_nodes: dict[tuple[Any, ...], tuple[str, ...]] = {}
        self._component_warned = False
        job = self._job()
        task_type, task_id = self._tasks(job)[job.procid]
        super().__init__(task_type=task_type, task_id=task_id, rpc_layer=rpc_layer)
        self._report_client_port(job, addresses(job, port_base)[job.procid], host_ports)
        own = place_ranks(job)[job.procid]
        check_gpu_request(self._gpus, job, task_node(job, own))
        if auto_set_gpu:
            settle_gpus(environ, job, self._gpus, own)

    def _job(self) -> SlurmJob:
        job = as_step(SlurmJob.from_environ(self._environ))
        if self._tasks_per_node is not None:
            job = with_tasks_per_node(job, self._tasks_per_node)
        job = self._components.settle(job)
        # Read once: a host file may be gone when the tasks have started.
        key = (job.distribution, job.hostfile, job.nodes, job.ntasks)
        if key not in self._rank_nodes:
            self._rank_nodes[key] = with_hostfile(job).rank_nodes
        return dataclasses.replace(job, rank_nodes=self._rank_nodes[key])

    def _tasks(self, job: SlurmJob) -> list[tuple[str, int]]:
        """Job name and index of each rank."""
        sizes = job_sizes(self._jobs, job.ntasks)
        return [(name, index) for name, size in sizes.items() for index in range(size)]

    def cluster_spec(self) -> tf.train.ClusterSpec:
        """The addresses of all tasks, resolved anew from the environment.

        Raises:
            SlurmError: Slurm's variables were changed since the resolver was built, to values that are wrong.
        """
        job = self._job()
        tasks = zip(self._tasks(job), addresses(job, self._port_base), strict=True)
        return tf.train.ClusterSpec(
            {
                name: [address for _, address in members]
                for name, members in itertools.groupby(tasks, key=lambda task: task[0][0])
            }
        )

    def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: Any = None,
    ) -> dict[str, int]:
        """Number of GPUs of a task.

        It is `gpus_per_task`, if that was given, and else for tasks on this node what TensorFlow sees here.
        For a task on another node Slurm's controller is asked, once, how many GPUs the job has there; they
        are divided as here.  Where it cannot be asked, the other node is taken to be as this one, and a line
        in the log says so; a warning, for another component of a heterogeneous job, which may well differ.
        It is not asked where all tasks have the same number: ``--gpus-per-task``, `gpus_per_node`.

        Args:
            task_type: job name of the task that is asked about; None: this task's.
            task_id: index of that task; None: this task's.
            config_proto: not used; there for TensorFlow's callers.

        Returns:
            Accelerator type to number; empty where there is none.

        Raises:
            ClusterConfigError: the cluster has no such task.
        """
        del config_proto
        job, task = self._job(), (task_type or self.task_type, self.task_id if task_id is None else task_id)
        tasks = self._tasks(job)
        if task not in tasks:
            raise ClusterConfigError(
                f"The cluster has no task {task[0]!r} {task[1]!r}; it has these numbers of tasks: "
                f"{job_sizes(self._jobs, job.ntasks)}.",
                hint="Ask for a task that is in cluster_spec().",
            )
        if 0 in (self._gpus.per_task, self._gpus.per_node):
            return {}
        if self._gpus.per_task is not None:
            return {"GPU": self._gpus.per_task}
        count = self._count_elsewhere(job, tasks.index(task))
        if count is None:
            return super().num_accelerators()
        return {"GPU": count} if count else {}

    def _count_elsewhere(self, job: SlurmJob, rank: int) -> int | None:
        """Number of GPUs of a task on another node; None if it is taken to be as here."""
        placements = place_ranks(job)
        own, other = placements[job.procid], placements[rank]
        is_other_component = own.component != other.component
        # Slurm gives all nodes of a component GPUs, or none of them.
        may_differ = is_other_component or (
            job.gpus_on_node is not None and not job.gpus_bound and job.gpus_per_task is None
        )
        count = None
        if own.node != other.node and may_differ and self._gpus.per_node is None:
            count = self._gpus_of_nodes.on(other.node, job, own.node)
        if count is not None:
            return gpus_of_task(job, task_node(job, other), count, divided=self._auto_set_gpu)
        if is_other_component:
            self._warn_of_other_component(job, rank)
        return None

    def _warn_of_other_component(self, job: SlurmJob, rank: int) -> None:
        if self._component_warned:
            return
        self._component_warned = True
        _LOG.warning(
            "Rank %d is taken to have as many GPUs as rank %d, although it is in another component of the "
            "heterogeneous job. HINT: pass gpus_per_task=, if all tasks have the same number.",
            rank,
            job.procid,
        )

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
