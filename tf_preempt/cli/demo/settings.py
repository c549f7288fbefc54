"""How big the demo is.

The sizes are chosen so that one to four workers take the same number of steps: twelve files, and batches of
24 and 12, divide evenly among them.
"""

from __future__ import annotations

import dataclasses

from tf_preempt.errors import ConfigError

__all__ = [
    "BATCH",
    "MAX_WORKERS",
    "SHARDS",
    "TEST_IMAGES",
    "TRAIN_IMAGES",
    "TRAIN_STEPS",
    "VALIDATION_BATCH",
    "VALIDATION_STEPS",
    "DemoSettings",
]

TRAIN_IMAGES = 1440
TEST_IMAGES = 357
SHARDS = 12
"""TFRecord files per split; each worker reads files of its own."""
BATCH = 24
"""Images per training step, all workers together."""
VALIDATION_BATCH = 12
"""Likewise, of a validation."""
TRAIN_STEPS = TRAIN_IMAGES // BATCH
"""Steps of one epoch."""
VALIDATION_STEPS = -(-TEST_IMAGES // VALIDATION_BATCH)
"""Batches of one validation, the last one not full."""
MAX_WORKERS = 4

# NumPy takes no larger seed.
_SEEDS = 2**32


@dataclasses.dataclass(frozen=True, kw_only=True)
class DemoSettings:
    """What the user can choose.

    Args:
        workers: processes of the cluster, 1 to 4.
        epochs: of the training.
        seed: for the weights, the order of the images, Dropout, and the points of interruption.
        save_every: training steps between two periodic checkpoints: the most that a SIGKILL can cost, and
            what has not been committed yet.

    Raises:
        ConfigError: a number is out of its range.
    """

    workers: int = 2
    epochs: int = 3
    seed: int = 1
    save_every: int = 20

    def __post_init__(self) -> None:
        _check("workers", self.workers, 1 <= self.workers <= MAX_WORKERS, f"from 1 to {MAX_WORKERS}")
        _check("epochs", self.epochs, self.epochs >= 1, "1 or more")
        _check("seed", self.seed, 0 <= self.seed < _SEEDS, f"from 0 to {_SEEDS - 1}")
        _check("save_every", self.save_every, self.save_every >= 1, "1 or more")


def _check(name: str, value: int, fine: bool, expected: str) -> None:
    if not fine:
        raise ConfigError(f"{name}={value!r} (of the demo) must be {expected}.")
