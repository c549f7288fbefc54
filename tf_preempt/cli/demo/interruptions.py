"""When to disturb the training, and how: chosen from the seed, before it begins.

Three interruptions, one of each kind, in the order of their places: SIGTERM to the last worker in the middle
of an epoch, SIGTERM to the chief during a validation, SIGKILL to the last worker in the middle of an epoch.
"""

from __future__ import annotations

import dataclasses
import random
import signal

from tf_preempt.cli.demo.progress import TRAIN, VALIDATE, Position
from tf_preempt.errors import ConfigError

__all__ = ["Interruption", "is_due", "plan_interruptions"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Interruption:
    """A signal to a worker.

    Args:
        signal: which.
        worker: to whom.
        position: sent as soon as this batch is done, or a later one of the same phase: a signal that would
            come too late for this epoch's validation is meant for the next one's.
    """

    signal: signal.Signals
    worker: int
    position: Position

    @property
    def gives_notice(self) -> bool:
        """Says whether the worker can still save: then no step may be repeated."""
        return self.signal != signal.SIGKILL


def plan_interruptions(
    *, seed: int, workers: int, epochs: int, train_steps: int, validation_steps: int
) -> tuple[Interruption, ...]:
    """Chooses the three points.

    A signal takes effect some steps after the one that it is sent at, so no point lies near the end of its
    phase.  The SIGKILL comes in the second third of an epoch, so that there can be a checkpoint before it.
    And where there are several epochs, the last one's validation is left alone: whoever misses a validation
    needs another one.

    Args:
        seed: the same seed gives the same points.
        workers: of the cluster.
        epochs: of the training.
        train_steps: in an epoch, 12 or more.
        validation_steps: in a validation, 4 or more.

    Returns:
        The interruptions in the order of their places.

    Raises:
        ConfigError: there is not enough room for three points.
    """
    for name, value, least in (
        ("workers", workers, 1),
        ("epochs", epochs, 1),
        ("train_steps", train_steps, 12),
        ("validation_steps", validation_steps, 4),
    ):
        if value < least:
            raise ConfigError(
                f"{name}={value!r} (an argument of plan_interruptions) must be {least} or more."
            )
    rng = random.Random(seed)
    last = workers - 1
    third = train_steps // 3
    term = Position(rng.randrange(epochs), TRAIN, rng.randrange(1, third - 1))
    kill = Position(rng.randrange(epochs), TRAIN, rng.randrange(third + 1, 2 * third))
    validation = Position(rng.randrange(max(1, epochs - 1)), VALIDATE, rng.randrange(validation_steps // 4))
    planned = [
        Interruption(signal=signal.SIGTERM, worker=last, position=term),
        Interruption(signal=signal.SIGTERM, worker=0, position=validation),
        Interruption(signal=signal.SIGKILL, worker=last, position=kill),
    ]
    return tuple(sorted(planned, key=lambda one: one.position))


def is_due(interruption: Interruption, done: Position) -> bool:
    """Says whether the signal is to be sent now.

    Args:
        interruption: the next one.
        done: the batch that has just been finished.
    """
    planned = interruption.position
    return done.phase == planned.phase and done >= planned
