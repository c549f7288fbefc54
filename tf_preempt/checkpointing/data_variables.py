"""Variables in which the functions of a data set count: the seeds of Keras's random layers in ``map``.

An iterator's state does not have them.  They are saved beside it, and belong to it: what the pipeline has
read ahead was drawn already.  So a save waits until what reads ahead stands still, as it does soon while
nobody takes elements.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

from tf_preempt.errors import CheckpointMismatchError
from tf_preempt.strategies import _tf_internals

_log = logging.getLogger("tf_preempt")
_T = TypeVar("_T")

_PREFIX = "data_variables/"
_TRIES, _PAUSE_S = 100, 0.02


class DataVariables:
    """The variables of a training's data sets; each belongs to the data set that was looked at first."""

    def __init__(self) -> None:
        self._variables: dict[str, list[Any]] = {}
        self._saved: dict[str, Any] = {}
        self._warned = False

    def expect(self, tensors: dict[str, Any]) -> None:
        """Notes what `take` gave when the checkpoint was written; `look_at` restores it."""
        self._saved = {name: tensors[name] for name in tensors if name.startswith(_PREFIX)}

    def look_at(self, iterator: Any, name: str) -> None:
        """Learns the variables of an iterator's data set, and restores those that the checkpoint has.

        Args:
            iterator: as for `take_position`.
            name: of the data set; one that comes again under its name is not restored again.

        Raises:
            UnsupportedStrategyError: the iterator is of a kind that has no position.
            CheckpointMismatchError: the data set has other variables than when the checkpoint was written.
        """
        elsewhere = {
            id(variable.handle)
            for other, variables in self._variables.items()
            if other != name
            for variable in variables
        }
        found = [one for one in _variables_of(iterator) if id(one.handle) not in elsewhere]
        self._variables[name] = found
        saved = self._take_saved(name)
        if saved:
            _check(name, found, saved)
            for variable, value in zip(found, saved, strict=True):
                variable.assign(value)

    def has(self, name: str) -> bool:
        """Says whether a data set that was looked at counts in variables of its own."""
        return bool(self._variables.get(name))

    def handles(self) -> set[int]:
        """The `id` of the handle of each variable."""
        return {id(one.handle) for variables in self._variables.values() for one in variables}

    def take(self) -> dict[str, Any]:
        """The values by name; of data sets that nobody has looked at yet, those of the checkpoint."""
        return self._saved | {
            f"{_PREFIX}{name}/{index}": variable.read()
            for name, variables in self._variables.items()
            for index, variable in enumerate(variables)
        }

    def take_with(self, positions: Callable[[], _T]) -> tuple[_T, dict[str, Any]]:
        """What `positions` gives, and the values that belong to it.

        Args:
            positions: takes positions of iterators; called again if the pipeline went on in between.
        """
        pause = threading.Event()
        for _ in range(_TRIES):
            before, found = self.take(), positions()
            if _same(before, self.take()):
                return found, before
            pause.wait(_PAUSE_S)
        if not self._warned:
            self._warned = True
            _log.warning(
                "The data pipeline goes on drawing random numbers while nobody takes elements from it: their "
                "place in a checkpoint can be off by what it reads ahead, and a resumed run differ.\n"
                "HINT: tf.config.experimental.enable_op_determinism(), or a prefetch of fixed size"
            )
        return found, self.take()

    def _take_saved(self, name: str) -> list[Any]:
        prefix = f"{_PREFIX}{name}/"
        mine = {key: value for key, value in self._saved.items() if key.startswith(prefix)}
        self._saved = {key: value for key, value in self._saved.items() if key not in mine}
        return [mine[f"{prefix}{index}"] for index in range(len(mine))]


def _variables_of(iterator: Any) -> list[Any]:
    found: dict[int, Any] = {}
    for owned in _tf_internals.owned_iterators(iterator):
        state = _tf_internals.outside_state_of(owned)
        if state is not None and state.is_in_variables:
            found |= {id(one.handle): one for one in state.variables}
    return list(found.values())


def _check(name: str, variables: list[Any], saved: list[Any]) -> None:
    shapes = [(one.dtype.name, one.shape.as_list()) for one in variables]
    before = [(value.dtype.name, value.shape.as_list()) for value in saved]
    if shapes != before:
        raise CheckpointMismatchError(
            f"The functions of the data set {name!r} used variables {before} (dtype, shape) when the "
            f"checkpoint was written, and use {shapes} now.",
            hint="make the data set as before, or use another directory",
        )


def _same(some: dict[str, Any], others: dict[str, Any]) -> bool:
    return all(bool(tf.reduce_all(value == others[name])) for name, value in some.items())
