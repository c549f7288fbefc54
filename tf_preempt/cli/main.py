"""The entry point of ``tf-preempt``: finds the verb, runs its module, turns errors into exit statuses.

A verb is a module ``cmd_<verb>`` with ``HELP`` (what it does, for ``--help``), ``add_arguments(parser)`` and
``run(args) -> int``, and with ``TAKES_COMMAND = True`` if it starts a program: then ``args.command`` has what
stands behind the first ``--``, untouched, so that further ``--`` in it are the program's own.

Only the module of the verb in use is imported: ``tf-preempt --help`` and the supervisor start without
TensorFlow.  absl's flags (``--verbosity``, ``--flagfile``) work on either side of the verb.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from absl import app, flags
from absl.flags import argparse_flags
from absl.logging import converter

from tf_preempt import __version__
from tf_preempt._slurm import rank_in_step, tasks_in_step
from tf_preempt.errors import ConfigError, LaunchError, TfPreemptError
from tf_preempt.termination.exit_codes import PERMANENT, USAGE

__all__ = ["main", "split_command"]

# The second column is what `tf-preempt --help` says, where no verb's module is loaded.
_VERBS = {
    "demo": "train a small model with and without interruptions, and compare the two",
    "doctor": "say what is detected here, and what stands in the way of surviving a preemption",
    "drill": "interrupt your program with real signals, and compare how it ends with an undisturbed run",
    "launch": "start a program as several workers on this machine",
    "run": "start a program, and start it again when it was preempted",
}
# As a shell has it: not found, and found but not executable.
_NOT_FOUND = 127
_NOT_EXECUTABLE = 126
_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> None:
    """Runs ``tf-preempt`` and leaves the process.

    Args:
        argv: the program's name and its arguments; None: those of this process.

    Raises:
        SystemExit: always, with the exit status: what the verb says; 1 for an error of this package; 2 for a
            wrong command line or configuration; 126 or 127 for a command that cannot be started.
    """
    arguments = list(sys.argv if argv is None else argv)
    app.run(_run_verb, argv=arguments, flags_parser=_parse)


def split_command(arguments: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """Splits at the first ``--`` into what is ours and the command to start; None: there is no ``--``."""
    arguments = list(arguments)
    if "--" not in arguments:
        return arguments, None
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    options, command = split_command(argv[1:])
    parser, verbs = _make_parsers(options)
    args, unknown = parser.parse_known_args(options)
    module = _load(args.verb)
    takes_command = getattr(module, "TAKES_COMMAND", False)
    example = f"the command goes behind --, for example: tf-preempt {args.verb} -- python train.py"
    if unknown:
        hint = f"; {example}" if takes_command and command is None else ""
        verbs[args.verb].error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    if takes_command and not command:
        verbs[args.verb].error(f"no command was given; {example}")
    if command and not takes_command:
        verbs[args.verb].error(f"unrecognized arguments: -- {' '.join(command)}")
    args.command = command or []
    args.module = module
    return args


def _make_parsers(
    options: Sequence[str],
) -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The parser, and those of the verbs; only verbs that occur in `options` get their arguments."""
    parser = argparse_flags.ArgumentParser(
        prog="tf-preempt",
        description="Trains through preemptions: tf.distribute training that ends with the same weights.",
        epilog="tf-preempt VERB --help says more about a verb.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"tf-preempt {__version__}")
    subparsers = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    verbs = {}
    for verb, summary in _VERBS.items():
        module = _load(verb) if verb in options else None
        verbs[verb] = subparsers.add_parser(
            verb,
            help=summary,
            description=module.HELP if module else None,
            usage=f"tf-preempt {verb} [options] -- command ..." if _takes_command(module) else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        if module:
            module.add_arguments(verbs[verb])
    return parser, verbs


def _takes_command(module: ModuleType | None) -> bool:
    return bool(getattr(module, "TAKES_COMMAND", False))


def _load(verb: str) -> ModuleType:
    return importlib.import_module(f"tf_preempt.cli.cmd_{verb}")


def _run_verb(args: argparse.Namespace) -> int:
    _log_to_stderr(converter.absl_to_standard(flags.FLAGS.verbosity))
    try:
        return int(args.module.run(args))
    except TfPreemptError as error:
        print(f"tf-preempt: {error}", file=sys.stderr)
        return _exit_status(error)
    except KeyboardInterrupt:
        return _INTERRUPTED


def _exit_status(error: TfPreemptError) -> int:
    if isinstance(error, ConfigError):
        return USAGE
    if isinstance(error, LaunchError) and isinstance(error.__cause__, FileNotFoundError):
        return _NOT_FOUND
    if isinstance(error, LaunchError) and isinstance(error.__cause__, PermissionError):
        return _NOT_EXECUTABLE
    return PERMANENT


def _log_to_stderr(level: int) -> None:
    """What this package logs goes to the terminal, recognisable among what the program says itself."""
    handler = logging.StreamHandler()
    # Several tasks of a step write to one file, and srun tells them apart only if it was asked to.
    task = f" [task {rank_in_step(os.environ)}]" if tasks_in_step(os.environ) > 1 else ""
    handler.setFormatter(logging.Formatter(f"tf-preempt: %(message)s{task}"))
    logger = logging.getLogger("tf_preempt")
    logger.handlers = [handler]
    logger.setLevel(level)
    logger.propagate = False  # absl's handler would print it once more
