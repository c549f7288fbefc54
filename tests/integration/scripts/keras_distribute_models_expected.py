"""What goes into the cases of keras_distribute_models.py, and what must come out, computed with NumPy alone.

Two replicas train together.  An expectation is computed for one process and the replicas that it has.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

Arrays = dict[str, Any]

REPLICAS = 2

# A linear model: its data (a weight for each of three columns, and a bias), and where it starts.
_RNG = np.random.default_rng(3)
X = _RNG.normal(size=(21, 3)).astype(np.float32)
Y = (X @ np.array([[1.0], [-2.0], [0.5]]) + 0.25).astype(np.float32)
KERNEL = 0.2
RATE = 0.1
EPOCHS = 2

# Ones that leave a replica without rows, odd ones, one that divides by the replicas, one batch, and more than
# there is.
BATCH_SIZES = (1, 3, 4, 8, 21, 32)
BATCH = 8

# So many that each batch of them can be halved.
EVEN_ROWS = 20

# Rows of a data set for Keras to divide; row i holds i, its target 2 i, its weight i + 0.5.
NUMBERED_ROWS = 100
NUMBERED_BATCH = 16

# All rows are alike: x is 1 and y is 0.
REGULARIZED_ROWS = 12
L1, L2 = 0.02, 0.01


@dataclasses.dataclass(frozen=True, kw_only=True)
class Process:
    """A process of a setting.

    Args:
        replicas: ids of the replicas that it has.
        places: task and number of the device of each of them.
    """

    replicas: tuple[int, ...]
    places: tuple[tuple[int, int], ...]

    @property
    def first(self) -> int:
        """Whose value is kept where only the first replica's is: TensorFlow asks those of its own process."""
        return self.replicas[0]

    def of_all(self, values: Any) -> np.ndarray:
        """Its own of the values that all replicas have, along the first axis."""
        return np.asarray(values)[list(self.replicas)]

    def each(self, value: Any) -> np.ndarray:
        """The value that each replica has, once per replica of this process."""
        return np.stack([np.asarray(value)] * len(self.replicas))


class Line:
    """A linear model and its mean squared error, trained by plain gradient descent."""

    def __init__(self, kernel: float = KERNEL) -> None:
        self.kernel = np.full((X.shape[1], 1), kernel)
        self.bias = np.zeros(1)

    def predict(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(x.astype(np.float64) @ self.kernel + self.bias)

    def evaluate(self, x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
        """Mean squared and mean absolute error."""
        errors = self.predict(x) - y
        return float(np.mean(errors**2)), float(np.mean(np.abs(errors)))

    def fit(self, x: np.ndarray, y: np.ndarray, batch: int) -> tuple[float, float]:
        """One epoch; gives the errors before each step, averaged over rows."""
        sums = np.zeros(2)
        for rows in _batches(len(x), batch):
            sums += np.multiply(self.evaluate(x[rows], y[rows]), len(x[rows]))
            slope = 2 * (self.predict(x[rows]) - y[rows]) / len(x[rows])
            self.kernel = self.kernel - RATE * x[rows].T @ slope
            self.bias = self.bias - RATE * slope.sum(axis=0)
        loss, absolute = sums / len(x)
        return float(loss), float(absolute)


def _batches(rows: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, rows)) for start in range(0, rows, size))


def _rows_of_replicas(rows: int, size: int) -> list[list[int]]:
    """Rows of each batch on each replica: a half each, and the odd one on the first."""
    sizes = [batch.stop - batch.start for batch in _batches(rows, size)]
    return [[-(-left // REPLICAS), left // REPLICAS] for left in sizes]


def scope_variables(process: Process) -> Arrays:
    return {
        "distributed": [True, True],
        "outside distributed": False,
        "places": process.places,
        "initial": process.each(np.ones((3, 2))),
        "assigned": process.each(np.full((3, 2), 5.0)),
    }


def replica_function(process: Process) -> Arrays:
    """Four columns that hold the replica's id, times 0.5, plus 0.25."""
    return {
        "id": process.of_all([0, 1]),
        "output": process.of_all([np.full((8, 2), 0.25), np.full((8, 2), 4 * 0.5 + 0.25)]),
    }


def batch_sizes(process: Process) -> Arrays:
    found: Arrays = {}
    for size in BATCH_SIZES:
        line = Line()
        epochs = np.transpose([line.fit(X, Y, size) for _ in range(EPOCHS)])
        found |= {f"{size} loss": epochs[0], f"{size} mae": epochs[1]}
        found |= {f"{size} evaluate": line.evaluate(X, Y), f"{size} predict": line.predict(X)}
        found |= {f"{size} kernel": process.each(line.kernel), f"{size} bias": process.each(line.bias)}
    return found


def declared_batch_size(process: Process) -> Arrays:
    """The last fifth of 20 rows validates; then all of them train, from a distributed data set."""
    line = Line()
    x, y = X[:EVEN_ROWS], Y[:EVEN_ROWS]
    training = line.fit(x[:16], y[:16], BATCH)
    validation = line.evaluate(x[16:], y[16:])
    return {
        "loss": [training[0]],
        "val_loss": [validation[0]],
        "again loss": [line.fit(x, y, BATCH)[0]],
        "kernel": process.each(line.kernel),
    }


def _two_outputs(names: tuple[Any, Any]) -> Arrays:
    """Metrics and the sum of the losses are means over rows; Keras averages each output's loss over steps."""
    found: Arrays = {f"{run} {value}": [] for run in ("fit", "evaluate") for value in ("losses", "maes")}
    found |= {"fit loss": 0.0, "evaluate loss": 0.0}
    x = X[:EVEN_ROWS]
    batches = list(_batches(len(x), BATCH))
    for name, line, target in zip(
        names, (Line(KERNEL), Line(-KERNEL)), (Y[:EVEN_ROWS], -Y[:EVEN_ROWS]), strict=True
    ):
        for run, step in (("fit", functools.partial(line.fit, batch=BATCH)), ("evaluate", line.evaluate)):
            losses, absolutes = np.transpose([step(x[rows], target[rows]) for rows in batches])
            sizes = [rows.stop - rows.start for rows in batches]
            found[f"{run} losses"].append(np.mean(losses))
            found[f"{run} maes"].append(np.average(absolutes, weights=sizes))
            found[f"{run} loss"] += np.average(losses, weights=sizes)
        found[f"predict {name}"] = line.predict(x)
    return found


def list_outputs(process: Process) -> Arrays:
    return _two_outputs((0, 1))


def dict_outputs(process: Process) -> Arrays:
    return _two_outputs(("left", "right"))


def regularizer(process: Process) -> Arrays:
    """The weight starts at 1; the loss is w^2 + L1 |w| + L2 w^2, whatever the number of rows."""
    found: Arrays = {}
    for size in (REGULARIZED_ROWS, 5):
        weight, total = 1.0, 0.0
        for rows in _batches(REGULARIZED_ROWS, size):
            total += (weight**2 + L1 * weight + L2 * weight**2) * (rows.stop - rows.start)
            weight -= RATE * (2 * weight + L1 + 2 * L2 * weight)
        found |= {f"{size} loss": total / REGULARIZED_ROWS, f"{size} kernel": process.each([[weight]])}
    return found


def _aggregations(process: Process, values: list[int]) -> Arrays:
    """What is left of a variable that each replica has given one of the values."""
    return {
        "none": process.of_all(values),
        "sum": process.each(sum(values)),
        "mean": process.each(sum(values) / REPLICAS),
        "only_first_replica": process.each(values[process.first]),
    }


def aggregation_in_call(process: Process) -> Arrays:
    """Each replica writes how many rows it got: 2 and 5; at the end of `fit` those of the last batch."""
    last = _rows_of_replicas(len(X), BATCH)[-1]
    return _aggregations(process, [2, 5]) | {
        f"fit {name}": value for name, value in _aggregations(process, last).items()
    }


def aggregation_names(process: Process) -> Arrays:
    names = ["none", "sum", "mean", "only_first_replica"]
    return {"keras": names, "tensorflow": [name.upper() for name in names]}


def synchronization_on_read(process: Process) -> Arrays:
    """Each replica counts its rows, of 21 in batches of 8; who reads all of them gets the aggregate."""
    rows = np.sum(_rows_of_replicas(len(X), BATCH), axis=0)
    return {
        "keras": ["auto", "on_read"],
        "tensorflow": ["ON_WRITE", "ON_READ"],
        "own": process.of_all(rows),
        "sum": rows.sum(),
        "mean": rows.mean(),
        "only_first_replica": rows[process.first],
    }


def seed_generator(process: Process) -> Arrays:
    """The second number counts draws; a layer draws once per step, of which 17 rows make three."""
    return {
        "state at first": process.each([42, 0]),
        "state after one": process.each([42, 1]),
        "state after three": process.each([42, 3]),
        "state of dropout": process.each([7, 3]),
    }


EXPECTED: dict[str, Callable[[Process], Arrays]] = {
    case.__name__: case
    for case in (
        scope_variables,
        replica_function,
        batch_sizes,
        declared_batch_size,
        list_outputs,
        dict_outputs,
        regularizer,
        aggregation_in_call,
        aggregation_names,
        synchronization_on_read,
        seed_generator,
    )
}
