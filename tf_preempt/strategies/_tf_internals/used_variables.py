"""The variables that a traced function uses, and the lines of the program that use them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Container, Iterator
from typing import Any

import tensorflow as tf

from tf_preempt.strategies._tf_internals.access import attribute
from tf_preempt.strategies._tf_internals.functions import is_tf_function
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
_NAME = re.compile(r'ResourceHandle\(name="(?P<name>[^"]+?)(/\d+)?"')  # in the representation of a resource
_LOOK_ONLY = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp")


@dataclasses.dataclass(frozen=True, kw_only=True)
class UsedVariable:
    """A variable that a traced function uses; of a distributed one, the component of one replica.

    Args:
        handle: its resource, which lives as long as this object.
        name: of the variable.
        dtype: of the variable.
        shape: of the variable, as far as it is fixed.
        is_changed: by the function.
        place: where it is changed, else where it is read; None if that is not known.
    """

    handle: tf.Tensor
    name: str
    dtype: tf.DType
    shape: tf.TensorShape
    is_changed: bool = False
    place: OpPlace | None = None

    @classmethod
    def of(cls, variable: Any) -> UsedVariable:
        """What is known of a ``tf.Variable`` that is not distributed, without a function that uses it."""
        return cls(handle=variable.handle, name=variable.name, dtype=variable.dtype, shape=variable.shape)

    def read(self) -> tf.Tensor | None:
        """The value now; None if it has none yet."""
        try:
            return tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=self.dtype)
        except (tf.errors.FailedPreconditionError, tf.errors.NotFoundError):
            return None


def is_traced(fn: Any) -> bool:
    """Says whether `fn` was made by ``tf.function`` and has been called.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    return is_tf_function(fn) and bool(_traces(fn))


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
        names = _names_in(trace)
        for handle, inside in trace.graph.captures:
            key = id(handle)
            if key in leave_out or (key in found and found[key].is_changed) or tf.is_symbolic_tensor(handle):
                continue
            data = _of_variable(handle)
            if data is not None:
                found[key] = _used(handle, names.get(key), data, trace.graph, inside)
    return list(found.values())


def _traces(fn: Any) -> list[Any]:
    return list(attribute(fn, "_list_all_concrete_functions", "Function")())


def _names_in(trace: Any) -> dict[int, str]:
    """The names of variables by the `id` of their handles; TensorFlow does not list all that a trace uses."""
    try:
        return {id(variable.handle): variable.name for variable in trace.variables}
    except AssertionError:  # some of them are gone, and with them the use of this trace
        return {}


def _of_variable(handle: tf.Tensor) -> Any:
    """Shape and dtype, if this is the resource of a variable."""
    if handle.dtype != tf.resource:
        return None
    data = getattr(handle, "_handle_data", None)
    if data is None or not data.is_set or len(data.shape_and_type) != 1:
        return None
    return data.shape_and_type[0]


def _used(handle: tf.Tensor, name: str | None, data: Any, graph: Any, inside: Any) -> UsedVariable:
    ops = list(_ops_on(graph, inside))
    changing = [op for op in ops if op.type not in _LOOK_ONLY]
    places = (place_of(op) for op in (changing or ops))
    named = _NAME.search(repr(handle))
    return UsedVariable(
        handle=handle,
        name=name or (named["name"] if named else "a variable"),
        dtype=tf.as_dtype(data.dtype),
        shape=tf.TensorShape(data.shape),
        is_changed=bool(changing),
        place=next((place for place in places if place.source), None),
    )


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
