"""Where a verb that trains keeps its files, and how it ends when it is told to: with nothing left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import threading
from collections.abc import Iterator

from tf_preempt import _files
from tf_preempt.errors import ConfigError, DirectoryNotWritableError
from tf_preempt.termination.exit_codes import shell_status

__all__ = ["make_work_directory", "not_writable", "signals_end_us"]

_ENDING = ("SIGTERM", "SIGHUP")


def make_work_directory(directory: str | None, *, verb: str) -> str:
    """The directory that the user has named with ``--directory``, or a new temporary one.

    Args:
        directory: a local path, made if it is not there; None: a temporary one.
        verb: whose files they are.

    Raises:
        ConfigError: it is a URL.
        DirectoryNotWritableError: it cannot be made.
    """
    if directory is None:
        return tempfile.mkdtemp(prefix=f"tf_preempt-{verb}-")
    if _files.is_url(directory):
        raise ConfigError(
            f"--directory {directory} is a URL: expected a local directory.",
            hint=f"the workers of the {verb} run on this machine; PreemptionCheckpoint itself takes URLs.",
        )
    try:
        os.makedirs(directory, exist_ok=True)
    except OSError as error:
        raise not_writable(directory, error) from error
    return os.path.abspath(directory)


def not_writable(directory: str, error: OSError) -> DirectoryNotWritableError:
    """The error for a directory in which nothing can be made."""
    return DirectoryNotWritableError(
        f"--directory {directory} cannot be written to: {error}", hint="name another one, or leave it out."
    )


@contextlib.contextmanager
def signals_end_us() -> Iterator[None]:
    """Lets SIGTERM and SIGHUP end the block as Ctrl-C does, so that nothing is left behind.

    Raises:
        SystemExit: SIGTERM or SIGHUP came.
    """

    def leave(signum: int, _frame: object) -> None:
        raise SystemExit(shell_status(-signum))

    earlier = {}
    if threading.current_thread() is threading.main_thread():
        for signum in (getattr(signal, name) for name in _ENDING if hasattr(signal, name)):
            if signal.getsignal(signum) is signal.SIG_DFL:
                earlier[signum] = signal.signal(signum, leave)
    try:
        yield
    finally:
        for signum, handler in earlier.items():
            signal.signal(signum, handler)
