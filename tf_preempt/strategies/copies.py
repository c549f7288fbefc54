"""Batches with memory of their own, where a data set would hand out the arrays of the program.

A ``tf.numpy_function``, and with it ``Dataset.from_generator`` and Keras's ``PyDataset``, makes tensors of
the NumPy arrays that the program returns, without a copy where their memory is aligned to 64 bytes.
TensorFlow takes such a tensor for its own: an op that is the last to read it may put its result there, and
that result is then in the program's array.  Under a strategy, targets turn into errors of predictions, and
the next epoch is trained on them.  One copy per batch, before it is divided, keeps the program's arrays as
they are.

``from_tensor_slices`` and ``from_tensors`` copy arrays when the data set is made, ``tf.py_function`` when it
returns, and ``batch`` copies what it puts together: none of these needs another copy.

References:
    tensorflow/python/lib/core/py_func.cc: "NumpyTensorBuffer" (TensorFlow 2.21, seen 2026-11).
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_preempt.data.epochs import counter_of
from tf_preempt.strategies import _tf_internals

_SHARING_OPS = ("PyFunc", "PyFuncStateless")

# Their values are handles, which there is nothing to copy of.
_HANDLES = (tf.resource, tf.variant)

# What the op answers that looks for the last batch() in a data set, if anything behind that may make other
# tensors.
_NOT_BATCHED_LAST = -1


def unshared(dataset: Any) -> Any:
    """The same data set; its elements are copies if they may lie in NumPy arrays of the program.

    Positions can be saved as before, and sizes of batches stay known.

    Args:
        dataset: any; what is no ``tf.data.Dataset`` is given back, and so is one that is made in a graph,
            where nothing can be asked about it.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    if not isinstance(dataset, tf.data.Dataset) or not tf.executing_eagerly():
        return dataset
    if not shares_arrays(dataset):
        return dataset
    structure = dataset.element_spec

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def copied(*element: Any) -> Any:
        return tf.nest.pack_sequence_as(structure, [_copy(leaf) for leaf in tf.nest.flatten(element)])

    return dataset.map(copied)


def shares_arrays(dataset: tf.data.Dataset) -> bool:
    """Says whether elements may lie in the memory of NumPy arrays that the program keeps; asked eagerly.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    calls_numpy = any(
        op.type in _SHARING_OPS
        for one in _tf_internals.walk_dataset(dataset)
        if counter_of(one) is None  # its arrays are new, and nobody keeps them
        for op in _tf_internals.dataset_function_ops(one)
    )
    return calls_numpy and not _is_batched_last(dataset)


def _is_batched_last(dataset: tf.data.Dataset) -> bool:
    found = tf.raw_ops.ComputeBatchSize(input_dataset=tf.data.experimental.to_variant(dataset))
    return int(found) != _NOT_BATCHED_LAST


def _copy(value: Any) -> Any:
    """A copy of a tensor, or of each that a ragged or sparse one consists of; None stays None."""
    if value is None:
        return None
    return tf.nest.map_structure(_copy_tensor, value, expand_composites=True)


def _copy_tensor(tensor: tf.Tensor) -> tf.Tensor:
    if tensor.dtype in _HANDLES:
        return tensor
    # A concatenation always gets memory of its own.  tf.identity and the op Copy share that of their input,
    # Snapshot takes it over where it can, and DeepCopy is stateful: no position could be saved any more.
    row = tf.reshape(tensor, [-1])
    copied = tf.reshape(tf.concat([row, row[:0]], axis=0), tf.shape(tensor))
    copied.set_shape(tensor.shape)
    return copied
