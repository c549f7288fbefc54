"""Data sets from NumPy arrays that leave no copy of the arrays in a graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tf_preempt import errors
from tf_preempt.strategies import _tf_internals

_HINT = "give NumPy arrays with the same number of rows, alone or in tuples, dicts and named tuples."


@_tf_internals.let_errors_through
def numpy_dataset(numpy_input: Any) -> tf.data.Dataset:
    """A data set of the rows of arrays, cut along their first axis.

    The arrays are copied, once, to tensors on this machine's CPU: changing an array afterwards changes
    nothing, and where a ``tf.function`` calls this, its graph captures the tensors and holds no constant.

    Args:
        numpy_input: arrays of one length, of rank 1 or more, of any dtype that a tensor can have; alone or in
            nested tuples, dicts and named tuples.  A list of arrays of one shape is stacked into one array,
            as ``tf.data`` does it.

    Raises:
        ConfigError: something in `numpy_input` is no array, has no rows, cannot be a tensor or be stacked;
            lengths differ; or there is no array at all.
    """
    structure = _stack_lists(numpy_input, "numpy_input")
    arrays = dict(_leaves(structure, "numpy_input"))
    _check(arrays)
    # Outside of the function that is being traced, if one is: a constant in there would hold all rows.
    with tf.init_scope(), tf.device("/device:CPU:0"):
        tensors = [_tensor(path, array) for path, array in arrays.items()]
    return tf.data.Dataset.from_tensor_slices(_packed(structure, iter(tensors)))


def _is_named_tuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def _stack_lists(value: Any, path: str) -> Any:
    """The structure with each list of arrays in one array."""
    if isinstance(value, Mapping):
        return {key: _stack_lists(one, f"{path}[{key!r}]") for key, one in value.items()}
    if isinstance(value, tuple):
        stacked = [_stack_lists(one, f"{path}[{index}]") for index, one in enumerate(value)]
        return type(value)(*stacked) if _is_named_tuple(value) else tuple(stacked)
    return _stacked(value, path) if isinstance(value, list) else value


def _stacked(arrays: list[Any], path: str) -> np.ndarray:
    if not arrays:
        raise errors.ConfigError(f"the list {path} is empty: expected arrays to stack.", hint=_HINT)
    for index, one in enumerate(arrays):
        _check_array(f"{path}[{index}]", one)
    shapes = [one.shape for one in arrays]
    if len(set(shapes)) > 1:
        raise errors.ConfigError(
            f"the arrays in the list {path} have shapes {shapes}: expected one shape, because a list is "
            "stacked into one array.",
            hint="use a tuple for arrays that are to stay separate.",
        )
    return np.stack(arrays)


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key in value:
            yield from _leaves(value[key], f"{path}[{key!r}]")
    elif isinstance(value, tuple):
        for index, one in enumerate(value):
            yield from _leaves(one, f"{path}[{index}]")
    else:
        yield path, value


def _packed(value: Any, tensors: Iterator[tf.Tensor]) -> Any:
    """The structure with tensors in place of its arrays, in the order of `_leaves`."""
    if isinstance(value, Mapping):
        return {key: _packed(one, tensors) for key, one in value.items()}
    if isinstance(value, tuple):
        packed = [_packed(one, tensors) for one in value]
        return type(value)(*packed) if _is_named_tuple(value) else tuple(packed)
    return next(tensors)


def _check(arrays: Mapping[str, Any]) -> None:
    if not arrays:
        raise errors.ConfigError("numpy_input holds no array: expected at least one.", hint=_HINT)
    for path, array in arrays.items():
        _check_array(path, array)
        if array.ndim == 0:
            raise errors.ConfigError(
                f"{path} is an array without axes ({array!r}): expected rows along a first axis.", hint=_HINT
            )
    lengths = {path: len(array) for path, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise errors.ConfigError(
            f"the arrays have different numbers of rows: {lengths}; expected one number.", hint=_HINT
        )


def _check_array(path: str, value: Any) -> None:
    if not isinstance(value, np.ndarray):
        raise errors.ConfigError(
            f"{path} is a {type(value).__name__} ({value!r:.80}): expected a NumPy array.",
            hint="convert it with numpy.asarray; a tf.Tensor needs tf.data.Dataset.from_tensor_slices only.",
        )


def _tensor(path: str, array: np.ndarray) -> tf.Tensor:
    try:
        return tf.constant(array)
    except (TypeError, ValueError) as error:
        raise errors.ConfigError(
            f"{path}, an array of dtype {array.dtype}, cannot become a tensor: {error}",
            hint="convert it to numbers, bools or strings of one kind with numpy.ndarray.astype.",
        ) from error
