"""A drill: trains undisturbed, once more to see whether that gives the same, then disturbed; and compares."""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping

from tf_preempt.launch.process_tree import check_command
from tf_preempt.testing.drill.causes import likely_causes
from tf_preempt.testing.drill.comparing import Comparison, compare_runs
from tf_preempt.testing.drill.kills import plan_kills
from tf_preempt.testing.drill.options import DrillOptions
from tf_preempt.testing.drill.outcome import Outcome, Verdict
from tf_preempt.testing.drill.training_run import Trainer, TrainingRun
from tf_preempt.testing.story import Story

__all__ = ["perform"]

_Compare = Callable[[TrainingRun, TrainingRun, str], Comparison]


def perform(
    options: DrillOptions, *, directory: str, story: Story, environ: Mapping[str, str] = os.environ
) -> Outcome:
    """Does a drill.

    Args:
        options: what is asked for.
        directory: in which a folder is made for everything that is written; exists.
        story: told what happens.
        environ: environment variables, passed on to the program and to the comparison, except for those of
            a cluster or job around.

    Raises:
        LaunchError: the command cannot be started (``__cause__`` has the OSError); the program failed, does
            nothing any more, or has made no checkpoint; or the comparison failed.
        OSError: `directory` cannot be written to.
    """
    check_command(options.command, environ=environ)
    directory = tempfile.mkdtemp(prefix=f"seed-{options.seed}-", dir=directory)
    # Short, as sockets have names in it; and of its own, as a killed program leaves its files there.
    temporary_dir = tempfile.mkdtemp(prefix="tf_preempt-")
    try:
        trainer = Trainer(
            options, directory=directory, temporary_dir=temporary_dir, story=story, environ=environ
        )

        def compare(one: TrainingRun, other: TrainingRun, name: str) -> Comparison:
            return compare_runs(one, other, folder=os.path.join(directory, name), environ=environ)

        return _perform(options, trainer, compare, directory, story)
    finally:
        shutil.rmtree(temporary_dir, ignore_errors=True)


def _perform(
    options: DrillOptions, trainer: Trainer, compare: _Compare, directory: str, story: Story
) -> Outcome:
    story.tell("training undisturbed", "head")
    undisturbed = trainer.train("undisturbed")
    repeatable: bool | None = None
    if not options.trust_deterministic:
        story.tell("training undisturbed once more, to see whether that gives the same", "head")
        repeated = trainer.train("repeated")
        comparison = compare(undisturbed, repeated, "repeatability")
        repeatable = comparison.identical
        if not repeatable:
            return Outcome(
                options=options,
                verdict=Verdict.NOT_REPEATABLE,
                steps=sum(undisturbed.fit_steps.values()),
                commits=undisturbed.commits,
                repeatable=False,
                comparison=comparison,
                causes=likely_causes(comparison, repeated.logs, repeatable=False),
                directory=directory,
            )
    story.tell(f"training with {options.kills} interruption(s), seed {options.seed}", "head")
    disturbed = trainer.train("disturbed", plan_kills(options), undisturbed.fit_steps)
    return _judge(options, undisturbed, disturbed, repeatable, compare, directory)


def _judge(
    options: DrillOptions,
    undisturbed: TrainingRun,
    disturbed: TrainingRun,
    repeatable: bool | None,
    compare: _Compare,
    directory: str,
) -> Outcome:
    outcome = Outcome(
        options=options,
        verdict=Verdict.NOT_DISTURBED,
        steps=sum(undisturbed.fit_steps.values()),
        commits=undisturbed.commits,
        sent=disturbed.sent,
        unsent=disturbed.unsent,
        repeatable=repeatable,
        directory=directory,
    )
    if not any(sent.struck for sent in disturbed.sent):
        return outcome
    comparison = compare(undisturbed, disturbed, "comparison")
    if comparison.identical:
        return dataclasses.replace(outcome, verdict=Verdict.IDENTICAL, comparison=comparison)
    causes = likely_causes(comparison, disturbed.logs, repeatable=repeatable)
    return dataclasses.replace(outcome, verdict=Verdict.DIFFERENT, comparison=comparison, causes=causes)
