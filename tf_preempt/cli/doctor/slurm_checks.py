"""What Slurm does with a job when it is requeued or reaches its time limit.

Pure functions of the controller's answers (`SlurmFacts`).

References:
    sbatch(1), srun(1), scontrol(1); what Slurm 22.05.8 was seen to do.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping

from tf_preempt._slurm import SlurmJob
from tf_preempt._slurm_control import JobRecord
from tf_preempt.cli.doctor.finding import Finding, Status, from_error
from tf_preempt.cli.doctor.preemption import check_bad_exit, check_preemption, check_start, preemption_of
from tf_preempt.cli.doctor.signal_option import MOST_OF_LIMIT, check_signal
from tf_preempt.cli.doctor.slurm_facts import LaunchOfSrun, SlurmFacts
from tf_preempt.termination.slurm_time_limit import lead_s

__all__ = ["check_outside_of_job", "check_slurm"]


def check_slurm(
    facts: SlurmFacts,
    job: SlurmJob | None,
    *,
    now: float,
    save_s: float | None,
    open_mode: str | None = None,
    directory: str | None = None,
    is_supervised: bool = False,
) -> list[Finding]:
    """Says what Slurm will do with the job.

    Args:
        facts: the controller's answers.
        job: as this process sees it; None if its variables are wrong.
        now: seconds since the epoch.
        save_s: what a save takes, in seconds; None if there was none yet.
        open_mode: ``SLURM_OPEN_MODE``, in which sbatch tells the job its ``--open-mode``, wherever that was
            given; None if it is not set.
        directory: the checkpoint directory that was given; None if none was.
        is_supervised: ``tf-preempt run`` has started this command, so that it will start the training, too.
    """
    findings = [_step(job)] if job is not None else []
    findings += [
        from_error("slurm", problem, hint="ask the administrator of the cluster", status=Status.WARNING)
        for problem in facts.problems
    ]
    if facts.config or facts.partition:
        findings += [check_preemption(preemption_of(facts), facts.config), check_bad_exit(facts.config)]
    if facts.record is not None:
        record, script, config = facts.record, facts.script, facts.config
        findings += [
            _requeue(record, config, directory),
            _time_limit(record, now, save_s),
            check_signal(record, script, facts.launch, save_s=save_s),
        ]
        if record.is_batch and record.may_requeue:
            findings.append(_open_mode(open_mode or (script or {}).get("--open-mode", ""), config))
            findings += check_start(preemption_of(facts), is_supervised=is_supervised)
            findings += _exec(facts.launch)
    return findings


def check_outside_of_job(directory: str | None) -> Finding:
    """Says where Slurm is, but no job of it, what would have to be done to have a job checked.

    Args:
        directory: the checkpoint directory; None if none is known.
    """
    hint = _in_script(directory)
    return Finding(
        Status.INFO,
        "slurm",
        "Slurm is here, and this is no job of it: what it would do with a job is not checked",
        f"{hint}, and sbatch's options into #SBATCH lines",
    )


def _in_script(directory: str | None) -> str:
    command = f"exec srun tf-preempt doctor {directory or 'DIRECTORY'}"
    return f"put `{command}` into the batch script in place of the training"


def _step(job: SlurmJob) -> Finding:
    values = {"job_id": job.job_id, "step_id": job.step_id, "restart_count": job.restart_count}
    run = f", restarted {job.restart_count} time(s)" if job.restart_count else ""
    if job.step_id is not None:
        message = f"job {job.job_id}, step {job.step_id} of {job.ntasks} task(s){run}"
        return Finding(Status.OK, "step", message, values=values)
    alone = f", and trains alone, not as {job.ntasks} tasks" if job.ntasks > 1 else ""
    return Finding(
        Status.WARNING,
        "step",
        f"job {job.job_id}{run}, but srun did not start this process: a program started like this gets no "
        f"notice before the grace of a preemption ends{alone}.",
        "start the program with srun in the batch script (exec srun tf-preempt run -- python train.py), and "
        "this command, too",
        values,
    )


def _requeue(record: JobRecord, config: Mapping[str, str], directory: str | None) -> Finding:
    default = config.get("JobRequeue", "unknown")
    values = {
        "requeue": record.may_requeue,
        "is_batch": record.is_batch,
        "job_requeue": default,
        "requeue_exit": config.get("RequeueExit"),
    }
    if record.is_batch is False:
        message = "this job is none of sbatch's, and Slurm requeues no other: it ends when it is preempted"
        hint = f"to have a batch job checked: {_in_script(directory)}"
        return Finding(Status.INFO, "requeue", message, hint, values)
    if record.may_requeue is None:
        return Finding(Status.INFO, "requeue", f"unknown (JobRequeue={default})", values=values)
    if record.may_requeue:
        return Finding(Status.OK, "requeue", f"the job may be requeued (JobRequeue={default})", values=values)
    return Finding(
        Status.WARNING,
        "requeue",
        f"The job may not be requeued (Requeue=0, JobRequeue={default}): it ends when it is preempted.",
        "#SBATCH --requeue; for this job: scontrol update JobId=$SLURM_JOB_ID Requeue=1",
        values,
    )


def _time_limit(record: JobRecord, now: float, save_s: float | None) -> Finding:
    limit_s, end = record.limit_s, record.end_time
    values = {"limit_s": limit_s, "end": end, "left_s": None if end is None else round(end - now, 1)}
    if limit_s is None:
        return Finding(Status.INFO, "time-limit", "none, or unknown", values=values)
    lead = lead_s(limit_s, save_s)
    when = "" if end is None else f", at {_clock_time(end)}, in {_duration(max(0.0, end - now))}"
    message = (
        f"{_duration(limit_s)}{when}; a training saves and leaves {lead:.0f} s before, or when --signal comes"
    )
    values["lead_s"] = lead
    if lead <= MOST_OF_LIMIT * limit_s:
        return Finding(Status.INFO, "time-limit", message, values=values)
    hint = "ask for more time (#SBATCH --time), or save to a faster directory"
    return Finding(Status.WARNING, "time-limit", f"{message}: little is left to train in.", hint, values)


def _duration(seconds: float) -> str:
    return str(datetime.timedelta(seconds=int(seconds)))


def _clock_time(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")


def _open_mode(told: str, config: Mapping[str, str]) -> Finding:
    appends = config.get("JobFileAppend") == "1"
    values = {"open_mode": told or None, "job_file_append": appends}
    if told.startswith("a") or (not told and appends):
        return Finding(Status.OK, "open-mode", "the job's output is kept when it is requeued", values=values)
    where = f"--open-mode={told}" if told else "no --open-mode"
    return Finding(
        Status.WARNING,
        "open-mode",
        f"{where}: the job's output file is emptied when it is requeued.",
        "#SBATCH --open-mode=append",
        values,
    )


def _exec(launch: LaunchOfSrun) -> list[Finding]:
    if launch is not LaunchOfSrun.CHILD:
        return []
    message = (
        "srun is the batch script's last command and does not take its place: an srun that outlives its "
        "script, as where the script's node dies, later ends the step of the job's next run; and a signal to "
        "the script (--signal=B:...) does not reach the tasks"
    )
    return [Finding(Status.INFO, "exec", message, "put exec before it: exec srun ...")]
