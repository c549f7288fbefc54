"""``tf-preempt launch``: a program as several workers on this machine."""

from __future__ import annotations

import argparse

from tf_preempt.cli import argument_types
from tf_preempt.launch.local_cluster import LocalCluster

TAKES_COMMAND = True
HELP = """\
Starts a program several times on this machine, as the workers of one cluster: each finds its place in
TF_CONFIG.  Each line of their output starts with the worker's name.  SIGTERM, Ctrl-C, SIGUSR1 and SIGUSR2 are
passed on to all workers; when one has died, the others have some time to leave and are ended then.

The exit status is that of a worker with a permanent error, else of one that asks for a restart, else 0.

Example: tf-preempt launch --workers 2 -- python train.py
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's options to its parser."""
    parser.add_argument(
        "--workers",
        type=argument_types.count(1),
        default=2,
        metavar="N",
        help="how many workers (default %(default)s)",
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="name or address of this machine under which they reach each other (default %(default)s)",
    )
    parser.add_argument(
        "--no-prefix",
        action="store_true",
        help="pass the workers' output on as it comes, without their names",
    )
    parser.add_argument(
        "--stop-timeout",
        type=argument_types.seconds,
        default=60.0,
        metavar="S",
        help="seconds that workers have to leave after a signal or another's death (default %(default)g)",
    )
    parser.add_argument(
        "--restart-exit-codes",
        type=argument_types.exit_codes,
        default=frozenset(),
        metavar="N,N",
        help="further exit statuses with which a worker asks for a restart",
    )


def run(args: argparse.Namespace) -> int:
    """Runs the workers to their end and gives their common exit status.

    Raises:
        LaunchError: the command or the cluster cannot be started.
    """
    return LocalCluster(
        args.command,
        workers=args.workers,
        host=args.host,
        prefix=not args.no_prefix,
        stop_timeout_s=args.stop_timeout,
        restart_codes=args.restart_exit_codes,
    ).run()
