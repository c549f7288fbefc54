"""How examples are put into batches and in which order; checked when a data set is made."""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

import numpy as np

from tf_preempt.errors import ConfigError

# Seeds and epochs are the two halves of one key, each a tf.int64.
_LARGEST_SEED = 2**63 - 1
# Of a data set without a seed, in numbers.
_NO_SEED = -1
# Options that are true or false, each with the cure for another value.
_BOOLS = {
    "shuffle": "there is no buffer whose size could be given: the order is one of all examples",
    "drop_remainder": "drop_remainder=True leaves out a last batch that is not full",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """Which examples make which batch.

    Args:
        made_by: name of the public function that was called, for messages.
        examples: how many there are.
        batch_size: examples in a global batch, of all replicas together.
        shuffle: each epoch has an order of its own; else the examples come in the order of their indices.
        seed: of the orders; not needed without `shuffle`.
        drop_remainder: leave out a last batch that is not full.

    Raises:
        ConfigError: a value is of the wrong type or out of range; there are no examples; `shuffle` without a
            seed; or nothing is left once the remainder is dropped.
    """

    made_by: str
    examples: int
    batch_size: int
    shuffle: bool
    seed: int | None
    drop_remainder: bool

    def __post_init__(self) -> None:
        check_not_empty(self.made_by, self.examples)
        object.__setattr__(self, "batch_size", self._integer("batch_size", self.batch_size, at_least=1))
        for name, hint in _BOOLS.items():
            self._check_bool(name, getattr(self, name), hint)
        self._check_seed()
        if self.batches < 1:
            raise ConfigError(
                f"batch_size={self.batch_size}, drop_remainder=True of {self.made_by} leave nothing of "
                f"{self.examples} example(s): expected at least one full batch.",
                hint="take a smaller batch_size, or drop_remainder=False",
            )

    def _integer(self, name: str, value: Any, *, at_least: int, at_most: int | None = None) -> int:
        try:
            number = operator.index(value)
        except TypeError:
            number = at_least - 1
        if isinstance(value, (bool, np.bool_)) or number < at_least or (at_most and number > at_most):
            upper = "or more" if at_most is None else f"to {at_most}"
            raise ConfigError(
                f"{name}={value!r} of {self.made_by}: expected an integer, {at_least} {upper}.",
                hint="for example batch_size=32, seed=1",
            )
        return number

    def _check_bool(self, name: str, value: Any, hint: str) -> None:
        if not isinstance(value, (bool, np.bool_)):
            raise ConfigError(
                f"{name}={value!r} of {self.made_by}: expected True or False.",
                hint=hint,
            )

    def _check_seed(self) -> None:
        if self.seed is not None:
            seed = self._integer("seed", self.seed, at_least=0, at_most=_LARGEST_SEED)
            object.__setattr__(self, "seed", seed)
        elif self.shuffle:
            raise ConfigError(
                f"{self.made_by} was given shuffle=True and no seed: a resumed run, or another worker, would "
                "have another order. Expected an integer, the same on all workers.",
                hint="seed=1, or shuffle=False",
            )

    @property
    def batches(self) -> int:
        """Batches of an epoch."""
        full, rest = divmod(self.examples, self.batch_size)
        return full + (1 if rest and not self.drop_remainder else 0)

    @property
    def static_rows(self) -> int | None:
        """Rows of each batch; None if the last one has fewer."""
        return self.batch_size if self.drop_remainder or self.examples % self.batch_size == 0 else None

    def as_numbers(self) -> list[int]:
        """What the order depends on, to be compared with another run's: 4 integers."""
        seed = _NO_SEED if self.seed is None or not self.shuffle else self.seed
        return [self.examples, self.batch_size, seed, int(self.drop_remainder)]

    def __str__(self) -> str:
        return describe(self.made_by, self.as_numbers())


def check_not_empty(made_by: str, examples: int) -> None:
    """Refuses to make a data set of nothing.

    Args:
        made_by: name of the public function that was called.
        examples: how many there are.

    Raises:
        ConfigError: there are none.
    """
    if examples < 1:
        raise ConfigError(
            f"{made_by} was given no examples (length {examples}): expected one or more.",
            hint="see that the files or the split that it reads are there",
        )


def describe(made_by: str, numbers: list[int]) -> str:
    """What `BatchOptions.as_numbers` says, for people.

    Args:
        made_by: name of the function that made the data set.
        numbers: as `BatchOptions.as_numbers` gives them.
    """
    examples, batch_size, seed, drop_remainder = numbers
    order = "shuffle=False" if seed == _NO_SEED else f"seed={seed}"
    rest = ", drop_remainder=True" if drop_remainder else ""
    return f"{made_by}({examples} examples, batch_size={batch_size}, {order}{rest})"
