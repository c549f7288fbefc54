"""Arguments that the callback and the handler have in common, checked in one place."""

from __future__ import annotations

import logging
from typing import Any, Literal

from tf_preempt.checkpointing.leaving import in_notebook
from tf_preempt.errors import ConfigError, Preempted

_log = logging.getLogger("tf_preempt")

OnPreemption = Literal["exit", "stop", "raise"] | None


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


def check_on_preemption(on_preemption: Any, *, can_stop: bool = True) -> None:
    """Checks what is to happen after the save.

    Args:
        on_preemption: what was given.
        can_stop: there is a `fit` that can be stopped, and no loop of the program's own.

    Raises:
        ConfigError: none of its values.
    """
    values = ("exit", "stop", "raise") if can_stop else ("exit", "raise")
    if on_preemption is not None and on_preemption not in values:
        raise ConfigError(
            f"on_preemption={on_preemption!r}: expected one of {', '.join(map(repr, values))}, or None.",
            hint="None is right nearly always: it leaves the process, and raises Preempted in a notebook"
            + ("" if can_stop else "; to stop a loop, catch Preempted around it"),
        )


def raises_on_preemption(on_preemption: OnPreemption) -> bool:
    """Says whether `Preempted` is raised after the save, in place of leaving the process.

    With ``"stop"``, too: who stops catches it.
    """
    return in_notebook() if on_preemption is None else on_preemption in ("raise", "stop")


def warn_of_status(preempted: Preempted) -> None:
    """Says after a stop that the program's own end tells a platform that all is done; not in a notebook."""
    message = str(preempted).partition("\nHINT: ")[0]
    if in_notebook():
        _log.warning("%s", message)
        return
    _log.warning(
        "%s The training is stopped, and unfinished. If the program ends with exit status 0, nobody will "
        "start it again.\nHINT: end it with sys.exit(callback.preempted.exit_code), which is %d here, or use "
        'on_preemption="exit".',
        message,
        preempted.exit_code,
    )
