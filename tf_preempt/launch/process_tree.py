"""A program with everything that it starts, as one thing that can be stopped.

The program gets a session of its own, so that Ctrl-C in a terminal reaches it through us only, once.  Its
descendants are found in two ways, as either alone misses some: by their parents (a program may clear its
environment), and by a mark that they inherit in ``TF_PREEMPT_PROCESS_TREE`` (whoever loses its parent is
adopted by process 1, and a data loader or a worker whose launcher was killed must not go on).  Marks of
nested trees are listed one behind the other.

A process is ended only if it is known to be one of these, and known by process id and start time, so that a
process id that the system gave to somebody else in the meantime is left alone.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO

import psutil

from tf_preempt.errors import ConfigError, LaunchError
from tf_preempt.launch import _follow_parent

__all__ = ["ProcessTree", "TREE_VARIABLE", "check_command"]

TREE_VARIABLE = "TF_PREEMPT_PROCESS_TREE"
"""Environment variable with the marks of the trees that a process belongs to, separated by colons."""

_POLL_S = 0.05
# How long a process may take to vanish after SIGKILL; one that hangs in the kernel's I/O can take for ever.
_KILL_TIMEOUT_S = 10.0

_logger = logging.getLogger("tf_preempt")


class ProcessTree:
    """Starts a program and keeps track of what it starts.

    On Linux the program gets SIGTERM when this process dies without having stopped it (only if it is started
    from the main thread: the kernel watches the thread that starts it).

    Args:
        command: the program and its arguments.
        environ: its environment variables.
        stdout: as ``subprocess.Popen`` takes it: None (same as ours), a file, ``subprocess.PIPE``.
        stderr: likewise.
        sleep: waits for a number of seconds.
        clock: monotonic time in seconds.

    Raises:
        ConfigError: `command` is empty.
        LaunchError: there is no such program, or it may not be executed; ``__cause__`` has the OSError.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environ: Mapping[str, str],
        stdout: int | IO[bytes] | None = None,
        stderr: int | IO[bytes] | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_command(command, environ=environ)
        self._sleep = sleep
        self._clock = clock
        self._lock = threading.Lock()
        self._mark = secrets.token_hex(8)
        outer = environ.get(TREE_VARIABLE)
        marks = f"{outer}:{self._mark}" if outer else self._mark
        try:
            self._popen = subprocess.Popen(
                _following_us(command),
                env={**environ, TREE_VARIABLE: marks},
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        except OSError as error:
            raise LaunchError(f"{command[0]!r} cannot be started: {error}") from error

    @property
    def pid(self) -> int:
        """Process id of the program."""
        return self._popen.pid

    @property
    def stdout(self) -> IO[bytes] | None:
        """The reading end of the program's output, if a pipe was asked for."""
        return self._popen.stdout

    @property
    def returncode(self) -> int | None:
        """How the program itself has ended, negative for a signal; None: not yet, as far as we know."""
        return self._popen.returncode

    def wait(self) -> int:
        """Waits until the program itself has ended; others of the tree may live on.

        Returns:
            Its exit status, negative for a signal.
        """
        # Waits first and takes the status then, under the lock: until it is taken the process id cannot
        # become somebody else's, so that a signal sent meanwhile from another thread hits nobody else.
        if hasattr(os, "waitid") and self._popen.returncode is None:
            try:
                os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOWAIT)
            except ChildProcessError:
                pass  # another thread has taken the status
            self._poll()
        return self._popen.wait()

    def members(self) -> list[psutil.Process]:
        """The processes of the tree that are alive."""
        processes = _all_processes()
        inside = {pid for pid, process in processes.items() if self._is_marked(process)}
        if self._poll() is None:
            inside.add(self._popen.pid)
        _add_descendants(inside, processes)
        return [processes[pid] for pid in sorted(inside) if pid in processes and _is_alive(processes[pid])]

    def send_signal(self, signum: int) -> None:
        """Sends a signal to the program itself, which knows best what to tell its children."""
        with self._lock:
            self._popen.send_signal(signum)

    def signal_all(self, signum: int) -> None:
        """Sends a signal to every process of the tree."""
        for process in self.members():
            try:
                process.send_signal(signum)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                pass  # gone by itself, or it has become another user's: not ours to end

    def stop(self, timeout_s: float) -> None:
        """Ends every process of the tree: SIGTERM, and SIGKILL for those that are still there in `timeout_s`.

        Returns at once if there is none.
        """
        members = self.members()
        if not members:
            return
        self.signal_all(signal.SIGTERM)
        if not self._wait_for_all(members, timeout_s):
            self.kill()

    def kill(self) -> None:
        """Ends every process of the tree with SIGKILL, those too that appear meanwhile."""
        deadline = self._clock() + _KILL_TIMEOUT_S
        while members := self.members():
            if self._clock() > deadline:
                _logger.error("could not end processes %s", [process.pid for process in members])
                return
            self.signal_all(signal.SIGKILL)
            self._wait_for_all(members, 1.0)

    def _wait_for_all(self, members: list[psutil.Process], timeout_s: float) -> bool:
        """Says whether the whole tree is gone; it is searched again only when the known ones are."""
        deadline = self._clock() + timeout_s
        while self._clock() < deadline:
            self._poll()
            members = [process for process in members if _is_alive(process)] or self.members()
            if not members:
                return True
            self._sleep(_POLL_S)
        return False

    def _poll(self) -> int | None:
        with self._lock:
            return self._popen.poll()

    def _is_marked(self, process: psutil.Process) -> bool:
        try:
            return self._mark in process.environ().get(TREE_VARIABLE, "").split(":")
        except (psutil.Error, OSError):
            return False  # another user's, or gone


def check_command(command: Sequence[str], *, environ: Mapping[str, str]) -> None:
    """Looks whether a program can be started, before anything else is done for it.

    Args:
        command: the program and its arguments.
        environ: the environment in which it will be looked for.

    Raises:
        ConfigError: `command` is empty.
        LaunchError: there is no such program, or it may not be executed; ``__cause__`` has the OSError.

    Environment:
        PATH: where programs without a slash in their name are looked for.
    """
    if not command:
        raise ConfigError("no command was given (argument `command`).", hint="for example: python train.py")
    program = command[0]
    path = environ.get("PATH", os.defpath)
    if shutil.which(program, path=path):
        return
    if os.sep in program and os.path.exists(program):
        raise LaunchError(
            f"the command {program!r} is there, but it is not an executable file.",
            hint=f"make it executable, or start it through its interpreter: python {program}",
        ) from PermissionError(program)
    raise LaunchError(
        f"the command {program!r} was not found{'' if os.sep in program else f' in PATH={path!r}'}.",
        hint="check the spelling; a script in the current directory needs ./ in front.",
    ) from FileNotFoundError(program)


def _following_us(command: Sequence[str]) -> list[str]:
    """The command that starts `command` so that it does not outlive us; `command` where that cannot be."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    if sys.platform != "linux" or not in_main_thread or not sys.executable:
        return list(command)
    return [sys.executable, "-I", "-S", str(_follow_parent.__file__), str(os.getpid()), *command]


def _all_processes() -> dict[int, psutil.Process]:
    processes = {}
    for pid in psutil.pids():
        try:
            processes[pid] = psutil.Process(pid)
        except psutil.Error:
            pass
    return processes


def _add_descendants(inside: set[int], processes: Mapping[int, psutil.Process]) -> None:
    """Adds to `inside` the children of those in it, and theirs, and so on."""
    children: dict[int, list[int]] = {}
    for pid, process in processes.items():
        try:
            children.setdefault(process.ppid(), []).append(pid)
        except psutil.Error:
            pass
    to_visit = list(inside)
    while to_visit:
        for child in children.get(to_visit.pop(), []):
            if child not in inside:
                inside.add(child)
                to_visit.append(child)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.Error:
        return False
