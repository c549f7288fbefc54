"""What simulated workers share: the store, the clock, and the collectives."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Generator
from typing import TypeAlias

from tf_preempt.checkpointing.key_value import KeyExistsError
from tf_preempt.errors import CoordinationError, WorkerLostError

# A thread yields what it waits for (None: nothing).
Thread: TypeAlias = Generator["Callable[[], bool] | None", None, None]


@dataclasses.dataclass(frozen=True)
class Delivery:
    """What becomes of a write.

    Args:
        after_s: when it arrives, in seconds; infinity: it is lost.
        is_answered: whether the writer hears that it has arrived.
    """

    after_s: float = 0.0
    is_answered: bool = True


AT_ONCE = Delivery()


class World:
    """Keys, time in seconds, who has entered which step, and what checks want to know."""

    def __init__(self) -> None:
        self.keys: dict[str, str] = {}
        self.store_is_gone = False
        self.now = 0.0
        self.entered: dict[int, int] = {}
        self.is_broken = False  # a process has gone: collectives that need it fail
        self.messages: collections.Counter[str] = collections.Counter()  # operations of the store, by kind
        # Where the first worker was that was held in a round, by the round's number.
        self.first_hold: dict[int, int] = {}
        # The boundaries at which the workers saved their parts, by the number of the committed checkpoint.
        self.commits: dict[int, list[int]] = {}

    def write(self, key: str, value: str) -> None:
        if self.store_is_gone:
            raise WorkerLostError(f"no store for {key}")
        if key in self.keys:
            raise KeyExistsError(key)
        self.keys[key] = value

    def read(self, key: str) -> str | None:
        if self.store_is_gone:
            raise WorkerLostError(f"no store for {key}")
        return self.keys.get(key)

    def deliver(self, key: str, value: str, after_s: float, answer: list[CoordinationError | None]) -> Thread:
        """A write on its way; `answer` is given its error, or None."""
        at = self.now + after_s
        yield lambda: self.now >= at
        try:
            self.write(key, value)
        except CoordinationError as error:
            answer.append(error)
        else:
            answer.append(None)


class Indifferent:
    """Waits for nothing before it does what it makes no difference when it is done.

    Nobody else writes that, and who reads it waits for it.
    """

    def __call__(self) -> bool:
        return True


class KeyWait:
    """Waits for a key; may always come to nothing.

    Args:
        world: with the store.
        key: which.
        until: when the wait ends, in the world's time.
    """

    def __init__(self, world: World, key: str, until: float) -> None:
        self.key = key
        self._world = world
        self._until = until

    @property
    def is_for_claim(self) -> bool:
        """Says whether nobody knows if the key will be written."""
        return self.key.endswith("/claim")

    @property
    def is_there(self) -> bool:
        return self.key in self._world.keys

    def __call__(self) -> bool:
        world = self._world
        return self.key in world.keys or world.now >= self._until or world.store_is_gone
