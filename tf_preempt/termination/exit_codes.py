"""What an exit status means: the one table that handler, callback, cluster and supervisor share.

A program that was preempted, has saved and wants to be started again says so with its exit status, and each
platform understands another one:

====================  ======  ===========================================================================
where it runs         status  why this one
====================  ======  ===========================================================================
local, Slurm, EC2,    42      what TensorFlow's own preemption handler leaves with; collides with no signal
Azure; Google Borg            (TensorFlow takes every machine that is not Google Cloud's for one of Borg)
GCE, Kubernetes       143     128 + SIGTERM, what a container that obeys SIGTERM leaves with; retried by
                              operators that tell exit statuses apart
Agent Platform        134     128 + SIGABRT, of the few statuses documented as "may be transient"; 42 and
                              143 end a job there for good
====================  ======  ===========================================================================

And in the other direction, what a status that comes back is taken for:

====================================================  ===========  ========================================
status                                                taken for    reason
====================================================  ===========  ========================================
0                                                     success
42, and the user's own restart codes                  restart      the program asks for it
130, killed by SIGINT                                 interrupted  somebody pressed Ctrl-C
129 134 137 138 140 143 158, killed by the signal     restart      SIGHUP ABRT KILL USR1 USR2 TERM PWR: what
                                                                   platforms, operators and lost peers cause
139, killed by SIGSEGV                                permanent    a bug comes back at the same place
1, 2, 126, 127, everything else                       permanent    an exception, a wrong command line, no
                                                                   such program
====================================================  ===========  ========================================

SIGABRT is also how TensorFlow's fatal checks end a process, and SIGKILL how the kernel ends one that is out
of memory.  Both count as restartable because the next try often works; that a program fails at the same place
again and again is found out by watching its progress, not by its status.

References (seen 2026-11):
    https://www.tensorflow.org/api_docs/python/tf/distribute/experimental/TerminationConfig (42 and 143)
    https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-termination (SIGTERM, SIGKILL)
    https://www.kubeflow.org/docs/components/trainer/legacy-v1/user-guides/tensorflow/ (restartPolicy
    ExitCode: permanent 1, 2, 126, 127, 128, 139; retryable 130, 137, 138, 143)
    https://cloud.google.com/vertex-ai/docs/training/fault-tolerance (6, 11, 134, 139 may be transient)
    https://docs.python.org/3/library/subprocess.html#subprocess.Popen.returncode (negative: a signal)
"""

from __future__ import annotations

import enum
import signal
from collections.abc import Iterable

from tf_preempt.errors import ConfigError

__all__ = [
    "CANCELLED",
    "INTERRUPTED",
    "PERMANENT",
    "RESTART_AGENT_PLATFORM",
    "RESTART_CODES",
    "RESTART_LOCAL",
    "RESTART_SIGTERM",
    "USAGE",
    "Outcome",
    "classify",
    "combine",
    "describe",
    "restart_exit_code",
    "shell_status",
]

RESTART_LOCAL = 42
"""Preempted and saved, start me again: on a local machine, under Slurm, on EC2 and on Azure."""
RESTART_SIGTERM = 143
"""The same on GCE and Kubernetes."""
RESTART_AGENT_PLATFORM = 134
"""The same in a managed training job of the Agent Platform."""
CANCELLED = 143
"""Saved, and its owner does not want it any more (``scancel``): as a program without a handler leaves."""
INTERRUPTED = 130
"""Saved on Ctrl-C: 128 + SIGINT, as a program without a handler leaves."""
PERMANENT = 1
"""An error that a restart would not cure."""
USAGE = 2
"""The command line or the configuration is wrong."""

_RESTART_BY_PLATFORM = {
    "local": RESTART_LOCAL,
    "slurm": RESTART_LOCAL,
    "gce": RESTART_SIGTERM,
    "aws": RESTART_LOCAL,
    "azure": RESTART_LOCAL,
    "kubernetes": RESTART_SIGTERM,
    "agent_platform": RESTART_AGENT_PLATFORM,
}

RESTART_CODES = frozenset(_RESTART_BY_PLATFORM.values())
"""All statuses with which programs of this package say that they were preempted."""

_SHELL_SIGNAL_BASE = 128
# By name, as not every system that can import this module has all of them.
_RESTARTABLE_SIGNALS = frozenset(
    int(getattr(signal, name))
    for name in ("SIGHUP", "SIGABRT", "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGTERM", "SIGPWR")
    if hasattr(signal, name)
)


class Outcome(enum.Enum):
    """What the end of a program asks of those who started it."""

    SUCCESS = "success"
    RESTART = "restart"
    PERMANENT = "permanent"
    INTERRUPTED = "interrupted"


# Which of several workers' ends speaks for all of them: the first in this list that occurs.
_PRECEDENCE = (Outcome.PERMANENT, Outcome.INTERRUPTED, Outcome.RESTART, Outcome.SUCCESS)


def restart_exit_code(platform: str) -> int:
    """The exit status that makes `platform` start a preempted program again.

    Args:
        platform: ``"local"``, ``"slurm"``, ``"gce"``, ``"aws"``, ``"azure"``, ``"kubernetes"`` or
            ``"agent_platform"``.

    Raises:
        ConfigError: `platform` is none of these.
    """
    # An Enum whose values are strings compares equal to them but prints otherwise: take the value.
    name = str(platform.value) if isinstance(platform, enum.Enum) else platform
    try:
        return _RESTART_BY_PLATFORM[name]
    except KeyError:
        raise ConfigError(
            f"platform={name!r} (an argument of restart_exit_code) is not known.",
            hint=f"use one of {', '.join(_RESTART_BY_PLATFORM)}.",
        ) from None


def classify(returncode: int, *, restart_codes: frozenset[int] = frozenset()) -> Outcome:
    """Says what the end of a program means for starting it again.

    Args:
        returncode: as ``subprocess`` gives it (negative: killed by that signal) or as a shell does (128 plus
            the signal's number); the two are taken for the same.
        restart_codes: further statuses with which a program asks to be started again, each 1 to 255.
    """
    status = shell_status(returncode)
    if status == 0:
        return Outcome.SUCCESS
    if status == RESTART_LOCAL or status in restart_codes:
        return Outcome.RESTART
    signum = status - _SHELL_SIGNAL_BASE
    if signum == signal.SIGINT:
        return Outcome.INTERRUPTED
    return Outcome.RESTART if signum in _RESTARTABLE_SIGNALS else Outcome.PERMANENT


def combine(returncodes: Iterable[int], *, restart_codes: frozenset[int] = frozenset()) -> int:
    """The exit status of a cluster, made of its workers' ends.

    A permanent error wins over Ctrl-C, that over a wish to be restarted, and that over success.  Workers of
    this package that lose a peer leave with the restart status, so that an error which only follows from
    another worker's death does not hide that a restart would help.

    Among workers that ended alike, one that chose its status speaks before one that a signal killed (it knows
    which status its platform understands), and the lower-numbered worker before the higher.

    Args:
        returncodes: one per worker, in the order of the workers; negative means killed by that signal.
        restart_codes: as in `classify`.

    Returns:
        A status from 0 to 255, with signals as 128 plus their number; 0 for no workers at all.
    """
    codes = list(returncodes)
    outcomes = [classify(code, restart_codes=restart_codes) for code in codes]
    for outcome in _PRECEDENCE:
        alike = [code for code, its in zip(codes, outcomes, strict=True) if its is outcome]
        if alike:
            return shell_status(min(alike, key=lambda code: code < 0))
    return 0


def shell_status(returncode: int) -> int:
    """Turns ``subprocess``'s negative signal numbers into the shell's 128 plus the number."""
    return _SHELL_SIGNAL_BASE - returncode if returncode < 0 else returncode


def describe(returncode: int) -> str:
    """How a program ended, in the words of a log line: ``exit status 1``, ``killed by SIGKILL``."""
    if returncode >= 0:
        return f"exit status {returncode}"
    try:
        return f"killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"killed by signal {-returncode}"
