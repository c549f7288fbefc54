"""One training from start to end, in a folder of its own, with the planned signals on the way."""

from __future__ import annotations

import dataclasses
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence

from tf_preempt.checkpointing.directory import OVERRIDE
from tf_preempt.checkpointing.manifest import Manifest, readable_manifests
from tf_preempt.errors import LaunchError
from tf_preempt.goodput.events import EventFollower
from tf_preempt.goodput.status_file import STATUS_FILE_VARIABLE
from tf_preempt.goodput.step_file import STEP_FILE_VARIABLE, read_places
from tf_preempt.testing.drill.kept_checkpoints import KeptCheckpoints
from tf_preempt.testing.drill.kill_watch import KillWatch, Sent
from tf_preempt.testing.drill.kills import Kill
from tf_preempt.testing.drill.options import DrillOptions
from tf_preempt.testing.story import Story
from tf_preempt.testing.watched_program import (
    LogFollower,
    WatchedProgram,
    environment_of_its_own,
    supervised,
)

__all__ = ["Trainer", "TrainingRun", "whose_error"]

_POLL_S = 0.003
# More restarts than signals: a killed worker's peers may lose each other once more on their way back.
_SPARE_RESTARTS = 3
_LABEL = r"^(?:\[worker \d+\] )?"
_RAISED = re.compile(_LABEL + r"(?P<name>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit))\b")
_FRAME = re.compile(_LABEL + r' +File "(?P<path>[^"]+)", line (?P<line>\d+)')
_OURS = "tf_preempt.errors."
# Folders of packages, to tell whose code has raised an error.
_OWNERS = {"tf_preempt": "tf_preempt", "tensorflow": "TensorFlow", "keras": "Keras"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """A training that has come to its end.

    Args:
        name: what it is called.
        checkpoints: its checkpoint directory.
        kept: where checkpoints are that the program has deleted.
        logs: what the program printed, over all its lives, by the file that has it.
        last: the last checkpoint of each training in the program, by its ordinal.
        commits: how many checkpoints it has committed.
        sent: the signals.
        unsent: how many signals could not be sent.
    """

    name: str
    checkpoints: str
    kept: str
    logs: Mapping[str, str]
    last: Mapping[int, Manifest]
    commits: int = 0
    sent: Sequence[Sent] = ()
    unsent: int = 0

    @property
    def fit_steps(self) -> dict[int, int]:
        """Steps of each training in the program, by its ordinal."""
        return {fit: manifest.step for fit, manifest in self.last.items()}


class Trainer:
    """Runs the program of a drill as often as it is asked to.

    Args:
        options: what is asked for.
        directory: for everything that is written; exists.
        temporary_dir: for the program's temporary files, which it leaves behind where it is killed; exists.
        story: told what happens.
        environ: the program's environment variables; those of a cluster or a job around are left out.
        clock: seconds, as `time.monotonic` gives them.
        sleep: waits for a number of seconds.
    """

    def __init__(
        self,
        options: DrillOptions,
        *,
        directory: str,
        temporary_dir: str,
        story: Story,
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = options
        self._directory = directory
        self._story = story
        self._environ = environment_of_its_own(environ, TMPDIR=temporary_dir)
        self._clock = clock
        self._sleep = sleep

    def train(
        self, name: str, kills: Sequence[Kill] = (), fit_steps: Mapping[int, int] | None = None
    ) -> TrainingRun:
        """Trains from the beginning to the end.

        Args:
            name: of the folder for this training's files; must not exist.
            kills: signals to send on the way.
            fit_steps: steps of each training in the program; needed to send signals.

        Raises:
            LaunchError: the program failed, does nothing any more, or has made no checkpoint.
            OSError: the folder cannot be written to.
        """
        folder = os.path.join(self._directory, name)
        checkpoints = os.path.join(folder, "checkpoints")
        steps = os.path.join(folder, "steps")
        kept = KeptCheckpoints(checkpoints, os.path.join(folder, "kept"))
        environ = {
            "PYTHONUNBUFFERED": "1",
            **self._environ,
            OVERRIDE: checkpoints,
            STATUS_FILE_VARIABLE: os.path.join(folder, "status.json"),
            STEP_FILE_VARIABLE: steps,
        }
        command = supervised(
            self._options.command,
            workers=self._options.workers,
            max_restarts=len(kills) + _SPARE_RESTARTS if kills else 0,
            max_no_progress=len(kills) + _SPARE_RESTARTS + 1,
            restart_codes=self._options.restart_codes,
        )
        program = WatchedProgram(command, name=name, folder=folder, environ=environ)
        with program:
            watch = KillWatch(
                kills=kills,
                fit_steps=fit_steps or {},
                workers=self._options.workers or 1,
                events=EventFollower(checkpoints),
                log=LogFollower(program.errors_path),
                read_places=lambda: read_places(steps),
                on_commit=kept.keep,
                story=self._story,
            )
            self._follow(watch, program)
        watch.look(may_send=False)
        self._check(program, watch)
        return TrainingRun(
            name=name,
            checkpoints=checkpoints,
            kept=os.path.join(folder, "kept"),
            logs={path: _read(path) for path in (program.output_path, program.errors_path)},
            last=self._last_checkpoints(name, checkpoints),
            commits=watch.commits,
            sent=watch.sent,
            unsent=watch.unsent,
        )

    def _follow(self, watch: KillWatch, program: WatchedProgram) -> None:
        printed = 0
        stalled_at = self._clock() + self._options.stall_timeout_s
        while program.is_alive():
            size = os.path.getsize(program.output_path) + os.path.getsize(program.errors_path)
            if watch.look() or size != printed:
                printed, stalled_at = size, self._clock() + self._options.stall_timeout_s
            elif self._clock() > stalled_at:
                return  # who looks at how it ended says so
            self._sleep(_POLL_S)

    def _check(self, program: WatchedProgram, watch: KillWatch) -> None:
        failure = program.describe_failure()
        if failure is None:
            return
        when = ""
        if watch.sent:
            last = watch.sent[-1]
            when = f", after {last.kill.signal.name} to worker {last.kill.worker} at step {last.after_step}"
        lines = program.last_lines()
        raise LaunchError(
            f"the {program.name} training failed{when}: {failure}.  {whose_error(lines)}  "
            f"Its last lines:\n{lines}",
            hint=None if watch.sent else "make it run to its end by itself first.",
        )

    def _last_checkpoints(self, name: str, directory: str) -> dict[int, Manifest]:
        last: dict[int, Manifest] = {}
        for manifest in readable_manifests(directory)[0]:  # newest first
            last.setdefault(manifest.resume.get("fit", 0), manifest)
        if not last:
            raise LaunchError(
                f"the {name} training ended well, but it made no checkpoint in {directory}, where "
                f"{OVERRIDE} told it to: it does not use tf_preempt, or clears its environment.",
                hint='give fit callbacks=[tf_preempt.callbacks.PreemptionCheckpoint("runs/1")], or use '
                "tf_preempt.PreemptionCheckpointHandler in a custom loop.",
            )
        return dict(sorted(last.items()))


def whose_error(lines: str) -> str:
    """Says what error ended a program, and in whose code it was raised, as far as its last lines tell.

    Args:
        lines: what it has printed, at its end.
    """
    place, error = None, None
    for line in lines.splitlines():
        if frame := _FRAME.match(line):
            place = frame
        elif raised := _RAISED.match(line):
            error = (raised["name"], place)
    if error is None:
        return "It has printed no error of Python."
    name, place = error
    owner = _OWNERS["tf_preempt"] if name.startswith(_OURS) else _owner(place)
    return f"It ended with {name.removeprefix(_OURS)}, raised in {owner}."


def _owner(place: re.Match[str] | None) -> str:
    if place is None:
        return "a place that it did not say"
    folders = place["path"].split("/")[:-1]
    package = next((folder for folder in reversed(folders) if folder in _OWNERS), None)
    if package is None:
        return f"the program ({os.path.basename(place['path'])}, line {place['line']})"
    return _OWNERS[package]


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
