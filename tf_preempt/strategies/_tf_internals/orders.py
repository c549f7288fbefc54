"""Data sets that order or choose elements by chance."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_preempt.strategies._tf_internals.datasets import dataset_function_ops

# Ops that order a tensor, or build a data set that orders elements, inside a function.
_SHUFFLES_TENSOR = "RandomShuffle"
_SHUFFLES_ELEMENTS = ("ShuffleDataset", "ShuffleAndRepeatDataset", "RandomDataset")


def is_unseeded(dataset: tf.data.Dataset) -> bool:
    """Says whether this very data set orders or chooses elements in a way that differs between processes.

    A shuffle, a random source; a function that shuffles a tensor of indices, as Keras does for arrays, or
    that builds a data set that shuffles; a ``filter`` that decides by chance.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    if has_unseeded_shuffle(dataset):
        return True
    decides = hasattr(dataset, "_predicate")
    return any(_is_unseeded_op(op, decides) for op in dataset_function_ops(dataset))


def has_unseeded_shuffle(dataset: tf.data.Dataset) -> bool:
    """Says whether this very data set is a shuffle or a random source without a seed."""
    return _own_seeds(dataset) == [(0, 0)]


def is_unordered(dataset: tf.data.Dataset) -> bool:
    """Says whether this very data set was told with ``deterministic=False`` to give first what is ready.

    Or a step of a data set that its functions build.  A parallel ``interleave`` does not say: `hides_order`.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    if getattr(dataset, "_deterministic", None) == "false":
        return True
    return any(is_free(op.type, op.node_def.attr) for op in dataset_function_ops(dataset))


def hides_order(dataset: tf.data.Dataset) -> bool:
    """Says whether this very data set works in parallel, and only its graph knows how it was told to."""
    return hasattr(dataset, "_num_parallel_calls") and not hasattr(dataset, "_deterministic")


def is_free(op: str, attributes: Any) -> bool:
    """Says whether an op is a data set that was told with ``deterministic=False`` to give what is ready.

    Args:
        op: its type.
        attributes: by name, as in a ``NodeDef``.
    """
    return "Dataset" in op and "deterministic" in attributes and attributes["deterministic"].s == b"false"


def given_seeds(dataset: tf.data.Dataset) -> list[tuple[int, int]]:
    """The seeds with which this very data set, or ``tf.random.shuffle`` in its functions, orders elements.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    shuffles = [op for op in dataset_function_ops(dataset) if op.type == _SHUFFLES_TENSOR]
    seeds = _own_seeds(dataset) + [(op.get_attr("seed"), op.get_attr("seed2")) for op in shuffles]
    return [one for one in seeds if one != (0, 0)]


def _own_seeds(dataset: tf.data.Dataset) -> list[tuple[int, int]]:
    first, second = getattr(dataset, "_seed", None), getattr(dataset, "_seed2", None)
    if isinstance(first, tf.Tensor) and isinstance(second, tf.Tensor):
        return [(int(first), int(second))]
    return []


def _is_unseeded_op(op: tf.Operation, decides: bool) -> bool:
    if op.type == _SHUFFLES_TENSOR or (decides and {"seed", "seed2"} <= set(op.node_def.attr)):
        return not op.get_attr("seed") and not op.get_attr("seed2")
    if op.type.startswith(_SHUFFLES_ELEMENTS):
        seeds = [_input(op, name) for name in ("seed", "seed2")]
        return all(seed is not None and tf.get_static_value(seed) == 0 for seed in seeds)
    return False


def _input(op: tf.Operation, name: str) -> Any:
    names = [argument.name for argument in op.op_def.input_arg]
    return op.inputs[names.index(name)] if name in names else None
