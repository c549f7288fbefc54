"""What a user may say about notices and about leaving."""

from __future__ import annotations

import dataclasses
import math
import numbers
import signal
from collections.abc import Callable, Sequence
from typing import Any

from tf_preempt.errors import ConfigError
from tf_preempt.termination.signals import parse_signals
from tf_preempt.termination.slurm_options import SlurmOptions
from tf_preempt.termination.watcher import TerminationWatcher

_USUAL_SIGNALS = ("SIGTERM",)
# Where a scheduler can be asked to send another signal before the end, as with Slurm's --signal=USR1@120.
_SIGNALS_BY_PLATFORM = {"slurm": ("SIGTERM", "SIGUSR1", "SIGUSR2")}
_PLATFORMS = ("local", "slurm", "gce", "aws", "azure", "kubernetes", "agent_platform")
_TENSORFLOW_ARGUMENTS = ("termination_watcher_fn", "exit_fn", "grace_period", "save_fn")


@dataclasses.dataclass(frozen=True)
class TerminationConfig:
    """How notices are detected, and how the program ends after the save.

    Takes what ``tf.distribute.experimental.TerminationConfig`` takes, in the same order and with the same
    meaning; None leaves the choice to the platform.  One difference: with a `termination_watcher_fn`
    TensorFlow stops listening to SIGTERM, and then loses the work when the machine is shut down with one.
    Here `signals` stay watched; ``signals=()`` gives TensorFlow's behaviour.

    Example::

        TerminationConfig(exit_fn=lambda: sys.exit(RESTART_CODE), grace_period=120)

    Args:
        termination_watcher_fn: called about once a second; returns True when a notice is there.  It has to
            be light and must not block.
        exit_fn: called without arguments after the checkpoint is saved, to end the program.
        grace_period: seconds from the notice to the end of the process, to be trained in before the last
            save, which is committed by then; a deadline of the notice that is earlier counts.  0: save and
            leave at once.  None: likewise, but a notice of ten minutes or more from Compute Engine is
            trained in, as the hour of a GPU's maintenance.  Where less than about three times the time of a
            save is left, it is saved and left at once, and a warning says so.
        save_fn: called to write the checkpoint in place of the checkpoint manager's ``save``.
        signals: names of the signals that are notices; None: SIGTERM, and in a Slurm job also SIGUSR1 and
            SIGUSR2 (``#SBATCH --signal``) where the program has no handler of its own for them.
        slurm: how to leave a Slurm job; see `SlurmOptions`.
        watchers: more sources of notices than the platform's own; one of a class that the platform has stands
            in the place of the platform's.  A training listens to them and leaves them open, so that the next
            one can; closing them is up to you.
        save_on_interrupt: Ctrl-C (SIGINT) saves, and then ends the program with status 130, which asks nobody
            for a restart: `exit_fn` is not called, a Slurm job not requeued, no grace period trained in.
            Where an exception is raised in place of leaving, as in a notebook, it is raised.  A second Ctrl-C
            does not wait for the save.

    Raises:
        ConfigError: a function is not callable, `grace_period` is not a number of seconds from 0, a signal is
            unknown or cannot be caught, `slurm` is no `SlurmOptions`, `watchers` is no sequence of
            `TerminationWatcher` objects, or `save_on_interrupt` is neither True nor False.

    References:
        https://www.tensorflow.org/api_docs/python/tf/distribute/experimental/TerminationConfig (2.21)
    """

    termination_watcher_fn: Callable[[], bool] | None = None
    exit_fn: Callable[[], object] | None = None
    grace_period: float | None = None
    save_fn: Callable[..., object] | None = None
    signals: Sequence[str | signal.Signals] | None = dataclasses.field(default=None, kw_only=True)
    slurm: SlurmOptions = dataclasses.field(default_factory=SlurmOptions, kw_only=True)
    watchers: Sequence[TerminationWatcher] | None = dataclasses.field(default=None, kw_only=True)
    save_on_interrupt: bool = dataclasses.field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        for name in ("termination_watcher_fn", "exit_fn", "save_fn"):
            _check_callable(name, getattr(self, name))
        _check_grace_period(self.grace_period)
        if self.signals is not None:
            names = tuple(number.name for number in parse_signals(self.signals))
            object.__setattr__(self, "signals", names)
        if not isinstance(self.slurm, SlurmOptions):
            raise ConfigError(
                f"TerminationConfig: slurm={self.slurm!r}; expected a tf_preempt.termination.SlurmOptions.",
                hint="Pass slurm=SlurmOptions(requeue='never'), for example.",
            )
        if self.watchers is not None:
            object.__setattr__(self, "watchers", _checked_watchers(self.watchers))
        if not isinstance(self.save_on_interrupt, bool):
            raise ConfigError(
                f"TerminationConfig: save_on_interrupt={self.save_on_interrupt!r}; expected True or False.",
                hint="True saves on Ctrl-C and then ends the program.",
            )

    @property
    def leaves_sigterm_alone(self) -> bool:
        """Whether the user has named signals, and SIGTERM is none of them."""
        return self.signals is not None and "SIGTERM" not in self.signals

    def is_interrupt(self, source: str) -> bool:
        """Whether a notice of this source is a Ctrl-C on which is saved, with no wish for a restart."""
        return self.save_on_interrupt and source == "SIGINT"

    @classmethod
    def for_platform(cls, platform: str, **changes: Any) -> TerminationConfig:
        """The configuration with a platform's signals named, to be written down or changed.

        Signals that are named are notices also where the program has a handler of its own, which is called
        too.

        Args:
            platform: ``"local"``, ``"slurm"``, ``"gce"``, ``"aws"``, ``"azure"``, ``"kubernetes"`` or
                ``"agent_platform"``.
            **changes: arguments of this class that replace the platform's.

        Raises:
            ConfigError: `platform` is none of these, or a change cannot be used.
        """
        return cls(**{"signals": usual_signals(str(platform)), **changes})

    @classmethod
    def from_any(cls, config: object) -> TerminationConfig:
        """Makes one of this class out of what users pass as `termination_config`.

        Args:
            config: None (all defaults), an object of this class, or one of TensorFlow's class, recognised by
                its four attributes so that TensorFlow need not be imported.

        Raises:
            ConfigError: it is none of these, or one of its attributes cannot be used.
        """
        if config is None:
            return cls()
        if isinstance(config, cls):
            return config
        missing = [name for name in _TENSORFLOW_ARGUMENTS if not hasattr(config, name)]
        if missing or isinstance(config, type):
            raise ConfigError(
                f"termination_config={config!r}, which is of type {type(config).__name__}; expected None, a "
                "tf_preempt.TerminationConfig or a tf.distribute.experimental.TerminationConfig.",
                hint="Pass termination_config=tf_preempt.TerminationConfig(grace_period=120), for example.",
            )
        values: dict[str, Any] = {name: getattr(config, name) for name in _TENSORFLOW_ARGUMENTS}
        return cls(**values)


def usual_signals(platform: str) -> tuple[str, ...]:
    """The signals that are notices on a platform.

    Raises:
        ConfigError: it is not known.
    """
    if platform not in _PLATFORMS:
        raise ConfigError(
            f"platform={platform!r}; expected one of {', '.join(_PLATFORMS)}.",
            hint="leave it to tf_preempt, which looks where the program runs",
        )
    return _SIGNALS_BY_PLATFORM.get(platform, _USUAL_SIGNALS)


def _check_callable(name: str, value: object) -> None:
    if value is not None and not callable(value):
        raise ConfigError(
            f"TerminationConfig: {name}={value!r}, which is of type {type(value).__name__}; expected a "
            "function or None.",
            hint=f"Pass the function itself: {name}=my_function, not {name}=my_function().",
        )


def _checked_watchers(value: object) -> tuple[TerminationWatcher, ...]:
    is_sequence = isinstance(value, Sequence) and not isinstance(value, str)
    for one in value if is_sequence else [value]:  # type: ignore[attr-defined]
        if not is_sequence or not isinstance(one, TerminationWatcher):
            raise ConfigError(
                f"TerminationConfig: watchers={value!r}; expected a sequence of TerminationWatcher objects, "
                f"and found a {type(one).__name__}.",
                hint="Pass watchers=[AwsWatcher(rebalance_is_notice=True)], for example; None adds nothing "
                "to the platform's own.",
            )
    return tuple(value)  # type: ignore[arg-type]


def _check_grace_period(value: object) -> None:
    if value is None:
        return
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not math.isfinite(float(value)) or float(value) < 0:  # type: ignore[arg-type]
        raise ConfigError(
            f"TerminationConfig: grace_period={value!r}; expected a number of seconds from 0, or None.",
            hint="grace_period=120 trains on for up to two minutes after a notice; None saves at once.",
        )
