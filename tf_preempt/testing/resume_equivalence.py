"""A drill as one line of a test: a training function, interrupted, ends as an undisturbed one."""

from __future__ import annotations

import dataclasses
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tf_preempt.errors import ConfigError
from tf_preempt.testing.drill.drill import perform
from tf_preempt.testing.drill.options import DrillOptions
from tf_preempt.testing.drill.outcome import Outcome, Verdict
from tf_preempt.testing.story import Story
from tf_preempt.testing.train_function import write_function

__all__ = ["assert_resume_equivalent"]

_KILLS = 2
_CHILD = "tf_preempt.testing.children.call_train_function"

_logger = logging.getLogger("tf_preempt")


def assert_resume_equivalent(
    train_fn: Callable[[str], object],
    *,
    kills: int | None = None,
    seed: int = 0,
    signals: Sequence[str] = ("TERM", "KILL"),
    at_steps: Sequence[int] | None = None,
    workers: int | None = None,
    trust_deterministic: bool = False,
    directory: str | os.PathLike[str] | None = None,
    stall_timeout_s: float = 300.0,
    environ: Mapping[str, str] = os.environ,
) -> Outcome:
    """Asserts that a training which is interrupted ends with every bit of an undisturbed one.

    Calls `train_fn` in a process of its own for each life of the training, because TensorFlow keeps state in
    a process: undisturbed, undisturbed once more, and with signals, started again until it is complete.
    Then it compares the last checkpoints tensor by tensor.

    Example::

        def train(directory):
            keras.utils.set_random_seed(1)
            tf.config.experimental.enable_op_determinism()
            model, data = build(), load()
            checkpoint = tf_preempt.callbacks.PreemptionCheckpoint(directory, save_every=10)
            model.fit(data, epochs=3, callbacks=[checkpoint])


        def test_training_survives_preemption():
            tf_preempt.testing.assert_resume_equivalent(train, kills=3, seed=7)

    Args:
        train_fn: trains to the end with the checkpoint directory that it is given; a function at the top
            level of a module, or a ``functools.partial`` of one.  Imports of TensorFlow belong into it where
            the test's own process is to stay without.
        kills: how many signals are sent; the same seed gives the same signals.  None: one for each of
            `at_steps`; without these, 2.
        seed: chooses kinds, workers and places of the signals.
        signals: which, of ``"TERM"`` (with notice) and ``"KILL"`` (without; after the first commit only).
        at_steps: after which training steps they are sent, one each, counted over all trainings of
            `train_fn`; a fast training is a few steps further by then.  None: chosen by `seed`.
        workers: as how many workers of one cluster `train_fn` is called; None: in one process without.
        trust_deterministic: leave out the second undisturbed training, which tells a function that never
            gives the same result twice from one that does not survive.
        directory: where checkpoints and logs go, such as pytest's ``tmp_path``.  None: a temporary one,
            which is kept if the assertion fails.
        stall_timeout_s: a training that neither prints nor trains for so many seconds has failed.
        environ: environment variables of the training.

    Returns:
        What was found, with the signals that were sent; its ``directory`` is None where it was removed.

    Raises:
        AssertionError: the trainings did not end alike, or no signal took effect; the message has the report.
        ConfigError: an argument has a value that it cannot have, or `train_fn` cannot be pickled.
        LaunchError: `train_fn` failed, does nothing any more, or has made no checkpoint in its directory.
        OSError: the directory cannot be written to.
    """
    __tracebackhide__ = True  # pytest shows the report, and not these lines
    chosen = _as_tuple("signals", signals, example='["TERM", "KILL"]')
    places = None if at_steps is None else _as_tuple("at_steps", at_steps, example="[12, 40]")
    if kills is None:
        kills = _KILLS if places is None else len(places)
    root = tempfile.mkdtemp(prefix="tf_preempt-drill-") if directory is None else os.path.abspath(directory)
    os.makedirs(root, exist_ok=True)
    function = os.path.join(root, "train_function.json")
    keep = directory is not None
    try:
        options = DrillOptions(
            command=[sys.executable, "-m", _CHILD, function],
            kills=kills,
            seed=seed,
            signals=chosen,
            at_steps=places,
            workers=workers,
            trust_deterministic=trust_deterministic,
            stall_timeout_s=stall_timeout_s,
        )
        write_function(train_fn, function)
        outcome = perform(options, directory=root, story=Story(sys.stdout), environ=environ)
        keep = keep or outcome.verdict is not Verdict.IDENTICAL
    finally:
        if not keep:
            shutil.rmtree(root, ignore_errors=True)
    report = "\n".join(outcome.lines())
    if outcome.verdict is not Verdict.IDENTICAL:
        raise AssertionError(f"{report}\n  checkpoints and logs are in {outcome.directory}")
    if outcome.unsent:
        _logger.warning("assert_resume_equivalent: %s", report)
    return outcome if keep else dataclasses.replace(outcome, directory=None)


def _as_tuple(name: str, value: Any, *, example: str) -> tuple[Any, ...]:
    """The values of an argument that takes several; a text would be taken for its letters.

    Raises:
        ConfigError: it is one value, or none at all.
    """
    __tracebackhide__ = True
    found = () if isinstance(value, (str, bytes)) or not isinstance(value, Iterable) else tuple(value)
    if not found:
        raise ConfigError(
            f"{name}={value!r} of assert_resume_equivalent: expected a list of one or more.",
            hint=f"{name}={example}",
        )
    return found
