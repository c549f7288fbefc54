"""What the ``--signal`` of a batch script does to a training, and which one would be better.

Pure functions of what the script and the controller say.

References:
    sbatch(1), srun(1).  Under Slurm 22.05.8 it was seen that ``B:USR1`` reaches the tasks of ``exec srun``
    and of ``exec tf-preempt run -- srun ...``; that a script dies of it whose child srun is, whereupon Slurm
    ends the tasks and takes the job for FAILED; and that a signal comes up to 60 s early.
"""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from tf_preempt._slurm_control import JobRecord
from tf_preempt.cli.doctor.finding import Finding, Status
from tf_preempt.cli.doctor.slurm_facts import LaunchOfSrun
from tf_preempt.errors import ConfigError
from tf_preempt.termination.config import usual_signals
from tf_preempt.termination.signals import parse_signals
from tf_preempt.termination.slurm_time_limit import lead_s

__all__ = ["MOST_OF_LIMIT", "check_signal"]

MOST_OF_LIMIT = 0.5
"""The largest part of a time limit that leaving may take."""

_SIGNAL = re.compile(r"(?:(?P<who>[BR]+):)?(?P<signal>[A-Za-z0-9]+)(?:@(?P<seconds>\d+))?", re.IGNORECASE)
# sbatch(1): without a time, the signal comes so long before the end.
_USUAL_LEAD_S = 60.0
_EARLY_S = 60.0  # Slurm may send it so much earlier
_LEAST_LEAD_S = 10.0
_WITHOUT = "leave --signal out (the time limit is watched without it)"


def check_signal(
    record: JobRecord, script: Mapping[str, str] | None, launch: LaunchOfSrun, *, save_s: float | None
) -> Finding:
    """Says whether the signal before the time limit reaches the tasks, is heard, and comes at a good time.

    Args:
        record: of the job.
        script: the options of the batch script, by name; None if it cannot be read.
        launch: how the batch script starts ``srun``.
        save_s: what a save takes, in seconds; None if there was none yet.
    """
    if not record.is_batch or script is None:
        why = "the batch script cannot be read" if record.is_batch else "Slurm tells it of batch jobs only"
        return Finding(Status.INFO, "signal", f"--signal is unknown: {why}", values={"signal": None})
    text = script.get("--signal")
    if text is None:
        message = "no --signal in the batch script; one on sbatch's command line is not to be seen from a job"
        return Finding(Status.INFO, "signal", message, values={"signal": None})
    match = _SIGNAL.fullmatch(text)
    limit_s = record.limit_s
    values: dict[str, Any] = {"signal": text, "lead_s": None}
    if match is None:
        return _trouble(values, "is nothing that sbatch takes.", _better(["TERM"], None, limit_s, save_s))
    lead = float(match["seconds"] or _USUAL_LEAD_S)
    values["lead_s"] = lead
    name = _signal_name(match["signal"])
    is_for_script = "B" in (match["who"] or "").upper()
    if is_for_script and name == "SIGTERM":
        problem = _deadly(launch)
        better = _better(["USR1", "TERM"], lead, limit_s, save_s)
        without = "" if better == _WITHOUT else "; without B: it comes to the tasks"
        return _trouble(values, problem, better + without, Status.ERROR)
    if name not in usual_signals("slurm"):
        problem = f"is {name}, which nobody waits for: it would end the program without a save."
        own = ", or TerminationConfig(signals=...)" if _can_be_noticed(name) else ""
        return _trouble(values, problem, _better(["TERM"], lead, limit_s, save_s) + own)
    if is_for_script and launch is not LaunchOfSrun.EXEC:
        better = _better([match["signal"]], lead, limit_s, save_s)
        keep = "; or keep it, and put exec before srun" if _fits(lead, limit_s) else ""
        return _trouble(values, _unheard(launch), better + keep)
    if not _fits(lead, limit_s):
        problem = (
            f"comes up to {lead + _EARLY_S:g} s before the end of a time limit of {limit_s:g} s: each run "
            "would train for a small part of it, or end before it."
        )
        minutes = math.ceil((lead + _EARLY_S) / MOST_OF_LIMIT / 60)
        better = _better([match["signal"]], lead, limit_s, save_s)
        return _trouble(values, problem, f"{better}, or ask for more time: #SBATCH --time={minutes}")
    way = "srun, which stands in the script's place and passes it on to the tasks"
    message = (
        f"--signal={text} in the batch script: {name} to {way if is_for_script else 'the tasks'}, "
        f"{lead:g} s or more before the end"
    )
    return Finding(Status.OK, "signal", message, values=values)


def _fits(lead: float, limit_s: float | None) -> bool:
    """Whether most of the time limit is left to the training."""
    return limit_s is None or lead + _EARLY_S <= MOST_OF_LIMIT * limit_s


def _deadly(launch: LaunchOfSrun) -> str:
    if launch is LaunchOfSrun.CHILD:
        return (
            "comes to the batch script only, which dies of it. Slurm then ends the tasks: they save, and the "
            "job is over for good."
        )
    return (
        "comes to the batch script only. srun, started with exec in its place, dies of it: the tasks are "
        "killed without notice, and nothing is saved."
    )


def _unheard(launch: LaunchOfSrun) -> str:
    if launch is LaunchOfSrun.CHILD:
        return (
            "comes to the batch script only, which dies of it, as its srun is not started with exec: Slurm "
            "then ends the tasks, and takes the job for FAILED."
        )
    return "comes to the batch script only, whose tasks get it if srun took its place (exec srun)."


def _better(signals: Sequence[str], own_s: float | None, limit_s: float | None, save_s: float | None) -> str:
    """The cure of a `--signal`: one that leaves most of the time limit to the training, or none at all.

    Args:
        signals: which to name.
        own_s: how long before the end the script wants it; None if it does not say.
        limit_s: the time limit; None if it is unknown.
        save_s: what a save takes; None if that is unknown.
    """
    seconds = math.ceil(lead_s(limit_s, save_s))
    saves = (
        f"three saves of {save_s:.2g} s, the slowest measured" if save_s else "three saves, none measured yet"
    )
    why = f"{lead_s(limit_s, None):g} s for the running step and {saves}"
    if own_s is not None and own_s >= seconds:
        seconds, why = int(own_s), f"the script's own; enough are {why}"
    if not _fits(seconds, limit_s) and limit_s is not None:
        seconds = math.floor(MOST_OF_LIMIT * limit_s - _EARLY_S)
        why = f"half of the limit of {limit_s:g} s, less the {_EARLY_S:g} s that Slurm may be early"
        if seconds < _LEAST_LEAD_S:
            return _WITHOUT
    either = ", or ".join(f"{name}@{seconds}" for name in signals)
    return f"#SBATCH --signal={either} ({seconds} s: {why})"


def _can_be_noticed(name: str) -> bool:
    try:
        return bool(parse_signals([name]))
    except ConfigError:
        return False


def _trouble(
    values: Mapping[str, Any], problem: str, better: str, status: Status = Status.WARNING
) -> Finding:
    message = f"--signal={values['signal']} in the batch script {problem}"
    return Finding(status, "signal", message, better, values)


def _signal_name(text: str) -> str:
    """``SIGUSR1`` for ``10``, ``USR1`` and ``sigusr1``."""
    if text.isdecimal():
        return signal.Signals(int(text)).name if int(text) in signal.valid_signals() else text
    return f"SIG{text.upper().removeprefix('SIG')}"
