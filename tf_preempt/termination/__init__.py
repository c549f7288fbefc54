"""Will this machine go away, and when: sources of termination notices, without TensorFlow."""

from __future__ import annotations

from tf_preempt.termination.auto import Platform, detect_platform, make_watchers
from tf_preempt.termination.config import TerminationConfig
from tf_preempt.termination.function import FunctionWatcher
from tf_preempt.termination.notice import TerminationNotice
from tf_preempt.termination.signals import SignalWatcher
from tf_preempt.termination.slurm_options import SlurmOptions
from tf_preempt.termination.watcher import TerminationMonitor, TerminationWatcher

__all__ = [
    "TerminationConfig",
    "TerminationNotice",
    "TerminationWatcher",
    "TerminationMonitor",
    "SignalWatcher",
    "SlurmOptions",
    "FunctionWatcher",
    "Platform",
    "detect_platform",
    "make_watchers",
]
