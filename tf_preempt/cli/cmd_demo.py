"""``tf-preempt demo``: one training undisturbed, one with interruptions, and the difference: none."""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
from typing import TYPE_CHECKING

from tf_preempt.cli import argument_types
from tf_preempt.cli.demo.settings import MAX_WORKERS, DemoSettings
from tf_preempt.cli.work_directory import make_work_directory, not_writable, signals_end_us
from tf_preempt.termination.exit_codes import PERMANENT

if TYPE_CHECKING:
    from tf_preempt.cli.demo.report import Report
    from tf_preempt.testing.story import Story

HELP = """\
Trains a small network on handwritten digits twice, with workers on this machine: once undisturbed, and once
with two SIGTERM and one SIGKILL to workers, at random points.  Then it compares weights, optimizer and
history bit for bit.  It takes one to three minutes, runs on the CPU, and needs no network.

The exit status is 0 if all is bit-identical and no step was run twice after a SIGTERM, else 1.

Needs: pip install '.[demo]' in the checkout

Example: tf-preempt demo --workers 2 --epochs 3
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's options to its parser."""
    parser.add_argument(
        "--workers",
        type=int,
        choices=range(1, MAX_WORKERS + 1),
        default=2,
        help="how many workers (default %(default)s)",
    )
    parser.add_argument(
        "--epochs",
        type=argument_types.count(1),
        default=3,
        metavar="N",
        help="how many epochs (default %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=argument_types.count(0),
        metavar="N",
        help="makes weights, order of the images and points of interruption repeatable (default: random)",
    )
    parser.add_argument(
        "--directory",
        metavar="DIR",
        help="where to keep data, checkpoints and logs (default: a temporary one, removed after success)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object; what happens is told on standard error"
    )


def run(args: argparse.Namespace) -> int:
    """Runs the demo and gives the exit status.

    Raises:
        ConfigError: a number is out of its range, or the directory is a URL.
        DirectoryNotWritableError: the directory cannot be written to.
        LaunchError: packages are missing, or a program failed.
        SystemExit: SIGTERM or SIGHUP came.
    """
    from tf_preempt.cli.demo.data import check_extras
    from tf_preempt.testing.story import Story

    check_extras()
    seed = random.randrange(1000) if args.seed is None else args.seed
    settings = DemoSettings(workers=args.workers, epochs=args.epochs, seed=seed)
    story = Story(sys.stderr if args.json else sys.stdout)
    with signals_end_us():
        root = make_work_directory(args.directory, verb="demo")
        keep = True
        try:
            report = _perform(settings, root=root, story=story)
            keep = args.directory is not None or not report.success
        except (KeyboardInterrupt, SystemExit):
            keep = args.directory is not None
            raise
        finally:
            if keep:
                story.tell(f"data, checkpoints and logs are in {root}")
            else:
                shutil.rmtree(root, ignore_errors=True)
    _print(report, as_json=args.json)
    return 0 if report.success else PERMANENT


def _print(report: Report, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(report.to_json()), flush=True)
    else:
        report.print(sys.stdout)


def _perform(settings: DemoSettings, *, root: str, story: Story) -> Report:
    from tf_preempt.cli.demo import comparison, data, director, interruptions, report
    from tf_preempt.cli.demo.result import final_accuracy
    from tf_preempt.cli.demo.settings import TRAIN_STEPS, VALIDATION_STEPS

    plan = interruptions.plan_interruptions(
        seed=settings.seed,
        workers=settings.workers,
        epochs=settings.epochs,
        train_steps=TRAIN_STEPS,
        validation_steps=VALIDATION_STEPS,
    )
    data_dir = os.path.join(root, "data")
    try:
        run_dir = tempfile.mkdtemp(prefix=f"seed-{settings.seed}-", dir=root)
    except OSError as error:
        raise not_writable(root, error) from error
    stage = director.Director(settings, directory=run_dir, data_dir=data_dir, story=story)
    story.tell(f"{settings.workers} worker(s), {settings.epochs} epoch(s), seed {settings.seed}", "head")
    if not data.is_there(data_dir):
        story.tell("writing 1,797 digits as a TFDS data set")
        stage.write_data()
    story.tell("training undisturbed", "head")
    undisturbed = stage.train("undisturbed")
    story.tell(f"training with {len(plan)} interruptions", "head")
    disturbed = stage.train("disturbed", plan)
    lives = comparison.progress_of_lives(disturbed.records, disturbed.incarnations)
    costs = comparison.count_costs(lives, {sent.incarnation: sent.t for sent in disturbed.sent})
    calm = comparison.progress_of_lives(undisturbed.records, undisturbed.incarnations)
    return report.Report(
        settings=settings,
        comparison=comparison.compare(undisturbed.result, disturbed.result),
        interrupted=[
            report.Interrupted(interruption=sent.interruption, done=sent.done, cost=cost)
            for sent, cost in zip(disturbed.sent, costs, strict=True)
        ],
        steps_total=comparison.count_steps(lives),
        steps_undisturbed=comparison.count_steps(calm),
        accuracy=final_accuracy(disturbed.result),
        versions=report.versions(),
    )
