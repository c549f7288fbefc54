"""Turns itself into another program that gets SIGTERM when its parent dies; run as a script, on Linux.

``python -I -S _follow_parent.py PARENT_PID COMMAND [ARGUMENT ...]``

A supervisor that is killed with SIGKILL cannot stop anything any more.  The kernel can: it delivers the
"parent death signal" that a process asked for, and keeps it across ``exec``.  Asking between ``fork`` and
``exec`` of the supervisor itself (``preexec_fn``) may deadlock where there are threads, so it happens
here, in a process of its own that lives for a few hundredths of a second.

References:
    PR_SET_PDEATHSIG(2const), Linux man-pages 6.9.
    https://docs.python.org/3/library/subprocess.html (warning about preexec_fn), 2026-11.
"""

from __future__ import annotations

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> int:
    """Does not return unless the program cannot be started; then says so and gives a shell's status.

    Args:
        argv: this script, the parent's process id, the program and its arguments.
    """
    # Ctrl-C in this moment must end the program to be, not print a traceback of this one.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    _ask_for_parent_death_signal()
    if os.getppid() != int(argv[1]):
        return 128 + signal.SIGTERM  # the parent died before the kernel was asked
    for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores them, and that would be inherited
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    command = argv[2:]
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126


def _ask_for_parent_death_signal() -> None:
    """Best effort: without it the program runs all the same."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        pass


if __name__ == "__main__":
    sys.exit(main(sys.argv))
