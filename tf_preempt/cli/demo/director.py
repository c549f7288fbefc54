"""Trains under ``tf-preempt run -- tf-preempt launch``, as processes of their own."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from tf_preempt.cli.demo.interruptions import Interruption
from tf_preempt.cli.demo.progress import DIRECTORY_VARIABLE, ProgressFollower, Record
from tf_preempt.cli.demo.result import Arrays, read_result
from tf_preempt.cli.demo.settings import DemoSettings
from tf_preempt.cli.demo.watch import Sent, Watch
from tf_preempt.errors import LaunchError
from tf_preempt.goodput.events import EventFollower
from tf_preempt.goodput.status_file import STATUS_FILE_VARIABLE
from tf_preempt.testing.story import Story
from tf_preempt.testing.watched_program import (
    LogFollower,
    WatchedProgram,
    environment_of_its_own,
    supervised,
)

__all__ = ["Director", "Training"]

# Signals have to hit validations of a fifth of a second.
_POLL_S = 0.003
# For the children only.  The demo is about signals, not about speed: one GPU cannot be shared by workers.
_QUIET = {
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "GRPC_VERBOSITY": "ERROR",
    "CUDA_VISIBLE_DEVICES": "-1",
    "PYTHONUNBUFFERED": "1",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """A training that has come to its end.

    Args:
        result: weights, optimizer variables and History.
        records: what the workers did.
        incarnations: of each process id.
        sent: the interruptions.
    """

    result: Arrays
    records: Sequence[Record]
    incarnations: Mapping[int, int]
    sent: Sequence[Sent]


class Director:
    """Runs the demo's programs in a directory.

    Args:
        settings: how big.
        directory: for everything that is written; exists.
        data_dir: for the data set.
        story: told what happens.
        environ: environment variables, passed on to the programs.
        stall_timeout_s: a program that does nothing for so long has failed.
        clock: seconds since 1970; the workers write such times too.
        sleep: waits for a number of seconds.
        kill: sends a signal to a process.
    """

    def __init__(
        self,
        settings: DemoSettings,
        *,
        directory: str,
        data_dir: str,
        story: Story,
        environ: Mapping[str, str] = os.environ,
        stall_timeout_s: float = 120.0,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        kill: Callable[[int, int], None] = os.kill,
    ) -> None:
        self._settings = settings
        self._directory = directory
        self._data_dir = data_dir
        self._story = story
        # TensorFlow leaves temporary files behind where it is killed; here they go with the rest.
        self._temporary_dir = os.path.join(directory, "tmp")
        self._environ = environment_of_its_own(environ, **_QUIET, TMPDIR=self._temporary_dir)
        self._stall_timeout_s = stall_timeout_s
        self._clock = clock
        self._sleep = sleep
        self._kill = kill

    def write_data(self) -> None:
        """Writes the data set, in a process of its own, as it takes TensorFlow.

        Raises:
            LaunchError: that failed.
            OSError: the directory cannot be written to.
        """
        command = [sys.executable, "-m", "tf_preempt.cli.demo.data", self._data_dir]
        with self._running("data", command, self._environ) as program:
            end = self._clock() + self._stall_timeout_s
            while program.is_alive() and self._clock() < end:
                self._sleep(_POLL_S)

    def train(self, name: str, plan: Sequence[Interruption] = ()) -> Training:
        """Trains from the beginning to the end.

        Args:
            name: of the folder for this training's files; must not exist.
            plan: interruptions, in the order of their places.

        Raises:
            LaunchError: a program failed or does nothing any more, or the training ended before all
                interruptions could be made.
            OSError: the folder cannot be written to.
        """
        folder = os.path.join(self._directory, name)
        progress_dir = os.path.join(folder, "progress")
        os.makedirs(progress_dir)
        result = os.path.join(folder, "result.npz")
        checkpoints = os.path.join(folder, "checkpoints")
        environ = {
            **self._environ,
            DIRECTORY_VARIABLE: progress_dir,
            STATUS_FILE_VARIABLE: os.path.join(folder, "status.json"),
        }
        command = self._command(checkpoints=checkpoints, result=result)
        with self._running(name, command, environ, folder) as program:
            watch = Watch(
                plan=plan,
                progress=ProgressFollower(progress_dir),
                events=EventFollower(checkpoints),
                log=LogFollower(program.errors_path),
                story=self._story,
                clock=self._clock,
                kill=self._kill,
            )
            self._follow(watch, program.is_alive)
        watch.look(may_interrupt=False)
        if watch.left:
            number = len(plan) - watch.left + 1
            raise LaunchError(
                f"the training ended before interruption {number} of {len(plan)} could be made.",
                hint="the machine is too busy to hit a short training: --epochs makes it longer.",
            )
        return Training(
            result=read_result(result),
            records=watch.records,
            incarnations=watch.incarnations,
            sent=watch.sent,
        )

    def _command(self, *, checkpoints: str, result: str) -> list[str]:
        settings = self._settings
        options = {
            "data": self._data_dir,
            "checkpoints": checkpoints,
            "result": result,
            "epochs": settings.epochs,
            "seed": settings.seed,
            "save-every": settings.save_every,
        }
        train = ["-m", "tf_preempt.cli.demo.train", *(f"--{key}={value}" for key, value in options.items())]
        return supervised([sys.executable, *train], workers=settings.workers, max_restarts=10)

    def _follow(self, watch: Watch, alive: Callable[[], bool]) -> None:
        stalled_at = self._clock() + self._stall_timeout_s
        while alive():
            if watch.look():
                stalled_at = self._clock() + self._stall_timeout_s
            elif self._clock() > stalled_at:
                return  # whoever started it says so
            self._sleep(_POLL_S)

    @contextmanager
    def _running(
        self, name: str, command: Sequence[str], environ: Mapping[str, str], folder: str | None = None
    ) -> Iterator[WatchedProgram]:
        """Runs a program while the block watches it; nothing of it is left behind the block.

        Raises:
            LaunchError: it failed, or lives still at the end of the block.
        """
        os.makedirs(self._temporary_dir, exist_ok=True)
        program = WatchedProgram(command, name=name, folder=folder or self._directory, environ=environ)
        with program:
            yield program
            stalled = program.is_alive()
        if stalled or program.describe_failure():
            ended = f"did nothing for {self._stall_timeout_s:g} s" if stalled else program.describe_failure()
            raise LaunchError(f"{name}: {ended}.  Its last lines:\n{program.last_lines()}")
