"""``tf-preempt run``: a program that is started again when it was preempted."""

from __future__ import annotations

import argparse

from tf_preempt.cli import argument_types
from tf_preempt.launch.restart_policy import RestartPolicy
from tf_preempt.launch.supervisor import Supervisor

TAKES_COMMAND = True
HELP = """\
Starts a program, and starts it again when its exit status asks for that (42, 143 and others that platforms
use; never after an error of its own).  Between restarts it waits, the longer the more often nothing was
achieved.  SIGTERM and Ctrl-C are passed on; when the program has left, it is not started again.  On SIGTERM a
program that uses tf_preempt saves before it leaves, on Ctrl-C only with save_on_interrupt=True.  SIGUSR1 and
SIGUSR2 are passed on and end nothing here; Slurm's --signal sends them to everything in a step.

The exit status is that of the program's last life (128 + N if signal N ended it), also when the restarts are
used up or a signal told this command to end; 1 if the program made no progress; 2 for wrong options; 126 or
127 if it cannot be started; 130 after Ctrl-C between two lives.

Example: tf-preempt run --max-restarts 20 -- tf-preempt launch --workers 2 -- python train.py
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's options to its parser."""
    policy = RestartPolicy()
    parser.add_argument(
        "--max-restarts",
        type=argument_types.count(0),
        default=policy.max_restarts,
        metavar="N",
        help="restart at most so often (default %(default)s)",
    )
    parser.add_argument(
        "--max-no-progress",
        type=argument_types.count(1),
        default=policy.max_no_progress,
        metavar="N",
        help="give up after so many lives in a row that committed nothing (default %(default)s); only for "
        "programs that use tf_preempt: others do not tell how far they are",
    )
    parser.add_argument(
        "--backoff-initial",
        type=argument_types.seconds,
        default=policy.backoff_initial_s,
        metavar="S",
        help="seconds before a restart after progress (default %(default)s)",
    )
    parser.add_argument(
        "--backoff-max",
        type=argument_types.seconds,
        metavar="S",
        help=f"longest wait before a restart (default {policy.backoff_max_s:g}; at least the initial one)",
    )
    parser.add_argument(
        "--restart-exit-codes",
        type=argument_types.exit_codes,
        default=policy.restart_codes,
        metavar="N,N",
        help="further exit statuses with which the program asks for a restart",
    )
    parser.add_argument(
        "--stop-timeout",
        type=argument_types.seconds,
        default=90.0,
        metavar="S",
        help="seconds that the program has to save and leave after a signal (default %(default)g)",
    )


def run(args: argparse.Namespace) -> int:
    """Runs the command to its end, with restarts, and gives its exit status.

    Raises:
        ConfigError: --backoff-max is less than --backoff-initial.
        LaunchError: the command cannot be started.
    """
    longest = args.backoff_max
    if longest is None:
        longest = max(RestartPolicy().backoff_max_s, args.backoff_initial)
    policy = RestartPolicy(
        max_restarts=args.max_restarts,
        max_no_progress=args.max_no_progress,
        backoff_initial_s=args.backoff_initial,
        backoff_max_s=longest,
        restart_codes=args.restart_exit_codes,
    )
    return Supervisor(args.command, policy, stop_timeout_s=args.stop_timeout).run()
