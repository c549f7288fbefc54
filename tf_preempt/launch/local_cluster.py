"""Several workers on this machine, each told by ``TF_CONFIG`` who it is, with their output on one stream.

What a cluster manager does for a real cluster, for trying things out, for machines with several accelerators,
and for tests.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import IO

from tf_preempt.errors import ConfigError, LaunchError
from tf_preempt.launch import worker_output
from tf_preempt.launch.inbox import Inbox
from tf_preempt.launch.line_prefix import LinePrefixer
from tf_preempt.launch.process_tree import ProcessTree, check_command
from tf_preempt.launch.tree_watch import Escalation, TreeWatch
from tf_preempt.termination.exit_codes import combine

__all__ = ["LocalCluster"]

# For what is left in the workers' pipes once all of them have ended.
_OUTPUT_TIMEOUT_S = 10.0

_logger = logging.getLogger("tf_preempt")


class LocalCluster:
    """Starts one program as several workers of a cluster and waits for all of them; usable once.

    Example::

        exit_code = LocalCluster(["python", "train.py"], workers=2).run()

    When a worker has died, or the workers were asked to end, those that are left get `stop_timeout_s` to
    leave by themselves, then SIGTERM, and SIGKILL 15 seconds later.

    Args:
        command: the program and its arguments, the same for all workers.
        workers: how many.
        environ: the workers' environment variables; None: this process's.
        host: name or address under which the workers reach each other.
        output: where the workers' output and errors go, a text or binary file; None: standard output.
        prefix: whether each line starts with ``[worker 1] ``; without it the output is passed on as it comes.
        stop_timeout_s: see above.
        restart_codes: further exit statuses with which a worker asks for a restart.

    Raises:
        ConfigError: `command` is empty, or a number is out of its range.
        LaunchError: there is no such program, or it may not be executed; ``__cause__`` has the OSError.

    Environment:
        TF_CONFIG: set for the workers; one that is there is replaced.
        PYTHONUNBUFFERED: set to 1 for the workers if it is not set, so that their output comes when it is
            printed.
    """

    def __init__(
        self,
        command: Sequence[str],
        workers: int = 2,
        *,
        environ: Mapping[str, str] | None = None,
        host: str = "127.0.0.1",
        output: IO[bytes] | IO[str] | None = None,
        prefix: bool = True,
        stop_timeout_s: float = 60.0,
        restart_codes: frozenset[int] = frozenset(),
    ) -> None:
        if workers < 1:
            raise ConfigError(f"workers={workers} (an argument of LocalCluster) must be 1 or more.")
        Escalation(stop_timeout_s)
        self._environ = {"PYTHONUNBUFFERED": "1", **(os.environ if environ is None else environ)}
        check_command(command, environ=self._environ)
        self._command = list(command)
        self._workers = workers
        self._host = host
        self._write = worker_output.locked_writer(output)
        self._prefix = prefix
        self._stop_timeout_s = stop_timeout_s
        self._restart_codes = restart_codes
        self._inbox = Inbox()
        self._trees: list[ProcessTree] = []
        self._pumps: list[threading.Thread] = []
        self._watch: TreeWatch | None = None

    def run(self) -> int:
        """Starts the workers and waits for them; in the main thread it passes signals on to them.

        Returns:
            The workers' common exit status, as `tf_preempt.termination.exit_codes.combine` makes it.

        Raises:
            LaunchError: as `start`; or a worker is still there after SIGKILL.
        """
        with self._inbox, self:
            if not self.wait():
                raise LaunchError(
                    f"of the workers (processes {self.pids}) not all have ended, although SIGKILL was sent.",
                    hint="they hang in the kernel, often on a file system that is away: look there.",
                )
            return self.exit_code

    def start(self) -> None:
        """Starts the workers.

        Raises:
            LaunchError: `host` is not an address of this machine, a worker could not be started, or the
                cluster has been started before.
        """
        if self._watch is not None:
            raise LaunchError("a LocalCluster can be started once only.", hint="make another one.")
        if "TF_CONFIG" in self._environ:
            _logger.warning("replacing TF_CONFIG of the environment: the workers get their own")
        addresses = _free_addresses(self._host, self._workers)
        try:
            for i in range(self._workers):
                self._trees.append(self._start_worker(i, addresses))
        except BaseException:
            self._kill_all()
            raise
        self._watch = TreeWatch(self._trees, self._inbox, stop_timeout_s=self._stop_timeout_s)

    @property
    def pids(self) -> list[int]:
        """The workers' process ids."""
        return [tree.pid for tree in self._trees]

    @property
    def returncodes(self) -> list[int | None]:
        """How each worker has ended, negative for a signal; None: not yet."""
        return [tree.returncode for tree in self._trees]

    @property
    def exit_code(self) -> int:
        """The common exit status of the workers that have ended."""
        ended = [code for code in self.returncodes if code is not None]
        return combine(ended, restart_codes=self._restart_codes)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until all workers have ended and says whether they have.

        Has to be called for dead workers' peers to be ended.  Afterwards all their output has been written
        (only what another process, which a worker has left behind, writes after 10 seconds more may not).

        Args:
            timeout_s: seconds; None: as long as it takes, but no longer than 10 seconds after SIGKILL.

        Raises:
            LaunchError: the cluster has not been started.
        """
        if not self._started_watch().wait(timeout_s):
            return False
        self._join_pumps()
        return True

    def send_signal(self, worker: int, signum: int) -> None:
        """Sends a signal to one worker, if it is still there.

        Raises:
            ConfigError: there is no such worker.
        """
        if not 0 <= worker < len(self._trees):
            raise ConfigError(f"worker={worker} is none of the {len(self._trees)} workers that were started.")
        self._trees[worker].send_signal(signum)

    def forward(self, signum: int) -> None:
        """Sends a signal to all workers; one that asks them to end gives them `stop_timeout_s` for it.

        Raises:
            LaunchError: the cluster has not been started.
        """
        self._started_watch().forward(signum)

    def close(self) -> None:
        """Ends what is still running, at once, and waits for it, though not for ever; again is fine."""
        if self._watch is not None:
            self._watch.kill()
            self.wait()

    def __enter__(self) -> LocalCluster:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _started_watch(self) -> TreeWatch:
        if self._watch is None:
            raise LaunchError("the LocalCluster has not been started.", hint="call start() or run() first.")
        return self._watch

    def _start_worker(self, index: int, addresses: list[str]) -> ProcessTree:
        config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        environ = {**self._environ, "TF_CONFIG": json.dumps(config)}
        tree = ProcessTree(self._command, environ=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        name = f"worker {index}"
        prefixer = LinePrefixer(f"[{name}] ".encode()) if self._prefix else None
        pump = threading.Thread(
            target=worker_output.pump,
            args=(tree.stdout, prefixer, self._write),
            name=f"tf_preempt output {name}",
            daemon=True,
        )
        self._pumps.append(pump)
        pump.start()
        return tree

    def _kill_all(self) -> None:
        for tree in self._trees:
            tree.kill()
            if not tree.members():  # otherwise it hangs in the kernel, and so would we
                tree.wait()
        self._join_pumps()

    def _join_pumps(self) -> None:
        """Waits for the workers' last output; a process that has left its tree may hold a pipe open."""
        deadline = time.monotonic() + _OUTPUT_TIMEOUT_S
        for pump in self._pumps:
            pump.join(max(0.0, deadline - time.monotonic()))
        if any(pump.is_alive() for pump in self._pumps):
            _logger.warning("the workers have ended; a process that they left behind keeps their output open")


def _free_addresses(host: str, count: int) -> list[str]:
    """Addresses with ports that nobody uses.

    All are held together, so that they differ, and let go just before the workers take them.

    Raises:
        LaunchError: `host` is not an address of this machine.
    """
    with contextlib.ExitStack() as stack:
        try:
            family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
            sockets = [stack.enter_context(socket.socket(family)) for _ in range(count)]
            for held in sockets:
                held.bind((host, 0))
        except OSError as error:
            raise LaunchError(
                f"no port can be had on host={host!r} (an argument of LocalCluster): {error}",
                hint="give a name or an address of this machine, for example 127.0.0.1.",
            ) from error
        shown = f"[{host}]" if ":" in host else host
        return [f"{shown}:{held.getsockname()[1]}" for held in sockets]
