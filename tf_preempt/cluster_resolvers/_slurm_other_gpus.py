"""How many GPUs the tasks on other nodes have, which Slurm's controller knows.

A task's variables speak of its own node only: with ``--gpus=6``, one node may give four and another two.

References:
    scontrol(1), ``show job --details``; answers of Slurm 22.05.8: ``tests/data/slurm_show_job/gpus*.txt``.
"""

from __future__ import annotations

import dataclasses
import logging
import re

from tf_preempt._hostlist import expand_hostlist
from tf_preempt._slurm import SlurmJob
from tf_preempt._slurm_control import SlurmControl, jobs_in
from tf_preempt.cluster_resolvers._slurm_gpus import GpuRequest, TaskNode, share_gpus, visible_devices
from tf_preempt.errors import SlurmError

__all__ = ["GpusOfNodes", "gpus_by_node", "gpus_of_task"]

_LOG = logging.getLogger("tf_preempt")
_NODES = re.compile(r"\sNodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)")
# gpu:4(IDX:0-3), or gpu:a100:2(IDX:0,2); others, such as nic:1 and gpu's shards, go by other names.
_GPUS = re.compile(r"(?:^|,)gpu(?::[^:,()]+)?:([0-9]+)(?=[(,]|$)")
_LIST = "CUDA_VISIBLE_DEVICES"


def gpus_by_node(text: str, job_id: int) -> dict[str, int]:
    """Reads ``scontrol show job -d -o``.

    Args:
        text: the answer.
        job_id: number of the job, the first component's for a heterogeneous one, all of which counts.

    Returns:
        Number of GPUs that the job has on each of its nodes.

    Raises:
        SlurmError: nothing is said about the job's nodes.
    """
    numbers: dict[str, int] = {}
    for fields, rest in jobs_in(text):
        if str(job_id) not in (fields["JobId"], fields.get("HetJobId")):
            continue  # another element of the array
        for nodes, gres in _NODES.findall(rest):
            for node in expand_hostlist(nodes):
                numbers[node] = numbers.get(node, 0) + sum(map(int, _GPUS.findall(gres)))
    if not numbers:
        raise SlurmError(f"`scontrol show job -d` tells nothing about the nodes of job {job_id}.")
    return numbers


def gpus_of_task(job: SlurmJob, node: TaskNode, on_node: int, *, divided: bool) -> int:
    """Number of GPUs of a task on a node that has `on_node` of them.

    Args:
        job: the step.
        node: the task's node.
        on_node: number of GPUs of the step on that node.
        divided: whether a node's GPUs are divided among its tasks.
    """
    if not divided or not on_node:
        return on_node
    devices = ",".join(map(str, range(on_node)))
    there = dataclasses.replace(
        job, gpu_lists=((_LIST, devices),), gpus_on_node=on_node, gpus_bound=False, gpus_per_task=None
    )
    share = share_gpus(GpuRequest(), there, node)
    return len(visible_devices(share.variables.get(_LIST, devices)))


class GpusOfNodes:
    """What the controller says about the GPUs of a job's nodes; asked once, when somebody wants to know.

    Args:
        control: the controller.
    """

    def __init__(self, control: SlurmControl) -> None:
        self._control = control
        self._numbers: dict[int, dict[str, int]] = {}

    def on(self, node: str, job: SlurmJob, own_node: str) -> int | None:
        """Number of GPUs that a step has on a node.

        Args:
            node: name of the node.
            job: the step.
            own_node: name of this task's node.

        Returns:
            The number; None if the controller does not tell, or if the step has other GPUs than the job, of
            which alone it tells.
        """
        if job.job_id not in self._numbers:
            self._numbers[job.job_id] = self._ask(job, own_node)
        return self._numbers[job.job_id].get(node)

    def _ask(self, job: SlurmJob, own_node: str) -> dict[str, int]:
        try:
            said = self._control.ask("scontrol", "show", "job", "-d", "-o", str(job.job_id))
            numbers = gpus_by_node(said, job.job_id)
        except SlurmError as error:
            problem = str(error).splitlines()[0]
        else:
            here = numbers.get(own_node)
            if here == (job.gpus_on_node or 0):
                return numbers
            problem = f"job {job.job_id} has {here} on {own_node}, but this step {job.gpus_on_node or 0}."
        _LOG.info("How many GPUs other nodes have is not known, and taken to be as here: %s", problem)
        return {}
