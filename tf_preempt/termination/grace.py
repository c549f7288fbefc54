"""How long a process has after SIGTERM: the signal does not say it, and nothing in a pod of Kubernetes does.

Kubernetes kills a pod ``terminationGracePeriodSeconds`` after it was deleted.  No container is told that
number, so the pod's specification has to write it down a second time: as an environment variable, or as an
annotation that the downward API puts into a file.  The time of a ``preStop`` hook is part of it, and is over
when SIGTERM comes.

References (seen 2026-11):
    https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-termination
    https://kubernetes.io/docs/concepts/workloads/pods/downward-api/ (annotations, but no grace)
"""

from __future__ import annotations

import dataclasses
import math
import signal
import time
from collections.abc import Callable, Mapping, Sequence

from tf_preempt.errors import ConfigError
from tf_preempt.termination.notice import TerminationNotice
from tf_preempt.termination.signals import SignalWatcher

__all__ = ["GRACE_FILE_VARIABLE", "GRACE_VARIABLE", "GraceSignalWatcher", "grace_s_of"]

GRACE_VARIABLE = "TF_PREEMPT_GRACE_S"
GRACE_FILE_VARIABLE = "TF_PREEMPT_GRACE_FILE"


def grace_s_of(environ: Mapping[str, str]) -> float | None:
    """The seconds between SIGTERM and SIGKILL, where somebody has written them down.

    Args:
        environ: the environment variables.

    Returns:
        None if nobody has.

    Environment:
        TF_PREEMPT_GRACE_S: the number.
        TF_PREEMPT_GRACE_FILE: a file that holds it; counts if the other is not set.

    Raises:
        ConfigError: it is no number of seconds above 0, or the file cannot be read.
    """
    text, origin = environ.get(GRACE_VARIABLE, "").strip(), f"{GRACE_VARIABLE}, an environment variable"
    if not text:
        path = environ.get(GRACE_FILE_VARIABLE, "").strip()
        if not path:
            return None
        text, origin = _read(path), f"in {path}, which {GRACE_FILE_VARIABLE} names"
    try:
        grace_s = float(text)
    except ValueError:
        grace_s = math.nan
    if not (grace_s > 0 and math.isfinite(grace_s)):
        raise ConfigError(
            f"{text!r} ({origin}) is no number of seconds above 0.",
            hint="Write the pod's terminationGracePeriodSeconds, less the time of its preStop hook.",
        )
    return grace_s


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip().strip('"')
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{GRACE_FILE_VARIABLE}={path!r} (an environment variable) cannot be read: {error}.",
            hint="Mount the volume of the downward API there, or unset the variable.",
        ) from error


class GraceSignalWatcher(SignalWatcher):
    """Gives a notice for every signal, and SIGTERM's has the deadline at which the process is killed.

    Args:
        signals: names of the signals, at least one.
        grace_s: seconds from SIGTERM to SIGKILL, as `grace_s_of` finds them.
        monotonic: seconds of the clock in which a notice's deadline is told.

    Raises:
        ConfigError: a signal is unknown or cannot be caught, there is none, or this is not the main thread.
        OSError: no file descriptor is left.
    """

    def __init__(
        self,
        signals: Sequence[str | signal.Signals] = ("SIGTERM",),
        *,
        grace_s: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(signals)
        self._grace_s = grace_s
        self._monotonic = monotonic

    def poll(self) -> TerminationNotice | None:
        """Takes the oldest signal that was not taken yet."""
        notice = super().poll()
        if notice is None or notice.source != "SIGTERM":
            return notice
        return dataclasses.replace(notice, deadline=self._monotonic() + self._grace_s)
