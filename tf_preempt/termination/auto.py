"""Which platform this process runs on, and what to watch there."""

from __future__ import annotations

import contextlib
import enum
import logging
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tf_preempt._slurm import SlurmRun, is_slurm_job
from tf_preempt._slurm_control import SlurmControl
from tf_preempt.termination import _signal_hub
from tf_preempt.termination.cloud import Cloud, Firmware, detect_cloud, read_line
from tf_preempt.termination.config import TerminationConfig, usual_signals
from tf_preempt.termination.function import FunctionWatcher
from tf_preempt.termination.grace import GraceSignalWatcher, grace_s_of
from tf_preempt.termination.signals import SignalWatcher
from tf_preempt.termination.slurm_time_limit import TimeLimitWatcher
from tf_preempt.termination.watcher import LentWatcher, TerminationWatcher

_log = logging.getLogger("tf_preempt")


class Platform(str, enum.Enum):
    """Where a process runs, as far as notices and exit statuses differ."""

    LOCAL = "local"
    SLURM = "slurm"
    GCE = "gce"
    AWS = "aws"
    AZURE = "azure"
    KUBERNETES = "kubernetes"
    AGENT_PLATFORM = "agent_platform"

    def __str__(self) -> str:
        return self.value


def detect_platform(
    environ: Mapping[str, str] = os.environ,
    *,
    dmi_product_name: str | os.PathLike[str] | Callable[[], str] | None = None,
    firmware: Firmware | None = None,
) -> Platform:
    """Tells the platform from the environment and the firmware's name of the machine, without the network.

    The scheduler that started the process decides, not the machine under it, because it is the scheduler
    that acts on the exit status: a Slurm job on a Compute Engine VM is a Slurm job, and a container of Agent
    Platform is that although Kubernetes runs it.

    Args:
        environ: the environment variables.
        dmi_product_name: the file with the machine's product name, or a function that returns it, if nothing
            else of the firmware is to count.
        firmware: what DMI says of the machine; None: it is read.

    Returns:
        The platform; `Platform.LOCAL` if nothing points to another one.

    Environment:
        SLURM_JOB_ID: set in every job of Slurm.
        CLOUD_ML_JOB_ID, AIP_*: set in custom training of Agent Platform (Vertex AI).
        KUBERNETES_SERVICE_HOST: set in every container of a pod.
        TF_PREEMPT_CLOUD: ``gce``, ``aws``, ``azure`` or ``none``, whatever the firmware says.

    Raises:
        ConfigError: TF_PREEMPT_CLOUD has another value.

    References:
        https://slurm.schedmd.com/sbatch.html (OUTPUT ENVIRONMENT VARIABLES);
        https://cloud.google.com/vertex-ai/docs/training/code-requirements (environment variables);
        https://kubernetes.io/docs/concepts/services-networking/service/ (environment variables);
        tf_preempt.termination.cloud (DMI); all seen 2026-11.
    """
    if is_slurm_job(environ):
        return Platform.SLURM
    if environ.get("CLOUD_ML_JOB_ID") or any(name.startswith("AIP_") and environ[name] for name in environ):
        return Platform.AGENT_PLATFORM
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return Platform.KUBERNETES
    if dmi_product_name is not None:
        name = dmi_product_name() if callable(dmi_product_name) else read_line(dmi_product_name)
        firmware = Firmware(product_name=name.strip())
    cloud = detect_cloud(environ, firmware or Firmware.read())
    return Platform.LOCAL if cloud is None else Platform(cloud.value)


def make_watchers(
    config: TerminationConfig,
    platform: Platform,
    *,
    environ: Mapping[str, str] = os.environ,
    is_chief: bool = True,
    save_seconds: Callable[[], float | None] = lambda: None,
    firmware: Firmware | None = None,
) -> list[TerminationWatcher]:
    """Makes the sources of notices for a platform.

    To be called in the main thread, because only there Python lets signals be caught.

    A cloud's notices count whatever has started the process, because the VM goes away under a Slurm job and a
    Kubernetes pod too.  Only Agent Platform sees to its VMs by itself.

    Args:
        config: what the user asked for.
        platform: where the process runs.
        environ: the environment variables.
        is_chief: whether this worker also watches what all workers share: the time limit of a Slurm job.
        save_seconds: says what a save takes, in seconds, or None.
        firmware: what DMI says of the machine; None: it is read.

    Returns:
        The watchers, to be handed to a `TerminationMonitor`, which closes them.  Signals are caught from now
        on.

    Environment:
        TF_PREEMPT_CLOUD: see `detect_platform`.
        TF_PREEMPT_GRACE_S, TF_PREEMPT_GRACE_FILE: seconds from SIGTERM to SIGKILL, or a file that holds them.
        AWS_EC2_METADATA_DISABLED: ``true``: Amazon's metadata server is not asked.
        GCE_METADATA_HOST, AWS_EC2_METADATA_SERVICE_ENDPOINT, TF_PREEMPT_AZURE_METADATA_HOST: another one.

    Raises:
        ConfigError: called outside the main thread while `config.signals` is not empty, or a variable above
            has a value that cannot be used.
        SlurmError: a variable of Slurm is malformed.
    """
    watchers: list[TerminationWatcher] = []
    sources: list[str] = []
    with contextlib.ExitStack() as to_close:

        def add(watcher: TerminationWatcher, *names: str) -> None:
            watchers.append(to_close.enter_context(watcher))
            sources.extend(names)

        if config.termination_watcher_fn is not None:
            add(FunctionWatcher(config.termination_watcher_fn), "termination_watcher_fn")
        run = SlurmRun.from_environ(environ) if platform is Platform.SLURM else None
        lead_s = config.slurm.time_limit_lead_s
        names = config.signals if config.signals is not None else _free_signals(usual_signals(str(platform)))
        if config.save_on_interrupt and "SIGINT" not in names:
            names = (*names, "SIGINT")
        if names:
            # Before anything that runs, because it is refused outside the main thread.
            add(_signal_watcher(names, grace_s_of(environ)), *map(str, names))
        if run is not None and is_chief and lead_s != 0:
            control = SlurmControl(environ)
            add(
                TimeLimitWatcher(run, control, lead_s=lead_s, save_seconds=save_seconds),
                "the job's time limit",
            )
        if platform is not Platform.AGENT_PLATFORM:
            given = tuple(type(watcher) for watcher in config.watchers or ())
            for kind in _cloud_watchers(detect_cloud(environ, firmware or Firmware.read()), environ):
                if not any(issubclass(one, kind) for one in given):
                    add(kind(environ=environ), kind.__name__)
        for watcher in config.watchers or ():
            add(LentWatcher(watcher), type(watcher).__name__)
        to_close.pop_all()
    _log.info("Platform %s; sources of termination notices: %s.", platform, ", ".join(sources) or "none")
    return watchers


def _signal_watcher(names: Sequence[str | signal.Signals], grace_s: float | None) -> SignalWatcher:
    return SignalWatcher(names) if grace_s is None else GraceSignalWatcher(names, grace_s=grace_s)


def _cloud_watchers(cloud: Cloud | None, environ: Mapping[str, str]) -> Iterator[type[Any]]:
    # Each imported where its machine is: the others need no HTTP client.
    if cloud is Cloud.GCE:
        from tf_preempt.termination import gce

        yield from (gce.GceMaintenanceWatcher, gce.GcePreemptionWatcher, gce.GceUpcomingMaintenanceWatcher)
    elif cloud is Cloud.AWS and environ.get("AWS_EC2_METADATA_DISABLED", "").lower() != "true":
        from tf_preempt.termination import aws

        yield aws.AwsWatcher
    elif cloud is Cloud.AZURE:
        from tf_preempt.termination import azure

        yield azure.AzureWatcher


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
