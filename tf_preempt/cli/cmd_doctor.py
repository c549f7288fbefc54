"""``tf-preempt doctor``: will a training here get its notice, save in time, and come back?"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import signal
import socket
import sys
from collections.abc import Iterator
from types import FrameType

from tf_preempt.cli import argument_types
from tf_preempt.cli.doctor.examination import Examination, Report
from tf_preempt.cli.doctor.finding import as_json, as_text, exit_status
from tf_preempt.cli.doctor.place import Place, find_place
from tf_preempt.errors import ConfigError
from tf_preempt.termination.auto import detect_platform
from tf_preempt.termination.exit_codes import shell_status

HELP = """\
Says what tf_preempt finds here, and what stands in the way of a training that survives preemption: which
cluster and which task this is; whether the tasks reach each other; how long a notice Slurm gives, and whether
a save fits into it; whether the checkpoint directory can be written to, is seen by all tasks, and how fast it
is; the versions.  Nothing of TensorFlow is loaded, unless the directory is a URL (gs://...).

Run it as the training is run, so that all tasks take part: under Slurm in its batch script, with srun and in
place of the training, as only a batch job shows whether it would be requeued and with which --signal; on one
machine with tf-preempt launch.  The first task prints all, the others print what is wrong with them.  Each
warning and each error comes with its cure.

The exit status is 1 if there is an error, else 0; that of the first task counts the errors of all.

Example: exec srun tf-preempt doctor /shared/runs/7
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's options to its parser."""
    parser.add_argument(
        "place",
        nargs="?",
        metavar="DIRECTORY",
        help="the checkpoint directory (default: TF_PREEMPT_DIR, as for the callback)",
    )
    parser.add_argument("--directory", metavar="DIRECTORY", help="the same, as an option")
    parser.add_argument(
        "--size-mb",
        type=argument_types.count(1),
        default=64,
        metavar="N",
        help="how many MB are written to the directory to see how fast it is (default %(default)s)",
    )
    parser.add_argument(
        "--timeout",
        type=argument_types.seconds,
        default=30.0,
        metavar="S",
        help="seconds for which the other tasks are waited for (default %(default)g)",
    )
    parser.add_argument("--all-tasks", action="store_true", help="let all tasks print all")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object (of each task that prints)"
    )


def run(args: argparse.Namespace) -> int:
    """Makes the checks, prints what was found, and gives the exit status.

    Raises:
        ConfigError: two directories are given.
    """
    directory = _directory(args)
    with _sigterm_ends():
        place = find_place(os.environ, detect_platform(os.environ))
        report = Examination(
            place,
            os.environ,
            directory=directory,
            size_mb=args.size_mb,
            timeout_s=args.timeout,
            host=socket.gethostname(),
            tells_all=args.all_tasks,
        ).make()
    # In one piece: srun and launch mix the lines of the tasks.
    sys.stdout.write(_shown(report, place, args))
    sys.stdout.flush()
    return exit_status([*report.findings, *itertools.chain.from_iterable(report.others.values())])


def _directory(args: argparse.Namespace) -> str | None:
    given = {path for path in (args.place, args.directory) if path}
    if len(given) > 1:
        raise ConfigError(
            f"Two directories were given: {args.place!r} and --directory={args.directory!r}.",
            hint="Give one of them.",
        )
    return next(iter(given), None)


def _shown(report: Report, place: Place, args: argparse.Namespace) -> str:
    """What this task prints."""
    tells_all = place.is_first or place.rank is None or args.all_tasks
    shown = [finding for finding in report.findings if tells_all or finding.status.is_trouble]
    if args.json:
        # srun cuts lines of more than 1 kB into pieces and mixes those of several tasks.
        return as_json(shown, report.others, rank=place.rank) if shown and not report.is_sent else ""
    if place.rank is None or (place.is_first and not (args.all_tasks and len(place.members) > 1)):
        return as_text(shown)
    host = place.members[place.rank].host if place.members else socket.gethostname()
    return as_text(shown, prefix=f"rank {place.rank} ({host}): ")


@contextlib.contextmanager
def _sigterm_ends() -> Iterator[None]:
    """Lets SIGTERM end the program in order, so that no file of it stays in the directory."""

    def leave(number: int, _: FrameType | None) -> None:
        raise SystemExit(shell_status(-number))

    earlier = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, earlier)
