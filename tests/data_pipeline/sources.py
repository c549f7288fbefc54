"""Sources that count what is read."""

from __future__ import annotations

from typing import Any

import numpy as np


class Counted:
    """Items whose number is their index; knows which were read.

    Args:
        examples: how many it has.
    """

    def __init__(self, examples: int) -> None:
        self._examples = examples
        self.read: list[int] = []

    def __len__(self) -> int:
        return self._examples

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self._examples:
            raise IndexError(index)
        self.read.append(index)
        return self.item(index)

    def item(self, index: int) -> Any:
        return np.int64(index)


class Pairs(Counted):
    """A dict of an array and a text, and a number of Python."""

    def item(self, index: int) -> Any:
        return {"image": np.full((2, 2), index, "float32"), "name": f"n{index}"}, index


class Batched(Counted):
    """Reads a batch in one call."""

    def __init__(self, examples: int) -> None:
        super().__init__(examples)
        self.batches: list[list[int]] = []

    def __getitems__(self, indices: list[int]) -> list[Any]:
        self.batches.append(indices)
        return [self.item(index) for index in indices]
