"""Which platform this process runs on, and what to watch there."""

from __future__ import annotations

import enum
import logging
import os
import signal
from collections.abc import Callable, Mapping, Sequence

from tf_preempt._slurm import SlurmRun, is_slurm_job
from tf_preempt._slurm_control import SlurmControl
from tf_preempt.termination import _signal_hub
from tf_preempt.termination.config import TerminationConfig, usual_signals
from tf_preempt.termination.function import FunctionWatcher
from tf_preempt.termination.signals import SignalWatcher
from tf_preempt.termination.slurm_time_limit import TimeLimitWatcher
from tf_preempt.termination.watcher import TerminationWatcher

_log = logging.getLogger("tf_preempt")

_DMI_PRODUCT_NAME_PATH = "/sys/class/dmi/id/product_name"
_GCE_PRODUCT_NAME = "Google Compute Engine"


class Platform(str, enum.Enum):
    """Where a process runs, as far as notices and exit statuses differ."""

    LOCAL = "local"
    SLURM = "slurm"
    GCE = "gce"
    KUBERNETES = "kubernetes"
    AGENT_PLATFORM = "agent_platform"

    def __str__(self) -> str:
        return self.value


def detect_platform(
    environ: Mapping[str, str] = os.environ,
    *,
    dmi_product_name: str | os.PathLike[str] | Callable[[], str] = _DMI_PRODUCT_NAME_PATH,
) -> Platform:
    """Tells the platform from the environment and the firmware's name of the machine, without the network.

    The scheduler that started the process decides, not the machine under it, because it is the scheduler
    that acts on the exit status: a Slurm job on a Compute Engine VM is a Slurm job, and a container of Agent
    Platform is that although Kubernetes runs it.

    Args:
        environ: the environment variables.
        dmi_product_name: the file with the machine's product name, or a function that returns it.

    Returns:
        The platform; `Platform.LOCAL` if nothing points to another one.

    Environment:
        SLURM_JOB_ID: set in every job of Slurm.
        CLOUD_ML_JOB_ID, AIP_*: set in custom training of Agent Platform (Vertex AI).
        KUBERNETES_SERVICE_HOST: set in every container of a pod.

    References:
        https://slurm.schedmd.com/sbatch.html (OUTPUT ENVIRONMENT VARIABLES);
        https://cloud.google.com/vertex-ai/docs/training/code-requirements (environment variables);
        https://kubernetes.io/docs/concepts/services-networking/service/ (environment variables);
        https://cloud.google.com/compute/docs/instances/detect-compute-engine (DMI); all seen 2026-11.
    """
    if is_slurm_job(environ):
        return Platform.SLURM
    if environ.get("CLOUD_ML_JOB_ID") or any(name.startswith("AIP_") and environ[name] for name in environ):
        return Platform.AGENT_PLATFORM
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return Platform.KUBERNETES
    if _product_name(dmi_product_name) == _GCE_PRODUCT_NAME:
        return Platform.GCE
    return Platform.LOCAL


def _product_name(source: str | os.PathLike[str] | Callable[[], str]) -> str:
    """The machine's product name; empty where the firmware has none (containers, ARM boards, macOS)."""
    if callable(source):
        return source().strip()
    try:
        with open(source, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def make_watchers(
    config: TerminationConfig,
    platform: Platform,
    *,
    environ: Mapping[str, str] = os.environ,
    is_chief: bool = True,
    save_seconds: Callable[[], float | None] = lambda: None,
) -> list[TerminationWatcher]:
    """Makes the sources of notices for a platform.

    To be called in the main thread, because only there Python lets signals be caught.

    Args:
        config: what the user asked for.
        platform: where the process runs.
        environ: the environment variables.
        is_chief: whether this worker also watches what all workers share: the time limit of a Slurm job.
        save_seconds: says what a save takes, in seconds, or None.

    Returns:
        The watchers, to be handed to a `TerminationMonitor`, which closes them.  Signals are caught from now
        on.

    Raises:
        ConfigError: called outside the main thread while `config.signals` is not empty.
        SlurmError: a variable of Slurm is malformed.
    """
    watchers: list[TerminationWatcher] = []
    sources: list[str] = []
    if config.termination_watcher_fn is not None:
        watchers.append(FunctionWatcher(config.termination_watcher_fn))
        sources.append("termination_watcher_fn")
    run = SlurmRun.from_environ(environ) if platform is Platform.SLURM else None
    watches_limit = run is not None and is_chief and config.slurm.time_limit_lead_s != 0
    names = config.signals if config.signals is not None else _free_signals(usual_signals(str(platform)))
    if names:
        # Before anything that runs, because it is refused outside the main thread.
        watchers.append(SignalWatcher(names))
        sources.extend(map(str, names))
    if run is not None and watches_limit:
        lead_s = config.slurm.time_limit_lead_s
        watchers.append(
            TimeLimitWatcher(run, SlurmControl(environ), lead_s=lead_s, save_seconds=save_seconds)
        )
        sources.append("the job's time limit")
    _log.info("Platform %s; sources of termination notices: %s.", platform, ", ".join(sources) or "none")
    return watchers


def _free_signals(names: Sequence[str]) -> list[str]:
    """SIGTERM, and of the others those for which the program has no handler of its own."""
    caught = _caught_signals()
    return [name for name in names if name == "SIGTERM" or _is_free(signal.Signals[name], caught)]


def _is_free(number: signal.Signals, caught: set[int]) -> bool:
    # Watchers of the training before may still be there, or have left their handler.
    has_default = signal.getsignal(number) is signal.SIG_DFL and number not in caught
    return has_default or _signal_hub.is_left_to_us(number)


def _caught_signals(status: str | os.PathLike[str] = "/proc/self/status") -> set[int]:
    """Signals with a handler, also one of C code that Python does not know of: `faulthandler.register`."""
    try:
        with open(status, encoding="ascii", errors="replace") as file:
            mask = next((line.split()[1] for line in file if line.startswith("SigCgt:")), "0")
        caught = int(mask, 16)
    except (OSError, ValueError, IndexError):
        return set()
    return {number for number in signal.valid_signals() if caught >> (number - 1) & 1}
