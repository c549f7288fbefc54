"""What preemption does to a job of Slurm, and how long before its end the job hears of it.

Pure functions of the controller's answers (`SlurmFacts`).

References:
    slurm.conf(5), https://slurm.schedmd.com/preempt.html (seen 2026-11).  Under Slurm 22.05.8 it was seen
    that SIGTERM comes to the tasks of a step at once, and to the batch script only when the grace is over;
    and that a job of a partition with PreemptMode=CANCEL is requeued if it asks for that in its grace.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tf_preempt.cli.doctor.finding import Finding, Status
from tf_preempt.cli.doctor.saves import Notice
from tf_preempt.cli.doctor.slurm_facts import SlurmFacts, seconds_of

__all__ = ["Preemption", "check_bad_exit", "check_preemption", "check_start", "preemption_of"]

_ENDS = ("REQUEUE", "CANCEL")
# Words of PreemptMode that say how is preempted, not what becomes of the job.
_MANNERS = {"GANG", "WITHIN", "PRIORITY"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preemption:
    """What preemption does to a job.

    Args:
        kind: ``PreemptType`` of the cluster; empty if unknown.
        mode: ``REQUEUE``, ``CANCEL``, ``SUSPEND``, ``OFF``, ...; empty if unknown.
        owner: what sets mode and grace, such as ``partition low``.
        grace_s: seconds from the notice until Slurm begins to end the job; None if unknown.
        kill_wait_s: seconds from then to SIGKILL; None if unknown.
    """

    kind: str = ""
    mode: str = ""
    owner: str = ""
    grace_s: float | None = None
    kill_wait_s: float | None = None

    @property
    def ends_jobs(self) -> bool:
        """Whether a preempted job's processes are ended."""
        return self.mode in _ENDS

    def notice(self) -> Notice | None:
        """How long a preempted job has; None if it has not to go or that is not known."""
        if not self.ends_jobs or self.grace_s is None or self.kill_wait_s is None:
            return None
        return Notice(
            seconds=self.grace_s + self.kill_wait_s,
            origin=f"GraceTime {self.grace_s:g} s + KillWait {self.kill_wait_s:g} s",
            cure=f"ask the administrator for a longer GraceTime of {self.owner}",
        )


def preemption_of(facts: SlurmFacts) -> Preemption:
    """Says what preemption does to the job, from the cluster's configuration, the partition and the QOS."""
    kind, cluster_mode = facts.config.get("PreemptType", ""), facts.config.get("PreemptMode", "")
    kill_wait_s = seconds_of(facts.config.get("KillWait"))
    if kind == "preempt/none":
        return Preemption(kind=kind, mode="OFF", owner="the cluster", kill_wait_s=kill_wait_s)
    name = facts.partition.get("PartitionName", facts.record.partition if facts.record else "")
    source, owner = facts.partition, f"partition {name}"
    if kind == "preempt/qos":
        source, owner = facts.qos, f"QOS {facts.qos.get('Name', 'of the job')}"
    mode = source.get("PreemptMode", "").upper()
    if mode in ("", "CLUSTER", "N/A"):
        mode = cluster_mode.upper()
    words = set(mode.split(",")) - _MANNERS
    return Preemption(
        kind=kind,
        mode=",".join(sorted(words)) or mode,
        owner=owner,
        grace_s=seconds_of(source.get("GraceTime")),
        kill_wait_s=kill_wait_s,
    )


def check_preemption(preemption: Preemption, config: Mapping[str, str]) -> Finding:
    """Says what comes when the job is preempted.

    Args:
        preemption: what preemption does to it.
        config: settings of the cluster.
    """
    values = dataclasses.asdict(preemption)
    owner, grace_s = preemption.owner, preemption.grace_s
    told = f"PreemptType={preemption.kind or 'unknown'}, PreemptMode={preemption.mode or 'unknown'}"
    wait = f"{preemption.kill_wait_s:g} s" if preemption.kill_wait_s is not None else "an unknown time"
    if not preemption.ends_jobs:
        what = "jobs are not preempted" if preemption.mode == "OFF" else "jobs are not ended when preempted"
        message = f"{owner}: {what} ({told}); at the time limit SIGKILL comes {wait} (KillWait) after SIGTERM"
        return Finding(Status.INFO, "preemption", message, values=values)
    if grace_s is None:
        hint = f"sacctmgr show {owner} format=GraceTime" if preemption.kind == "preempt/qos" else None
        return Finding(Status.INFO, "preemption", f"{owner}: {told}; its GraceTime is unknown", hint, values)
    if grace_s == 0:
        message = (
            f"A preempted job of {owner} gets no grace (GraceTime=0, {told}): SIGTERM comes to all its "
            f"processes, and SIGKILL {wait} (KillWait) later."
        )
        hint = (
            f"ask the administrator for a GraceTime of {owner} that holds a step and a save, for example "
            "120 s; until then they have to fit into KillWait"
        )
        return Finding(Status.WARNING, "preemption", message, hint, values)
    message = (
        f"{owner}: {told}, GraceTime {grace_s:g} s, KillWait {wait}: {_first_signal(config)} to the step's "
        "tasks at once, SIGTERM to all after the grace, then SIGKILL"
    )
    if preemption.mode == "CANCEL":
        message += "; Slurm does not requeue it then, a training has it requeued when it has saved"
    return Finding(Status.OK, "preemption", message, values=values)


def _first_signal(config: Mapping[str, str]) -> str:
    """What is sent at the start of a grace."""
    parameters = f"{config.get('PreemptParameters')},{config.get('SlurmctldParameters')}"
    return "SIGTERM (or --signal's signal)" if "send_user_signal" in parameters else "SIGTERM"


def check_start(preemption: Preemption, *, is_supervised: bool) -> list[Finding]:
    """Says what a preemption does to a batch job whose program has not come to its strategy yet.

    Args:
        preemption: what preemption does to the job, which may be requeued.
        is_supervised: whether ``tf-preempt run`` starts the program, and has the job requeued in its place.

    Returns:
        One finding; none where such a job comes back.
    """
    if is_supervised or not preemption.ends_jobs or preemption.grace_s == 0:
        return []  # without a grace Slurm has requeued the job before its program can end
    message = (
        "a training that srun starts without `tf-preempt run` between is lost (FAILED) if it is preempted "
        "while Python still imports TensorFlow"
    )
    return [Finding(Status.INFO, "start", message, "exec srun tf-preempt run -- python train.py")]


def check_bad_exit(config: Mapping[str, str]) -> Finding:
    """Says what Slurm does to the other tasks when one fails.

    Args:
        config: settings of the cluster.
    """
    value = config.get("KillOnBadExit")
    values = {"kill_on_bad_exit": value}
    if value != "1":
        message = f"KillOnBadExit={value or 'unknown'} (srun's own option is not to be seen from here)"
        return Finding(Status.INFO, "bad-exit", message, values=values)
    return Finding(
        Status.WARNING,
        "bad-exit",
        "KillOnBadExit=1: when one task dies, Slurm kills the others, mostly before they can have the job "
        "requeued.",
        "srun --kill-on-bad-exit=0, as the workers notice the loss and leave with the restart code; "
        "or srun tf-preempt run -- python train.py, where no task ends with its worker",
        values,
    )
