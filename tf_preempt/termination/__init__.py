"""Will this machine go away, and when: sources of termination notices, without TensorFlow."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tf_preempt.termination.auto import Platform, detect_platform, make_watchers
from tf_preempt.termination.config import TerminationConfig
from tf_preempt.termination.function import FunctionWatcher
from tf_preempt.termination.notice import TerminationNotice
from tf_preempt.termination.signals import SignalWatcher
from tf_preempt.termination.slurm_options import SlurmOptions
from tf_preempt.termination.watcher import TerminationMonitor, TerminationWatcher

if TYPE_CHECKING:
    from tf_preempt.termination.aws import AwsWatcher
    from tf_preempt.termination.azure import AzureWatcher
    from tf_preempt.termination.gce import (
        GceMaintenanceWatcher,
        GcePreemptionWatcher,
        GceUpcomingMaintenanceWatcher,
    )

__all__ = [
    "TerminationConfig",
    "TerminationNotice",
    "TerminationWatcher",
    "TerminationMonitor",
    "SignalWatcher",
    "SlurmOptions",
    "FunctionWatcher",
    "GceMaintenanceWatcher",
    "GcePreemptionWatcher",
    "GceUpcomingMaintenanceWatcher",
    "AwsWatcher",
    "AzureWatcher",
    "Platform",
    "detect_platform",
    "make_watchers",
]

# Machines of nobody's cloud need no HTTP client.
_OF_CLOUDS = {
    "GceMaintenanceWatcher": "gce",
    "GcePreemptionWatcher": "gce",
    "GceUpcomingMaintenanceWatcher": "gce",
    "AwsWatcher": "aws",
    "AzureWatcher": "azure",
}


def __getattr__(name: str) -> Any:
    if name in _OF_CLOUDS:
        return getattr(importlib.import_module(f"tf_preempt.termination.{_OF_CLOUDS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
