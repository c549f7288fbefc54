"""What a training ended with, as a file of NumPy arrays: weights, optimizer variables, History."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tf_preempt.errors import LaunchError

__all__ = ["HISTORY", "OPTIMIZER", "WEIGHTS", "Arrays", "read_result", "final_accuracy", "write_result"]

WEIGHTS = "weights"
"""First part of the names of the model's variables, its seeds included."""
OPTIMIZER = "optimizer"
"""First part of the names of the optimizer's variables."""
HISTORY = "history"
"""First part of the names of the History's lists, one value per epoch."""

Arrays = Mapping[str, "np.ndarray[Any, Any]"]


def write_result(
    path: str,
    *,
    weights: Sequence[Any],
    optimizer: Sequence[Any],
    history: Mapping[str, Sequence[float]],
) -> None:
    """Writes the file in one step.

    Args:
        path: the file.
        weights: variables, each with ``path`` and ``numpy()``.
        optimizer: likewise.
        history: ``History.history``.

    Raises:
        OSError: it cannot be written.
    """
    arrays = {f"{HISTORY}/{name}": np.asarray(values) for name, values in history.items()}
    for group, variables in ((WEIGHTS, weights), (OPTIMIZER, optimizer)):
        for number, variable in enumerate(variables):
            arrays[f"{group}/{number:02d}/{variable.path}"] = np.asarray(variable.numpy())
    temporary = f"{path}.{os.getpid()}.npz"
    np.savez(temporary, **arrays)  # type: ignore[arg-type]  # its keywords are the arrays' names
    os.replace(temporary, path)


def read_result(path: str) -> Arrays:
    """Reads what `write_result` wrote.

    Raises:
        LaunchError: the training program has written no such file.
    """
    try:
        with np.load(path) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except FileNotFoundError as error:
        raise LaunchError(f"the training ended without an error, but without its result {path!r}.") from error


def final_accuracy(result: Arrays) -> float:
    """The share of the held-out images that the model knew at the end, 0 to 1.

    Raises:
        LaunchError: the history does not have it.
    """
    values = result.get(f"{HISTORY}/val_accuracy")
    if values is None or not values.size:
        raise LaunchError(f"the history of the training has no val_accuracy; it has {sorted(result)}.")
    return float(values[-1])
