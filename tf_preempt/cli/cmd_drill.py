"""``tf-preempt drill``: does your program, interrupted, end with the bits of an undisturbed one?"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import sys
import time
import xml.etree.ElementTree as ElementTree
from typing import TYPE_CHECKING

from tf_preempt.cli import argument_types
from tf_preempt.cli.work_directory import make_work_directory, not_writable, signals_end_us
from tf_preempt.errors import (
    CheckpointError,
    ConfigError,
    DirectoryError,
    DirectoryNotWritableError,
    LaunchError,
)
from tf_preempt.termination.exit_codes import USAGE

if TYPE_CHECKING:
    from tf_preempt.testing.drill.options import DrillOptions
    from tf_preempt.testing.drill.outcome import Outcome
    from tf_preempt.testing.story import Story

TAKES_COMMAND = True
HELP = """\
Runs your training program as it is: undisturbed, once more to see whether that gives the same, and then with
signals to its workers, chosen by the seed.  Each training gets a checkpoint directory of its own, through
TF_PREEMPT_DIR_OVERRIDE.  Then it compares the last checkpoints tensor by tensor: weights, optimizer, seeds,
metrics, history; and says what differs, by how much, since which step, and why, likely.

A SIGTERM gives notice, a SIGKILL does not, and comes after the first commit only.  Other files that the
program writes are its own affair: all trainings run in this directory.

The exit status is 0 if all is bit-identical, 1 if not, 2 for wrong options, 3 if the program failed, made no
checkpoint or ended before any signal took effect, 126 or 127 if it cannot be started, 130 after Ctrl-C.

Example: tf-preempt drill --kills 5 --seed 7 -- python train.py
"""
DIFFERENT = 1
"""Exit status: the trainings did not end alike."""
FAILED = 3
"""Exit status: the drill could not be done, because of the program."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's options to its parser."""
    parser.add_argument(
        "--kills",
        type=argument_types.count(1),
        default=3,
        metavar="N",
        help="how many signals to send (default %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=argument_types.count(0),
        default=0,
        metavar="N",
        help="chooses kinds, workers and steps of the signals (default %(default)s)",
    )
    parser.add_argument(
        "--signals",
        default="TERM,KILL",
        metavar="NAMES",
        help="which signals, of TERM and KILL (default %(default)s)",
    )
    parser.add_argument(
        "--workers",
        type=argument_types.count(1),
        metavar="N",
        help="start the program as so many workers of one cluster, as `tf-preempt launch` does (default: as "
        "one process without a cluster)",
    )
    parser.add_argument(
        "--trust-deterministic",
        action="store_true",
        help="leave out the second undisturbed training, which tells whether the program repeats itself",
    )
    parser.add_argument(
        "--restart-exit-codes",
        type=argument_types.exit_codes,
        default=frozenset(),
        metavar="N,N",
        help="further exit statuses with which the program asks to be started again",
    )
    parser.add_argument(
        "--stall-timeout",
        type=argument_types.seconds,
        default=600.0,
        metavar="S",
        help="give up when the program neither prints nor trains for so many seconds (default %(default)g)",
    )
    parser.add_argument(
        "--directory",
        metavar="DIR",
        help="where to keep checkpoints and logs (default: a temporary one, removed if all is identical)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object; what happens is told on standard error"
    )
    parser.add_argument("--junit", metavar="FILE", help="write the result there as JUnit XML, too")


def run(args: argparse.Namespace) -> int:
    """Does the drill and gives the exit status.

    Raises:
        ConfigError: an option has a value that it cannot have.
        LaunchError: there is no such command, or it may not be executed; ``__cause__`` has the OSError.
        SystemExit: SIGTERM or SIGHUP came.
    """
    try:
        return _run(args)
    except DirectoryError as error:  # its usual status means here that the trainings differ
        print(f"tf-preempt: {error}", file=sys.stderr, flush=True)
        return USAGE


def _run(args: argparse.Namespace) -> int:
    from tf_preempt.testing.story import Story

    options = _options(args)
    _check_writable(args.junit)
    story = Story(sys.stderr if args.json else sys.stdout)
    with signals_end_us():
        root = make_work_directory(args.directory, verb="drill")
        keep = args.directory is not None
        try:
            status = _drill(options, args, root=root, story=story)
            keep = _is_kept(args, status)
        finally:
            if keep:
                story.tell(f"checkpoints and logs are in {root}")
            else:
                shutil.rmtree(root, ignore_errors=True)
    return status


def _options(args: argparse.Namespace) -> DrillOptions:
    from tf_preempt.testing.drill.options import DrillOptions

    if args.stall_timeout == 0:
        raise ConfigError("--stall-timeout 0: expected more than 0 seconds.")
    return DrillOptions(
        command=args.command,
        kills=args.kills,
        seed=args.seed,
        signals=tuple(name.strip().upper().removeprefix("SIG") for name in args.signals.split(",")),
        workers=args.workers,
        restart_codes=args.restart_exit_codes,
        trust_deterministic=args.trust_deterministic,
        stall_timeout_s=args.stall_timeout,
    )


def _drill(options: DrillOptions, args: argparse.Namespace, *, root: str, story: Story) -> int:
    from tf_preempt.cli.drill import junit
    from tf_preempt.cli.drill.report import print_report
    from tf_preempt.testing.drill.drill import perform

    start = time.monotonic()
    try:
        outcome = perform(options, directory=root, story=story)
    except OSError as error:
        raise not_writable(root, error) from error
    except (LaunchError, CheckpointError) as error:
        if isinstance(error.__cause__, OSError):  # no such command
            raise
        print(f"tf-preempt: {error}", file=sys.stderr, flush=True)
        if args.json:
            print(json.dumps(_failure(options, error, root)), flush=True)
        _write(args.junit, junit.failed_suite(str(error), seconds=time.monotonic() - start))
        return FAILED
    status = _exit_status(outcome)
    if not _is_kept(args, status):
        outcome = dataclasses.replace(outcome, directory=None)
    if args.json:
        print(json.dumps(outcome.to_json()), flush=True)
    else:
        print_report(outcome, sys.stdout)
    _write(args.junit, junit.suite(outcome, seconds=time.monotonic() - start))
    return status


def _is_kept(args: argparse.Namespace, status: int) -> bool:
    """Says whether checkpoints and logs stay."""
    return args.directory is not None or status != 0


def _exit_status(outcome: Outcome) -> int:
    from tf_preempt.testing.drill.outcome import Verdict

    return {Verdict.IDENTICAL: 0, Verdict.NOT_DISTURBED: FAILED}.get(outcome.verdict, DIFFERENT)


def _failure(options: DrillOptions, error: Exception, root: str) -> dict[str, object]:
    """The JSON object for a program that failed."""
    from tf_preempt.testing.drill.outcome import FORMAT

    return {
        "format": FORMAT,
        "verdict": "failed",
        "command": list(options.command),
        "seed": options.seed,
        "error": str(error),
        "directory": root,
    }


def _check_writable(path: str | None) -> None:
    """Refuses a place for the JUnit file before anything is trained for it; leaves the place as it was.

    Raises:
        DirectoryNotWritableError: no file can be written there.
    """
    if path is None:
        return
    was_there = os.path.lexists(path)
    try:
        with open(path, "ab"):
            pass
        if not was_there:
            os.remove(path)
    except OSError as error:
        raise _junit_not_writable(path, error) from error


def _write(path: str | None, element: ElementTree.Element) -> None:
    """Writes the JUnit file; if that has become impossible, says so, and the verdict stays what it is."""
    from tf_preempt.cli.drill import junit

    if path is None:
        return
    try:
        junit.write(element, path)
    except OSError as error:
        print(f"tf-preempt: {_junit_not_writable(path, error)}", file=sys.stderr, flush=True)


def _junit_not_writable(path: str, error: OSError) -> DirectoryNotWritableError:
    return DirectoryNotWritableError(
        f"--junit {path} cannot be written: {error}", hint="name a file in a directory that exists."
    )
