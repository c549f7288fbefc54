"""State that the functions of a data set keep outside of its iterators: in variables, or in their ops.

A random layer of Keras in ``map`` counts in its seed generator's variable, ``tf.random.Generator`` in its
own; ``tf.random.uniform`` counts in its op.
"""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

import tensorflow as tf

from tf_preempt.strategies._tf_internals.access import attribute
from tf_preempt.strategies._tf_internals.datasets import dataset_function_ops, walk_dataset
from tf_preempt.strategies._tf_internals.functions import ops_in

_LARGEST_BYTES = 2**20

# Stateful ops whose state is a variable's, which only call others, or which have none that matters.
_VARIABLES = ("ReadVariableOp", "AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")
_GENERATORS = ("RngReadAndSkip", "RngSkip", "StatefulUniform", "StatefulUniformInt", "StatefulUniformFullInt")
_CHANGES = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp", *_GENERATORS)
_CALLS = ("StatefulPartitionedCall", "If", "While", "Case")
_LOOK = ("Assert", "PrintV2", "VarIsInitializedOp", "LookupTableFindV2", "LookupTableSizeV2")
_SOURCES = ("RangeDataset", "TensorDataset", "TensorSliceDataset", "TFRecordDatasetV2", "TextLineDataset")
_ACCOUNTED_FOR = frozenset([*_VARIABLES, *_GENERATORS, *_CALLS, *_LOOK, *_SOURCES])


class CapturedVariable:
    """A variable that a data set's functions use, by its handle.

    Args:
        handle: the resource, which lives as long as this object.
        dtype: of the variable.
        shape: of the variable; fully defined.
    """

    def __init__(self, handle: tf.Tensor, dtype: tf.DType, shape: tf.TensorShape) -> None:
        self.handle, self.dtype, self.shape = handle, dtype, shape

    @property
    def bytes(self) -> int:
        """Size of the value."""
        return int(self.shape.num_elements()) * int(self.dtype.size)

    def read(self) -> tf.Tensor:
        """The value now."""
        return tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=self.dtype)

    def assign(self, value: tf.Tensor) -> None:
        """Sets the value, of the same dtype and shape."""
        tf.raw_ops.AssignVariableOp(resource=self.handle, value=value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutsideState:
    """What a data set's functions keep outside of iterators.

    Args:
        variables: that they use, each once.
        others: stateful ops whose state is in no variable: random ops, Python functions.
    """

    variables: tuple[CapturedVariable, ...]
    others: tuple[Any, ...]

    @property
    def is_in_variables(self) -> bool:
        """Says whether the variables, all of them small, are the whole of it."""
        return not self.others and all(one.bytes <= _LARGEST_BYTES for one in self.variables)


_known: weakref.WeakKeyDictionary[Any, OutsideState] = weakref.WeakKeyDictionary()


def outside_state(dataset: tf.data.Dataset) -> OutsideState:
    """What the functions of a data set, and of all that it reads from, keep outside of iterators.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    if dataset not in _known:
        variables: dict[int, CapturedVariable] = {}
        others = []
        for node in walk_dataset(dataset):
            for wrapper in attribute(node, "_functions", "Dataset")():
                function = attribute(wrapper, "function", "StructuredFunctionWrapper")
                variables |= _captured_variables(function)
                graph = attribute(function, "graph", "ConcreteFunction")
                others += [
                    op for op in ops_in(graph) if op.op_def.is_stateful and op.type not in _ACCOUNTED_FOR
                ]
        _known[dataset] = OutsideState(variables=tuple(variables.values()), others=tuple(others))
    return _known[dataset]


def changes_variables(dataset: tf.data.Dataset) -> bool:
    """Says whether a data set, or what it reads from, counts in variables: so do random layers of Keras.

    Those that only read some (``Normalization``, a table) do not.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    return any(op.type in _CHANGES for node in walk_dataset(dataset) for op in dataset_function_ops(node))


def _captured_variables(function: Any) -> dict[int, CapturedVariable]:
    found = {}
    for handle in attribute(function, "captured_inputs", "ConcreteFunction"):
        if handle.dtype != tf.resource:
            continue
        data = getattr(handle, "_handle_data", None)
        if data is not None and data.is_set and len(data.shape_and_type) == 1:
            shape_and_type = data.shape_and_type[0]
            shape = tf.TensorShape(shape_and_type.shape)
            if shape.is_fully_defined():
                found[id(handle)] = CapturedVariable(handle, tf.as_dtype(shape_and_type.dtype), shape)
    return found
