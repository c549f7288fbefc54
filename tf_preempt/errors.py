"""Every error that tf_preempt raises, in one tree.

::

    TfPreemptError
    ├── ConfigError (ValueError)                  an argument or an environment variable is wrong
    │   ├── ClusterConfigError                    TF_CONFIG, host lists, task numbers
    │   └── DirectoryNotGivenError                no checkpoint directory anywhere
    ├── SlurmError (RuntimeError)                 Slurm's environment contradicts itself or the request
    ├── UnsupportedStrategyError (TypeError)      this tf.distribute strategy cannot be served
    ├── DirectoryError (OSError)                  the checkpoint directory cannot be used
    │   ├── DirectoryNotWritableError
    │   ├── DirectoryNotSharedError               the workers see different directories
    │   └── DirectoryInUseError                   two users of one directory
    ├── CheckpointError (RuntimeError)
    │   ├── CheckpointMismatchError (ValueError)  the checkpoint is of another model or cluster
    │   ├── CheckpointFormatError                 not what tf_preempt writes, or damaged
    │   │   └── NewerFormatError                  written by a newer tf_preempt; nothing is touched
    │   └── CheckpointWriteError                  a save failed
    ├── CoordinationError (RuntimeError)          the workers could not agree in time
    │   └── WorkerLostError                       a worker's process is gone; a restart is the cure
    ├── InternalsChangedError (RuntimeError)      a private name of TensorFlow or Keras is gone
    ├── LaunchError (RuntimeError)                a program could not be started or supervised
    └── Preempted                                 training was left after a save, on request of the platform

Each leaf also subclasses the builtin that a caller would catch.  Messages say what happened, the value and
where it came from, what was expected, and after ``HINT:`` the cure.
"""

from __future__ import annotations

__all__ = [
    "TfPreemptError",
    "ConfigError",
    "ClusterConfigError",
    "DirectoryNotGivenError",
    "SlurmError",
    "UnsupportedStrategyError",
    "DirectoryError",
    "DirectoryNotWritableError",
    "DirectoryNotSharedError",
    "DirectoryInUseError",
    "CheckpointError",
    "CheckpointMismatchError",
    "CheckpointFormatError",
    "NewerFormatError",
    "CheckpointWriteError",
    "CoordinationError",
    "WorkerLostError",
    "InternalsChangedError",
    "LaunchError",
    "Preempted",
]


class TfPreemptError(Exception):
    """Base of all errors of this package.

    Args:
        message: what happened, with the value received, its origin, and what was expected.
        hint: the cure; appended to the message after ``HINT:``.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        self.hint = hint
        super().__init__(f"{message}\nHINT: {hint}" if hint else message)


class ConfigError(TfPreemptError, ValueError):
    """An argument, a flag or an environment variable has a value that cannot be used."""


class ClusterConfigError(ConfigError):
    """The description of the cluster (``TF_CONFIG``, host lists, task numbers) is wrong."""


class DirectoryNotGivenError(ConfigError):
    """No checkpoint directory was given, neither as an argument nor in the environment."""


class SlurmError(TfPreemptError, RuntimeError):
    """Slurm's environment is incomplete, contradicts itself, or contradicts what was asked for."""


class UnsupportedStrategyError(TfPreemptError, TypeError):
    """The ``tf.distribute`` strategy in use cannot be served; the message names the one to use."""


class DirectoryError(TfPreemptError, OSError):
    """The checkpoint directory cannot be used."""


class DirectoryNotWritableError(DirectoryError):
    """The checkpoint directory cannot be created or written to."""


class DirectoryNotSharedError(DirectoryError):
    """A worker does not see the files that the chief writes to the checkpoint directory."""


class DirectoryInUseError(DirectoryError):
    """The checkpoint directory already belongs to another callback or handler that is running."""


class CheckpointError(TfPreemptError, RuntimeError):
    """A checkpoint cannot be written, read or used."""


class CheckpointMismatchError(CheckpointError, ValueError):
    """The checkpoint belongs to another model, program or cluster; what differs is listed."""


class CheckpointFormatError(CheckpointError):
    """A file of the checkpoint directory is not what tf_preempt writes, or is damaged."""


class NewerFormatError(CheckpointFormatError):
    """A file of the checkpoint directory was written by a newer tf_preempt; this is no damage."""


class CheckpointWriteError(CheckpointError):
    """A checkpoint could not be written or committed; the previous ones are untouched."""


class CoordinationError(TfPreemptError, RuntimeError):
    """The workers could not agree on something before the time-out."""


class WorkerLostError(CoordinationError):
    """The process of another worker, or of the chief with the coordination service, is gone."""


class InternalsChangedError(TfPreemptError, RuntimeError):
    """A private name of TensorFlow or Keras that this package needs is gone or has changed."""


class LaunchError(TfPreemptError, RuntimeError):
    """A program or a local cluster could not be started or supervised."""


class Preempted(TfPreemptError):
    """Training was left after a committed save because the platform gave notice.

    Raised instead of leaving the process where that would be a nuisance (notebooks).  IPython shows one
    line instead of a traceback.

    Args:
        message: what happened and how to go on.
        exit_code: the exit status with which a script would have left.
    """

    def __init__(self, message: str, *, exit_code: int, hint: str | None = None) -> None:
        self.exit_code = exit_code
        super().__init__(message, hint=hint)

    def _render_traceback_(self) -> list[str]:
        """Tell IPython what to print in place of a traceback."""
        return [f"Preempted: {self}"]
