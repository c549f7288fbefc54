"""Runs a training program, and runs it again when it was preempted.

The program says with its exit status that it wants to come back, and in the status file how far it got.  A
signal to the supervisor itself means that this machine is going away or that somebody has had enough: the
program gets it and may save, and then nothing is started again.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence

from tf_preempt.errors import CheckpointFormatError, LaunchError
from tf_preempt.goodput.status_file import STATUS_FILE_VARIABLE, Status, StatusFile
from tf_preempt.launch.inbox import Inbox, Signalled
from tf_preempt.launch.process_tree import ProcessTree, check_command
from tf_preempt.launch.restart_policy import Incarnation, RestartPolicy, Stop
from tf_preempt.launch.slurm_requeue import seconds_of_last_life, settle_for_program
from tf_preempt.launch.tree_watch import Escalation, TreeWatch
from tf_preempt.termination.exit_codes import Outcome, classify, describe, shell_status
from tf_preempt.termination.slurm import Action
from tf_preempt.termination.slurm_options import SlurmOptions

__all__ = ["Supervisor"]

_ONE_NOTICE_S = 2.0
_STATUS_AFTER_CTRL_C = 130

_logger = logging.getLogger("tf_preempt")


class Supervisor:
    """Starts a program as often as a policy says.

    Example::

        exit_code = Supervisor(["python", "train.py"], RestartPolicy(max_restarts=3)).run()

    Args:
        command: the program and its arguments.
        policy: when to start it again.
        environ: the program's environment; None: this process's.
        stop_timeout_s: how many seconds the program may take to save and leave after a signal; then what is
            left of it gets SIGTERM, and SIGKILL 15 seconds later.  More than a local cluster's, so that
            one inside can end its workers in order.
        clock: monotonic time in seconds.

    Raises:
        ConfigError: `command` is empty, or `stop_timeout_s` is negative.

    Environment:
        TF_PREEMPT_STATUS_FILE: set for the program; kept if it is set already.
        SLURM_*: whether there is a job to be requeued; see `settle_for_program`.
    """

    def __init__(
        self,
        command: Sequence[str],
        policy: RestartPolicy | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        stop_timeout_s: float = 90.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        Escalation(stop_timeout_s)
        self._command = list(command)
        self._policy = policy or RestartPolicy()
        self._environ = dict(os.environ if environ is None else environ)
        self._stop_timeout_s = stop_timeout_s
        self._clock = clock
        self._inbox = Inbox()

    def run(self) -> int:
        """Runs the program to its end, with restarts.

        In the main thread it passes signals on to the program: SIGTERM, SIGINT and SIGHUP end the series
        after the program has left, SIGUSR1 and SIGUSR2 do not.

        Returns:
            The exit status to leave with, 0 to 255.

        Raises:
            ConfigError: the command is empty.
            LaunchError: the program cannot be started; ``__cause__`` has the OSError.  Or something of it is
                still there after SIGKILL.
        """
        check_command(self._command, environ=self._environ)
        private_dir = None
        if not self._environ.get(STATUS_FILE_VARIABLE):
            private_dir = tempfile.mkdtemp(prefix="tf_preempt-")
            self._environ[STATUS_FILE_VARIABLE] = os.path.join(private_dir, "status.json")
        try:
            with self._inbox:
                return self._run_until_stopped(StatusFile(self._environ[STATUS_FILE_VARIABLE]))
        finally:
            if private_dir is not None:
                del self._environ[STATUS_FILE_VARIABLE]
                shutil.rmtree(private_dir, ignore_errors=True)

    def _run_until_stopped(self, status_file: StatusFile) -> int:
        history: list[Incarnation] = []
        while True:
            incarnation, signum = self._run_once(status_file)
            history.append(incarnation)
            if signum is not None:
                return self._leave(incarnation, incarnation.returncode, signum)
            decision = self._policy.decide(history)
            if isinstance(decision, Stop):
                _logger.info("not restarting: %s", decision.reason)
                return decision.exit_code
            left_s = seconds_of_last_life(self._environ)
            if left_s is not None:
                _logger.info(
                    "not restarting: %s, but in %.0f s the time limit ends this Slurm job for good",
                    decision.reason,
                    left_s,
                )
                return shell_status(incarnation.returncode)
            _logger.info(
                "restarting in %.1f s (restart %d of %d): %s",
                decision.delay_s,
                len(history),
                self._policy.max_restarts,
                decision.reason,
            )
            signum = self._wait_for_ending_signal(decision.delay_s)
            if signum is not None:
                code = _STATUS_AFTER_CTRL_C if signum == signal.SIGINT else incarnation.returncode
                return self._leave(incarnation, code, signum)

    def _run_once(self, status_file: StatusFile) -> tuple[Incarnation, int | None]:
        """One life of the program, and the signal that asked us to end meanwhile."""
        _remove_if_there(status_file.path)
        tree = ProcessTree(self._command, environ=self._environ)
        try:
            watch = TreeWatch([tree], self._inbox, stop_timeout_s=self._stop_timeout_s, clock=self._clock)
            if not watch.wait():
                raise LaunchError(
                    f"the program (process {tree.pid}) has not ended, although SIGKILL was sent.",
                    hint="it hangs in the kernel, often on a file system that is away: look there.",
                )
        finally:
            tree.kill()  # nothing is left after an ordinary end; this is for the others
        incarnation = Incarnation(returncode=tree.wait(), status=_read_status(status_file))
        return incarnation, watch.ending_signal or self._wait_for_ending_signal(0.0)

    def _wait_for_ending_signal(self, timeout_s: float) -> int | None:
        """The next signal that asks us to end; None: none comes.

        Others have nobody to go to, and a life that is just starting would die of what it missed.
        """
        deadline = self._clock() + timeout_s
        while message := self._inbox.get(max(0.0, deadline - self._clock())):
            if not isinstance(message, Signalled):
                continue
            if message.signum in TreeWatch.ENDING_SIGNALS:
                return message.signum
            _logger.info("not passing %s on: no program runs just now", signal.Signals(message.signum).name)
        return None

    def _leave(self, last: Incarnation, returncode: int, signum: int) -> int:
        has_trained = last.status is not None
        verdict = settle_for_program(self._environ, returncode, signum, has_trained=has_trained)
        if verdict is not None and verdict.runs_again:
            prospect = "; Slurm runs this job again"
        else:
            goes_on = _goes_on(last, self._policy.restart_codes)
            prospect = "; it goes on when it is started again" if goes_on else ""
        _logger.info(
            "not restarting: %s asked for the end, and the program has ended (%s%s)",
            signal.Signals(signum).name,
            describe(returncode),
            prospect,
        )
        if verdict is not None and verdict.action is Action.STAY:
            # Slurm requeues a job that it ends itself.  The signal that we have had may come a second time.
            self._wait_for_ending_signal(_ONE_NOTICE_S)
            self._wait_for_ending_signal(SlurmOptions().stay_s)
        return shell_status(returncode)


def _goes_on(last: Incarnation, restart_codes: frozenset[int]) -> bool:
    """Whether the program has something to go on from, and ended as one does that was interrupted.

    That is not only the status of a program that asks to be started again: Slurm's SIGTERM may end one that
    just leaves with it.
    """
    status = last.status
    has_saved = status is not None and bool(status.committed_step or status.restored_step)
    return has_saved and classify(last.returncode, restart_codes=restart_codes) is Outcome.RESTART


def _read_status(status_file: StatusFile) -> Status | None:
    try:
        return status_file.read()
    except (CheckpointFormatError, OSError) as error:
        _logger.warning("progress of the program is not known: %s", error)
        return None


def _remove_if_there(path: str) -> None:
    """So that what is found after the program has ended is what this life of it wrote."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        _logger.warning("cannot remove the status file of the life before: %s", error)
