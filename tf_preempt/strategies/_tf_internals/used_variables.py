"""The variables that a traced function uses, and the lines of the program that use them."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterator
from typing import Any

import tensorflow as tf

from tf_preempt.strategies._tf_internals.access import attribute
from tf_preempt.strategies._tf_internals.random_ops import OpPlace, place_of

# By type of an op that calls functions: its attributes that name them, and its first input that is theirs.
_CALLS = {
    "PartitionedCall": (("f",), 0),
    "StatefulPartitionedCall": (("f",), 0),
    "If": (("then_branch", "else_branch"), 1),
    "StatelessIf": (("then_branch", "else_branch"), 1),
    "Case": (("branches",), 1),
    "While": (("body", "cond"), 0),
    "StatelessWhile": (("body", "cond"), 0),
}
_LOOK_ONLY = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp")


@dataclasses.dataclass(frozen=True, kw_only=True)
class UsedVariable:
    """A variable that a traced function uses.

    Args:
        variable: a ``tf.Variable``; of a distributed one, the component of one replica.
        is_changed: by the function.
        place: where it is changed, else where it is read; None if that is not known.
    """

    variable: Any
    is_changed: bool
    place: OpPlace | None


def is_traced(fn: Any) -> bool:
    """Says whether `fn` was made by ``tf.function`` and has been called.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    return isinstance(fn, tf.types.experimental.PolymorphicFunction) and bool(_traces(fn))


def used_variables(fn: Any, *, leave_out: Container[int] = ()) -> list[UsedVariable]:
    """The variables that are around a ``tf.function``, and used in any of its traces, each once.

    Functions that it calls, branches, loops and what ``strategy.run`` gives to replicas are in a trace.  The
    variables that it is given as arguments are not in the list.

    Args:
        fn: made by ``tf.function``.
        leave_out: `id` of the handles of variables that are not looked at.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    found: dict[int, UsedVariable] = {}
    for trace in _traces(fn):
        wanted = [one for one in _variables_of(trace) if id(one.handle) not in leave_out]
        inside = {id(outer): inner for outer, inner in trace.graph.captures} if wanted else {}
        for variable in wanted:
            key = id(variable.handle)
            if key not in found or not found[key].is_changed:
                found[key] = _used(variable, trace.graph, inside.get(key))
    return list(found.values())


def _traces(fn: Any) -> list[Any]:
    return list(attribute(fn, "_list_all_concrete_functions", "Function")())


def _variables_of(trace: Any) -> list[Any]:
    try:
        return list(trace.variables)
    except AssertionError:  # some are gone, and with them the use of this trace
        return []


def _used(variable: Any, graph: Any, handle: Any) -> UsedVariable:
    ops = [] if handle is None else list(_ops_on(graph, handle))
    changing = [op for op in ops if op.type not in _LOOK_ONLY]
    places = [place_of(op) for op in (changing or ops)]
    named = next((place for place in places if place.source), None)
    return UsedVariable(variable=variable, is_changed=bool(changing), place=named)


def _ops_on(graph: Any, handle: Any) -> Iterator[tf.Operation]:
    """The ops that work on the variable with this handle, in a graph and in the functions that it calls."""
    for op in handle.consumers():
        if op.type not in _CALLS:
            yield op
            continue
        names, first = _CALLS[op.type]
        indices = [index - first for index, tensor in enumerate(op.inputs) if tensor is handle]
        for function in _called(graph, op, names):
            for index in indices:
                if index >= 0:
                    yield from _ops_on(function, function.inputs[index])


def _called(graph: Any, op: tf.Operation, names: tuple[str, ...]) -> Iterator[Any]:
    """The graphs of the functions that an op calls."""
    functions = attribute(graph, "_functions", "FuncGraph")
    for name in names:
        value = op.get_attr(name)
        for called in value if isinstance(value, list) else [value]:
            if called.name in functions:
                yield attribute(functions[called.name], "graph", "AtomicFunction")
