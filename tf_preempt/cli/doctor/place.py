"""Where this process runs, and what its cluster is: as the resolvers see it, but without TensorFlow.

`cluster_resolvers.auto` makes objects of TensorFlow, whose import takes seconds.  What it would choose
follows from the same pure functions that the resolvers are built on.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping

from tf_preempt._slurm import SlurmJob, is_slurm_job, rank_in_step
from tf_preempt._slurm_control import SlurmControl
from tf_preempt.cli.doctor.finding import Finding, Status, from_error
from tf_preempt.cli.doctor.gpus import Gpus, listed_gpus, step_gpus
from tf_preempt.cluster_resolvers._slurm_components import StepComponents
from tf_preempt.cluster_resolvers._slurm_hostfile import with_hostfile
from tf_preempt.cluster_resolvers._slurm_layout import addresses
from tf_preempt.cluster_resolvers._tf_config_parser import TFConfig, parse_tf_config
from tf_preempt.cluster_resolvers.auto import slurm_contradiction
from tf_preempt.errors import SlurmError, TfPreemptError
from tf_preempt.termination.auto import Platform

__all__ = ["Member", "Place", "describe_place", "find_place"]

_SHOWN = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Member:
    """One task of the cluster.

    Args:
        task_type: its job name.
        task_id: its index in that job.
        address: ``host:port``.
    """

    task_type: str
    task_id: int
    address: str

    @property
    def name(self) -> str:
        """Such as ``worker 1``."""
        return f"{self.task_type} {self.task_id}"

    @property
    def host(self) -> str:
        """The host of its address, an IPv6 one without its brackets."""
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """The port of its address."""
        return int(self.address.rpartition(":")[2])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """This process's place.

    Args:
        platform: what it runs on.
        resolver: name of the resolver that `cluster_resolvers.auto` takes; None if it raises.
        reason: why that one.
        members: all tasks of the cluster, the chief first; empty for a single worker without an address.
        rank: position of this task in `members`, None if it is not among them; 0 for a single worker.
        task_type: job name of this task.
        task_id: its index.
        job: the Slurm job; None outside of one, and if its variables are wrong.
        gpus: which GPUs it gets; None if that is not known.
        troubles: what is wrong with the cluster's description.
    """

    platform: Platform
    resolver: str | None = None
    reason: str = ""
    members: tuple[Member, ...] = ()
    rank: int | None = 0
    task_type: str = "worker"
    task_id: int = 0
    job: SlurmJob | None = None
    gpus: Gpus | None = None
    troubles: tuple[Finding, ...] = ()

    @property
    def in_step(self) -> bool:
        """Whether ``srun`` has started this process."""
        return self.job is not None and self.job.step_id is not None

    @property
    def is_first(self) -> bool:
        """Whether this task speaks and writes for all."""
        return self.rank == 0


def find_place(environ: Mapping[str, str], platform: Platform) -> Place:
    """Reads this process's place from its environment.

    Args:
        environ: environment variables.
        platform: what `detect_platform` says.

    Environment:
        TF_CONFIG, Slurm's variables (see `SlurmJob.from_environ`), and the lists of GPUs.
    """
    try:
        config = parse_tf_config(environ.get("TF_CONFIG"))
        job = SlurmJob.from_environ(environ) if is_slurm_job(environ) and not config.cluster else None
        if config.cluster:
            return _from_tf_config(config, environ, platform)
        if job is not None and job.step_id is not None:
            job = StepComponents(SlurmControl(environ)).settle(job)
            return _from_step(with_hostfile(job), platform)
    except TfPreemptError as error:
        trouble = from_error("cluster", error, hint="start the program with srun, or set TF_CONFIG")
        # Each task of a step finds the same; without a rank of its own each of them would tell all.
        return Place(platform=platform, troubles=(trouble,), rank=rank_in_step(environ))
    return Place(
        platform=platform,
        resolver="LocalClusterResolver",
        reason="TF_CONFIG is not set, and "
        + ("this is no Slurm job" if job is None else "srun did not start this process"),
        job=job,
        gpus=listed_gpus(environ),
    )


def _from_tf_config(config: TFConfig, environ: Mapping[str, str], platform: Platform) -> Place:
    jobs = sorted(config.cluster, key=lambda name: (name != "chief", name != "worker"))
    members = tuple(
        Member(task_type=name, task_id=index, address=address)
        for name in jobs
        for index, address in enumerate(config.cluster[name])
    )
    own = (config.task_type or "worker", config.task_id or 0)
    rank = next((at for at, member in enumerate(members) if (member.task_type, member.task_id) == own), None)
    job, troubles = None, []
    if (problem := slurm_contradiction(config, environ)) is not None:
        hint = "let srun set Slurm's variables, or unset them"
        troubles.append(from_error("cluster", problem, hint=hint, status=Status.WARNING))
    if is_slurm_job(environ):
        with contextlib.suppress(SlurmError):  # which is among the troubles
            job = SlurmJob.from_environ(environ)
    return Place(
        platform=platform,
        resolver="TFConfigClusterResolver",
        reason="TF_CONFIG is set",
        members=members,
        rank=rank,
        task_type=own[0],
        task_id=own[1],
        job=job,
        gpus=listed_gpus(environ),
        troubles=tuple(troubles),
    )


def _from_step(job: SlurmJob, platform: Platform) -> Place:
    members = tuple(
        Member(task_type="worker", task_id=rank, address=address)
        for rank, address in enumerate(addresses(job))
    )
    return Place(
        platform=platform,
        resolver="SlurmClusterResolver",
        reason=f"this is a task of step {job.job_id}.{job.step_id}, and TF_CONFIG is not set",
        members=members,
        rank=job.procid,
        task_id=job.procid,
        job=job,
        gpus=step_gpus(job),
    )


def describe_place(place: Place, *, host: str) -> list[Finding]:
    """Says what was detected.

    Args:
        place: this process's place.
        host: name of this machine.
    """
    findings = [
        Finding(Status.INFO, "platform", str(place.platform), values={"platform": str(place.platform)})
    ]
    if place.resolver is not None:
        findings += [_cluster(place), _task(place, host)]
    if place.gpus is not None:
        findings += place.gpus.findings()
    return [*findings, *place.troubles]


def _cluster(place: Place) -> Finding:
    shown = ", ".join(f"{member.name} {member.address}" for member in place.members[:_SHOWN])
    more = f", ... ({len(place.members)} in all)" if len(place.members) > _SHOWN else ""
    return Finding(
        Status.OK,
        "cluster",
        f"{place.resolver}, because {place.reason}: {shown + more or 'one worker, without an address'}",
        values={
            "resolver": place.resolver,
            "reason": place.reason,
            "tasks": [
                {"type": member.task_type, "index": member.task_id, "address": member.address}
                for member in place.members
            ],
        },
    )


def _task(place: Place, host: str) -> Finding:
    own = place.members[place.rank] if place.members and place.rank is not None else None
    rank = (
        f"rank {place.rank} of {len(place.members) or 1}" if place.rank is not None else "outside the cluster"
    )
    where = f"{own.host}, port {own.port}" if own else f"{host}, without a port"
    return Finding(
        Status.INFO,
        "task",
        f"{place.task_type} {place.task_id}, {rank}, on {where}",
        values={
            "type": place.task_type,
            "index": place.task_id,
            "rank": place.rank,
            "host": own.host if own else host,
            "port": own.port if own else None,
        },
    )
