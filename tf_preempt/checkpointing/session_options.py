"""How a session behaves; the handler and the Keras callback make one of these of their arguments."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping

from tf_preempt.checkpointing.cadence import Cadence
from tf_preempt.termination.config import TerminationConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class SessionOptions:
    """How a session behaves.

    Args:
        config: what counts as a notice and how to leave.
        cadence: when periodic checkpoints are made.
        fit: ordinal of this training in the program.
        adopt: begin with TensorFlow's newest checkpoint in a directory that has no manifest.
        raise_on_preemption: raise `errors.Preempted` after the save in place of leaving the process.
        commit_timeout_s: how long a leaving worker waits for the commit, in seconds.
        verbose: 1: the chief says what it begins with and what it has restored; 0: only the log knows.
        opening: a line with which the chief begins, such as where the directory comes from.
        is_active: says whether training goes on; asked when a notice comes, in another thread.
        environ: the environment (Slurm, Kubernetes, ... and ``TF_PREEMPT_STATUS_FILE``).
    """

    config: TerminationConfig = dataclasses.field(default_factory=TerminationConfig)
    cadence: Cadence = dataclasses.field(default_factory=lambda: Cadence(kind="auto"))
    fit: int = 0
    adopt: bool = False
    raise_on_preemption: bool = False
    commit_timeout_s: float = 120.0
    verbose: int = 1
    opening: str | None = None
    is_active: Callable[[], bool] = lambda: True
    environ: Mapping[str, str] = dataclasses.field(default_factory=lambda: os.environ)
