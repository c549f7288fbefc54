"""Which signal is sent to whom, and after which step: decided from the seed; computes only."""

from __future__ import annotations

import dataclasses
import random
import signal
from collections.abc import Sequence

from tf_preempt.testing.drill.options import SIGNALS, DrillOptions

__all__ = ["Kill", "aim", "next_possible", "plan_kills"]

# A signal takes effect some steps late; one that is meant for the very end would miss it.
_LAST_PLACE = 0.8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kill:
    """A signal to a worker.

    Args:
        signal: which.
        worker: to whom, from 0.
        share: where between the place at which the program is started again and what is left, 0 to 1.
        step: after which step, if that was asked for; then `share` does not count.
    """

    signal: signal.Signals
    worker: int
    share: float
    step: int | None = None

    @property
    def gives_notice(self) -> bool:
        """Says whether the program can still save."""
        return self.signal != signal.SIGKILL


def plan_kills(options: DrillOptions) -> tuple[Kill, ...]:
    """The signals in the order in which they are to be sent; each kind about equally often."""
    rng = random.Random(options.seed)
    names = [options.signals[i % len(options.signals)] for i in range(options.kills)]
    rng.shuffle(names)
    steps = sorted(options.at_steps) if options.at_steps is not None else [None] * options.kills
    return tuple(
        Kill(
            signal=SIGNALS[name],
            worker=rng.randrange(options.workers or 1),
            share=rng.random(),
            step=step,
        )
        for name, step in zip(names, steps, strict=True)
    )


def next_possible(kills: Sequence[Kill], *, committed: bool) -> int | None:
    """Position of the next signal to send; None: none can be sent now.

    A SIGKILL before the first commit would only start the program again from its beginning, so it lets a
    SIGTERM go first.

    Args:
        kills: those that are left, in their order.
        committed: the program has committed a checkpoint.
    """
    possible = (i for i, kill in enumerate(kills) if committed or kill.gives_notice)
    return next(possible, None)


def aim(kill: Kill, *, begun_at: int, total: int, left: int) -> int:
    """The step after which a signal is due, in a life of the program that has just begun.

    Places are spread over what is left, so that there is room for those that are still to come, however late
    those before have taken effect.

    Args:
        kill: the signal.
        begun_at: steps that were done when this life began.
        total: steps that the whole program takes.
        left: how many signals are left, this one included.
    """
    if kill.step is not None:
        return max(kill.step, begun_at)
    remaining = max(0, total - begun_at)
    place = min(_LAST_PLACE, 2 * kill.share / (left + 1))
    return begun_at + int(place * remaining)
