"""How a preempted program leaves: with the platform's restart code, the user's own way, or an exception."""

from __future__ import annotations

import logging
import sys
import types
from collections.abc import Callable
from typing import NoReturn

from tf_preempt.checkpointing.end_of_process import end_in_time
from tf_preempt.errors import CoordinationError, Preempted
from tf_preempt.termination.auto import Platform
from tf_preempt.termination.config import TerminationConfig
from tf_preempt.termination.exit_codes import PERMANENT, restart_exit_code

_log = logging.getLogger("tf_preempt")


class Guard:
    """A block that tells of the exception that ends it, which then goes on unless the telling raises another.

    It is entered at every step: a generator's context manager would cost more than all else of a step.

    Args:
        on_error: called with the exception.
    """

    __slots__ = ("_on_error",)

    def __init__(self, on_error: Callable[[BaseException | None], object]) -> None:
        self._on_error = on_error

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> None:
        if kind is not None:
            self._on_error(error)


class Leaving:
    """Decides once how this process leaves after the save.

    Args:
        platform: whose restart code is used.
        config: its `exit_fn`, if any, is called in place of leaving with that code.
        raise_instead: raise `Preempted`; meant for notebooks, where leaving would end the kernel.
    """

    def __init__(self, platform: Platform, config: TerminationConfig, *, raise_instead: bool) -> None:
        self.exit_code = restart_exit_code(str(platform))
        self._exit_fn = config.exit_fn
        self._raise_instead = raise_instead

    def leave(self, message: str, exit_code: int | None = None, *, wants_restart: bool = True) -> NoReturn:
        """Leaves.

        Args:
            message: why, for people.
            exit_code: the status to leave with; None: the platform's restart code.
            wants_restart: `exit_fn`, which asks for a restart, is called.

        Raises:
            Preempted: if asked for.
            SystemExit: otherwise; also when the user's `exit_fn` returns.
        """
        code = self.exit_code if exit_code is None else exit_code
        if self._exit_fn is not None and wants_restart:
            _log.warning("%s Leaving by the program's exit_fn.", message)
            self._exit_fn()
        elif self._raise_instead:
            raise Preempted(message, exit_code=code, hint="run the cell again to go on from there")
        _log.warning("%s Leaving with exit status %d.", message, code)
        end_in_time(code)
        sys.exit(code)

    def leave_for_good(self, message: str) -> NoReturn:
        """Leaves where a restart would not help; `exit_fn`, which asks for one, is not called.

        Raises:
            CoordinationError: where leaving would end a notebook's kernel.
            SystemExit: otherwise.
        """
        if self._raise_instead:
            raise CoordinationError(message)
        _log.error("%s Leaving with exit status %d.", message, PERMANENT)
        end_in_time(PERMANENT)
        sys.exit(PERMANENT)


def in_notebook() -> bool:
    """Says whether this is a Jupyter or Colab kernel, where `sys.exit` ends nothing but the cell, noisily."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")


def gist(error: BaseException) -> str:
    """The line of an error that says what happened: TensorFlow puts a heading and a traceback around it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [
        line for line in lines if "Collective ops" in line or "Socket" in line or "incarnation" in line
    ]
    return (telling or lines or [type(error).__name__])[0][:300]
