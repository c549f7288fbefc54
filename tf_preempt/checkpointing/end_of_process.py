"""Sees that a process that leaves does end, whatever its threads and exit functions do.

`SystemExit` ends the main thread only.  Python then waits, without limit, for threads that are no daemons
(those of executors too) and for the functions of `atexit`; and who started the program waits for its status.
So they get some time, and then the process ends with the status with which it was leaving.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time

GRACE_S = 10.0
"""Seconds from the end of the main thread's work; enough to close files and to send a last message."""
# Who catches SystemExit and does other things for so long has made it his own business when he ends.
_FORGOTTEN_AFTER_S = 60.0
_FLUSH_S = 1.0

_leaving: tuple[int, int, float] | None = None
_is_registered = False


def end_in_time(exit_code: int) -> None:
    """To be called just before `SystemExit` is raised; the process then ends soon after its main thread.

    Args:
        exit_code: the status with which it leaves.
    """
    global _leaving, _is_registered
    _leaving = (os.getpid(), exit_code, time.monotonic())
    # Called before Python waits for threads.  There is no public way; without this one all waits are endless.
    register = getattr(threading, "_register_atexit", None)
    if register is not None and not _is_registered:
        with contextlib.suppress(RuntimeError):  # Python is already past that
            register(_main_thread_is_done)
            _is_registered = True


def _main_thread_is_done() -> None:
    if _leaving is None:
        return
    pid, exit_code, since = _leaving
    if os.getpid() == pid and time.monotonic() - since < _FORGOTTEN_AFTER_S:
        threading.Thread(target=_end, args=(exit_code,), name="tf_preempt-end", daemon=True).start()


def _end(exit_code: int) -> None:
    time.sleep(GRACE_S)
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    names = [thread.name for thread in others if not thread.daemon]
    what = f"thread(s) {', '.join(names)}" if names else "a function of atexit"
    # No logging: a lock of it may be what the process hangs in.
    text = (
        f"tf_preempt: {what} kept the process for {GRACE_S:g} s; it ends now with exit status {exit_code}.\n"
        "HINT: make threads daemons, or end them in a `finally` around the training.\n"
    )
    flush = threading.Thread(target=_flush, daemon=True)
    with contextlib.suppress(Exception):
        flush.start()
        flush.join(_FLUSH_S)
    with contextlib.suppress(OSError):
        os.write(2, text.encode())
    os._exit(exit_code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
