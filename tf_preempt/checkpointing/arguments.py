"""Arguments that the callback and the handler have in common, checked in one place."""

from __future__ import annotations

from typing import Any, Literal

from tf_preempt.checkpointing.leaving import in_notebook
from tf_preempt.errors import ConfigError

OnPreemption = Literal["exit", "raise"] | None


def check_max_to_keep(max_to_keep: Any) -> None:
    """Checks how many checkpoints are to stay.

    Raises:
        ConfigError: neither a whole number from 1 on nor None.
    """
    is_number = isinstance(max_to_keep, int) and not isinstance(max_to_keep, bool)
    if max_to_keep is not None and not (is_number and max_to_keep >= 1):
        raise ConfigError(
            f"max_to_keep={max_to_keep!r}: expected a whole number from 1 on, or None.",
            hint="max_to_keep=3 keeps the three newest checkpoints, None keeps all",
        )


def check_on_preemption(on_preemption: Any) -> None:
    """Checks what is to happen after the save.

    Raises:
        ConfigError: none of its values.
    """
    if on_preemption not in (None, "exit", "raise"):
        raise ConfigError(
            f"on_preemption={on_preemption!r}: expected None, 'exit' or 'raise'.",
            hint="None is right nearly always: it leaves the process, and raises Preempted in a notebook",
        )


def raises_on_preemption(on_preemption: OnPreemption) -> bool:
    """Says whether `Preempted` is raised after the save, in place of leaving the process."""
    return in_notebook() if on_preemption is None else on_preemption == "raise"
