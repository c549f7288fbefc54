"""A program that a notice ended before it could have its job requeued: its supervisor does it.

That is a program which was still importing TensorFlow or building its model, or one that does not use this
package.  Slurm 22.05 takes a job whose tasks end in the grace of a preemption for a failed one.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping

from tf_preempt._slurm import SlurmRun, is_slurm_job, rank_in_step
from tf_preempt._slurm_control import SlurmControl
from tf_preempt.errors import SlurmError
from tf_preempt.termination.exit_codes import Outcome, classify, shell_status
from tf_preempt.termination.slurm import Action, Cause, Verdict, decide, settle_preemption
from tf_preempt.termination.slurm_options import SlurmOptions
from tf_preempt.termination.slurm_time_limit import lead_s

__all__ = ["seconds_of_last_life", "settle_for_program"]

# What a program takes to import TensorFlow and to restore, on a machine that is not idle.
_START_S = 20.0


def settle_for_program(
    environ: Mapping[str, str], returncode: int, signum: int, *, has_trained: bool
) -> Verdict | None:
    """Has a preempted Slurm job requeued, unless that is not wanted or was done already.

    Args:
        environ: of this process.
        returncode: how the program ended, as ``subprocess`` gives it.
        signum: the signal that told this process to end.
        has_trained: it has come to its training, so that its own error is that.  A program that has not may
            have failed because Slurm has ended a child of it.

    Returns:
        What was decided, also by others before; None where there is nothing to decide: elsewhere than on
        Slurm, in other tasks than the first, after another signal than SIGTERM, where the job is neither
        preempted nor requeued already, or when the program ended with success or an error of its own.
    """
    if not is_slurm_job(environ) or rank_in_step(environ) or signum != signal.SIGTERM:
        return None
    outcome = classify(shell_status(returncode))
    if outcome is not Outcome.RESTART and (outcome is not Outcome.PERMANENT or has_trained):
        return None
    try:
        return settle_preemption(environ, SlurmOptions())
    except SlurmError:
        return None  # nothing says which job it is


def seconds_of_last_life(environ: Mapping[str, str]) -> float | None:
    """What is left of a Slurm job that its time limit ends for good before another life could train.

    A job that is requeued at its limit has use for another life: it is that life that has it requeued.

    Args:
        environ: of this process.

    Returns:
        Seconds; None where a restart is of use: elsewhere than on Slurm, where there is time, where the job
        is requeued at its limit, or where Slurm cannot be asked.
    """
    if not is_slurm_job(environ):
        return None
    try:
        run = SlurmRun.from_environ(environ)
        record = SlurmControl(environ).job(run.job_id)
    except SlurmError:
        return None
    end = record.end_time or run.end_time
    if end is None or end - time.time() > lead_s(record.limit_s, None) + _START_S:
        return None
    at_limit = decide(Cause.TIME_LIMIT, record, SlurmOptions())
    return None if at_limit.action is Action.REQUEUE else max(0.0, end - time.time())
