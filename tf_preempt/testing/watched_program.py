"""A program that somebody watches, with its output in log files, as ``run`` and ``launch`` start it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Collection, Mapping, Sequence

from tf_preempt.goodput.status_file import STATUS_FILE_VARIABLE
from tf_preempt.goodput.step_file import STEP_FILE_VARIABLE
from tf_preempt.launch.process_tree import ProcessTree
from tf_preempt.termination.exit_codes import describe

__all__ = ["LogFollower", "WatchedProgram", "environment_of_its_own", "supervised"]

_LAST_LINES = 30
_OF_OTHERS = (
    "TF_CONFIG",
    "TF_PREEMPT_DIR",
    "TF_PREEMPT_DIR_OVERRIDE",
    STATUS_FILE_VARIABLE,
    STEP_FILE_VARIABLE,
)
# A training that finds these takes itself for the job's, and has the job requeued when it is interrupted.
_OF_A_JOB = "SLURM_"


class WatchedProgram:
    """Runs a program; as a context manager it leaves nothing of it behind the block.

    Args:
        command: the program and its arguments.
        name: what it is called in messages.
        folder: where its output goes, in ``workers.log`` and ``supervisor.log``; exists.
        environ: its environment variables.

    Raises:
        ConfigError: the command is empty.
        LaunchError: there is no such program, or it may not be executed; ``__cause__`` has the OSError.
        OSError: the logs cannot be written.
    """

    def __init__(self, command: Sequence[str], *, name: str, folder: str, environ: Mapping[str, str]) -> None:
        self.name = name
        self.output_path = os.path.join(folder, "workers.log")
        """What the program prints: with `supervised`, its workers."""
        self.errors_path = os.path.join(folder, "supervisor.log")
        """What it says on standard error: with `supervised`, those who started the workers, too."""
        with open(self.output_path, "wb") as output, open(self.errors_path, "wb") as errors:
            self._tree = ProcessTree(command, environ=environ, stdout=output, stderr=errors)
        self._waiter = threading.Thread(
            target=self._tree.wait, name=f"tf_preempt watches {name}", daemon=True
        )
        self._waiter.start()
        self._was_ended = False

    def __enter__(self) -> WatchedProgram:
        return self

    def __exit__(self, *_: object) -> None:
        self._was_ended = self.is_alive()
        self._tree.kill()
        self._waiter.join()

    def is_alive(self) -> bool:
        """Says whether the program itself goes on."""
        return self._waiter.is_alive()

    @property
    def returncode(self) -> int | None:
        """How it has ended, negative for a signal; None: not yet."""
        return self._tree.returncode

    def describe_failure(self) -> str | None:
        """How it has failed, in words, once the block is over; None: it ended by itself, with status 0."""
        if self._was_ended:
            return "it did nothing any more, and was ended"
        return describe(self.returncode) if self.returncode else None

    def last_lines(self) -> str:
        """The end of its output, with the paths of the logs."""
        return "\n".join(map(_last_lines, (self.output_path, self.errors_path)))


def supervised(
    command: Sequence[str],
    *,
    workers: int | None,
    max_restarts: int,
    max_no_progress: int | None = None,
    restart_codes: Collection[int] = (),
) -> list[str]:
    """The command with ``tf-preempt run`` in front, which starts it again, and ``launch``, if wanted.

    Args:
        command: the training program and its arguments.
        workers: of the cluster that ``launch`` starts; None: one process without a cluster.
        max_restarts: how often it is started again at most.
        max_no_progress: after how many lives without a commit ``run`` gives up; None: as it does by itself.
        restart_codes: further exit statuses with which the program asks to be started again.
    """
    tf_preempt = [sys.executable, "-m", "tf_preempt"]
    run = ["run", "--max-restarts", str(max_restarts), "--backoff-initial", "0.1", "--stop-timeout", "60"]
    if max_no_progress is not None:
        run += ["--max-no-progress", str(max_no_progress)]
    codes = ["--restart-exit-codes", ",".join(map(str, sorted(restart_codes)))] if restart_codes else []
    launch = []
    if workers is not None:
        launch = [*tf_preempt, "launch", "--workers", str(workers), "--stop-timeout", "30", *codes, "--"]
    return [*tf_preempt, *run, *codes, "--", *launch, *command]


def environment_of_its_own(environ: Mapping[str, str], **changes: str) -> dict[str, str]:
    """The environment for a training on this machine that has nothing to do with one around it.

    Args:
        environ: this process's.
        **changes: variables to set.
    """
    kept = {
        name: value
        for name, value in environ.items()
        if name not in _OF_OTHERS and not name.startswith(_OF_A_JOB)
    }
    return {**kept, **changes}


class LogFollower:
    """Gives the lines of a file as they become complete.

    Args:
        path: the file; exists.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._offset = 0

    def poll(self) -> list[str]:
        """The lines that have become complete since the last call.

        Raises:
            OSError: the file cannot be read.
        """
        with open(self._path, "rb") as file:
            file.seek(self._offset)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        return whole.decode(errors="replace").splitlines()


def _last_lines(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        lines = file.read().splitlines()[-_LAST_LINES:]
    return "\n".join([f"--- {path}", *lines])
