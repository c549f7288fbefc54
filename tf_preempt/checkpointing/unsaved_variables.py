"""Variables that a training step uses and no checkpoint holds: a resumed run begins them anew.

A global ``tf.Variable``, a second optimizer, a metric of the program's own: whatever is not reached from the
model or from the ``tf.train.Checkpoint``.  One that never changes does no harm (a frozen teacher), so values
are compared: with those after the first execution, whenever a checkpoint is made.  What runs eagerly leaves
no trace to look at; there, the second execution of the step is compared with before among all variables of
the process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import logging
import re
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_preempt.checkpointing.fingerprints import fingerprint
from tf_preempt.checkpointing.kept_variables import local_components
from tf_preempt.strategies import _tf_internals
from tf_preempt.strategies._tf_internals import UsedVariable

_log = logging.getLogger("tf_preempt")
_warned: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

_MOST_NAMED = 5
_REPLICA = re.compile(r"(/replica_\d+)?(:\d+)?$")

MOST_FUNCTIONS = 20
"""So many of the functions that a program's steps are made of are looked at."""


@dataclasses.dataclass(kw_only=True)
class _Step:
    """A function that does a step, its traced functions, and how often it was seen."""

    key: Any
    traced: list[Any] = dataclasses.field(default_factory=list)
    executions: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Watched:
    variable: UsedVariable
    fingerprint: int | None

    @classmethod
    def now(cls, variable: UsedVariable) -> _Watched:
        return cls(variable=variable, fingerprint=fingerprint(variable.read()))

    @property
    def has_changed(self) -> bool:
        return fingerprint(self.variable.read()) != self.fingerprint


class UnsavedVariables:
    """Watches the variables of training steps that no checkpoint holds.

    Args:
        kept: gives the variables that a checkpoint holds, in whatever way.
        others: gives the `id` of handles of variables that are kept and known by their handles only.
        hint: how the program can have a variable saved.
    """

    def __init__(
        self,
        kept: Callable[[], Iterable[Any]],
        *,
        others: Callable[[], Iterable[int]],
        hint: str,
    ) -> None:
        self._kept, self._others, self._hint = kept, others, hint
        self._steps: list[_Step] = []
        self._watched: dict[int, _Watched] = {}
        self._seen: dict[int, Any] = {}

    @contextlib.contextmanager
    def execution(
        self, key: Any, find: Callable[[], Iterable[Any]], arguments: Any = (), *, partly_eager: bool = False
    ) -> Iterator[None]:
        """Around each execution of a step; looks at the first one, and where it left no trace, the second.

        Args:
            key: of the function, the same for each execution.
            find: gives the function and what it calls.
            arguments: what it is called with.
            partly_eager: what is traced need not be all of it.
        """
        step = self._step(key)
        if step is None or step.executions > 1:
            yield
            return
        is_eager = step.executions == 1 and (partly_eager or not step.traced)
        before = self._of_process() if is_eager else {}
        yield
        step.executions += 1
        if step.executions == 1:
            self._look(step, find(), arguments)
        for handle, one in before.items():
            if one.has_changed:
                self._watched.setdefault(handle, one)

    def knows(self, key: Any) -> bool:
        """Says whether `execution` has no more to look for in the function of this key."""
        return any(step.executions > 1 for step in self._steps if step.key is key or step.key == key)

    def look_at(self, functions: Iterable[Any]) -> None:
        """Looks at functions that were executed elsewhere, in place of `execution`.

        Args:
            functions: each ``tf.function`` of a loop that was called.
        """
        step = _Step(key=None, executions=2)
        self._look(step, functions)
        if step.traced:
            self._steps.append(step)

    def warn_of_changes(self) -> None:
        """Warns of the variables that have changed, each once; called when a checkpoint is made.

        Reads each watched variable: of what is larger than 1 MiB, 1 MiB.
        """
        for step in self._steps:
            self._watch(step.traced)
        changed = [handle for handle, one in self._watched.items() if one.has_changed]
        if not changed:
            return
        kept = self._handles()
        gone = {handle: self._watched.pop(handle) for handle in changed}
        new = [one.variable for handle, one in gone.items() if handle not in kept and handle not in _warned]
        for variable in new:
            _warned[id(variable.handle)] = variable.handle
        if new:
            self._warn(_descriptions(new))

    def _warn(self, texts: Sequence[str]) -> None:
        more = f" and {len(texts) - _MOST_NAMED} more" if len(texts) > _MOST_NAMED else ""
        _log.warning(
            "The program uses variables that change and that no checkpoint holds (%s): a resumed run "
            "begins with the values that the program first gives them, and differs from an undisturbed "
            "one.\nHINT: %s. A program that sets them before each use, as by the number of the step, can "
            "ignore this.",
            "; ".join(texts[:_MOST_NAMED]) + more,
            self._hint,
        )

    def _step(self, key: Any) -> _Step | None:
        for step in self._steps:
            if step.key is key or step.key == key:
                return step
        if len(self._steps) >= MOST_FUNCTIONS:
            return None
        self._steps.append(_Step(key=key))
        return self._steps[-1]

    def _look(self, step: _Step, functions: Iterable[Any], arguments: Any = ()) -> None:
        found = list(functions)
        step.traced = [one for one in found if _tf_internals.is_traced(one)]
        self._watch(step.traced, [*found, *tf.nest.flatten(arguments)])

    def _watch(self, traced: Iterable[Any], values: Iterable[Any] = ()) -> None:
        """Begins to watch the variables in traces, and those among values that the step is given or uses."""
        used = [one for fn in traced for one in _tf_internals.used_variables(fn, leave_out=self._seen)]
        given = [
            UsedVariable.of(part) for part in local_components(values) if id(part.handle) not in self._seen
        ]
        if not used and not given:
            return
        kept = self._handles()
        for one in [*used, *given]:
            handle = id(one.handle)
            if handle not in self._seen:
                self._seen[handle] = one.handle
                if handle not in kept:
                    self._watched[handle] = _Watched.now(one)

    def _of_process(self) -> dict[int, _Watched]:
        """All variables of the process that no checkpoint holds."""
        kept = self._handles()
        parts = local_components(_live_variables())
        return {
            id(part.handle): _Watched.now(UsedVariable.of(part))
            for part in parts
            if id(part.handle) not in kept
        }

    def _handles(self) -> Container[int]:
        return {id(part.handle) for part in local_components(self._kept())} | set(self._others())


def _live_variables() -> list[Any]:
    """The variables of the process, those of graphs excepted."""
    # By type: proxies of other objects answer with the class of those.
    found = [value for value in gc.get_objects() if issubclass(type(value), tf.Variable)]
    return [one for one in found if not isinstance(one, tf.distribute.DistributedValues) and _is_eager(one)]


def _is_eager(variable: Any) -> bool:
    try:
        return not tf.is_symbolic_tensor(variable.handle)
    except (AttributeError, RuntimeError, ValueError):  # it is of TensorFlow 1, or not made yet
        return False


def _descriptions(variables: Iterable[UsedVariable]) -> list[str]:
    """What to tell of each; components of one distributed variable are told as one."""
    found: dict[Any, str] = {}
    for one in variables:
        name = _REPLICA.sub("", one.name)
        text = f"{name}, {one.dtype.name} of shape {one.shape}"
        if one.place is not None:
            what = "changed" if one.is_changed else "used"
            scope = f" in {one.place.scope}" if one.place.scope else ""
            text = f"{text}, {what}{scope} at {one.place.source}"
        found.setdefault((name, one.dtype, str(one.shape), one.place and one.place.source), text)
    return list(found.values())
