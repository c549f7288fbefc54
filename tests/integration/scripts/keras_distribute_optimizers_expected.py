"""What goes into the cases of keras_distribute_optimizers.py, and what NumPy alone says must come out.

Gradients are added over the replicas; what an optimizer does with gradients before (clipping, accumulating)
each replica does with its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tests.integration.scripts.keras_distribute_models_expected import REPLICAS, Arrays, Process

# Two variables, and gradients of which no two replicas and no two steps have the same.
NAMES = ("matrix", "vector")
START = (np.array([[1.0, -2.0], [3.0, 4.0]], np.float32), np.array([0.5, -1.0, 2.0], np.float32))
GRADIENTS = (np.array([[0.5, -3.0], [2.0, 1.0]], np.float32), np.array([1.0, 0.25, -4.0], np.float32))
STEPS = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
OVERFLOWING = (0.0, 1.0, 2.0, np.inf, 4.0, np.inf, 6.0)

RATE = 0.5
MOMENTUM = 0.9
DECAY = 0.004
BETAS = (0.5, 0.75)  # exact in float32, and so is 1 minus their powers
NORM = 1.5
LARGEST = 1.0
AVERAGED = 0.9
OVERWRITE_EVERY = 3
ACCUMULATED = 3
SCALE = 8.0
GROWTH_STEPS = 2

Gradients = Sequence[np.ndarray]
Clip = Callable[[Gradients], Gradients]


def gradients_of(replica: Any, step: Any) -> list[Any]:
    """Gradients on a replica in a step, for numbers as for tensors."""
    return [gradient * (replica + 1) + step for gradient in GRADIENTS]


def _unchanged(gradients: Gradients) -> Gradients:
    return gradients


def _by_norm(gradients: Gradients) -> Gradients:
    return [gradient * min(1.0, NORM / np.linalg.norm(gradient)) for gradient in gradients]


def _by_global_norm(gradients: Gradients) -> Gradients:
    norm = np.sqrt(sum(np.sum(gradient**2) for gradient in gradients))
    return [gradient * min(1.0, NORM / norm) for gradient in gradients]


def _by_value(gradients: Gradients) -> Gradients:
    return [np.clip(gradient, -LARGEST, LARGEST) for gradient in gradients]


def _of_replicas(step: float) -> list[Gradients]:
    """Gradients of each replica."""
    return [
        [gradient.astype(np.float64) for gradient in gradients_of(replica, step)]
        for replica in range(REPLICAS)
    ]


def _added(of_replicas: list[Gradients], clip: Clip = _unchanged) -> list[np.ndarray]:
    clipped = [clip(gradients) for gradients in of_replicas]
    return [np.sum(parts, axis=0) for parts in zip(*clipped, strict=True)]


class Simulation:
    """Two variables and what an optimizer keeps for them, and a record of all after each step."""

    def __init__(self) -> None:
        self.weights = [start.astype(np.float64) for start in START]
        self.updates = 0
        self._record: dict[str, list[np.ndarray]] = {}

    def zeros(self) -> list[np.ndarray]:
        return [np.zeros_like(weight) for weight in self.weights]

    def note(self, *, of_replicas: bool = False, **values: Sequence[Any]) -> None:
        """Adds a step: for each name a value per variable, with a leading axis for replicas if so said."""
        for name, arrays in values.items():
            for variable, array in zip(NAMES, arrays, strict=True):
                full = np.asarray(array) if of_replicas else np.stack([array] * REPLICAS)
                self._record.setdefault(f"{variable} {name}", []).append(full.copy())

    def note_step(self, **numbers: float) -> None:
        self.note(weights=self.weights)
        for name, number in {"iterations": self.updates, **numbers}.items():
            self._record.setdefault(name, []).append(np.asarray(number))

    def of(self, process: Process) -> Arrays:
        """The record of what one process has."""
        return {
            name: np.stack([process.of_all(value) if value.ndim else value for value in values])
            for name, values in self._record.items()
        }


def _descent(
    *, clip: Clip = _unchanged, decay: float = 0.0, momentum: float = 0.0, nesterov: bool = False
) -> Simulation:
    found = Simulation()
    speeds = found.zeros()
    for step in STEPS:
        for index, gradient in enumerate(_added(_of_replicas(step), clip)):
            speeds[index] = momentum * speeds[index] - RATE * gradient
            move = momentum * speeds[index] - RATE * gradient if nesterov else speeds[index]
            found.weights[index] = found.weights[index] * (1 - decay * RATE) + move
        found.updates += 1
        if momentum:
            found.note(momentum=speeds)
        found.note_step()
    return found


def _adam() -> Simulation:
    found = Simulation()
    first, second = BETAS
    means, squares = found.zeros(), found.zeros()
    for step in STEPS:
        found.updates += 1
        rate = RATE * np.sqrt(1 - second**found.updates) / (1 - first**found.updates)
        for index, gradient in enumerate(_added(_of_replicas(step))):
            means[index] = first * means[index] + (1 - first) * gradient
            squares[index] = second * squares[index] + (1 - second) * gradient**2
            move = rate * means[index] / (np.sqrt(squares[index]) + 1e-7)
            found.weights[index] = found.weights[index] - move
        found.note(momentum=means, velocity=squares)
        found.note_step()
    return found


def _moving_average(overwrite_every: int | None) -> Simulation:
    found = Simulation()
    averages = found.zeros()
    for step in STEPS:
        share = AVERAGED if found.updates else 0.0  # the first average is the weights
        for index, gradient in enumerate(_added(_of_replicas(step))):
            found.weights[index] = found.weights[index] - RATE * gradient
            averages[index] = share * averages[index] + (1 - share) * found.weights[index]
        found.updates += 1
        if overwrite_every and found.updates % overwrite_every == 0:
            found.weights = [average.copy() for average in averages]
        found.note(average=averages)
        found.note_step()
    return found


def _accumulation(clip: Clip = _unchanged) -> Simulation:
    found = Simulation()
    kept = [found.zeros() for _ in range(REPLICAS)]
    for count, step in enumerate(STEPS, start=1):
        kept = [
            [old + new for old, new in zip(*pair, strict=True)]
            for pair in zip(kept, _of_replicas(step), strict=True)
        ]
        if count % ACCUMULATED == 0:
            means: list[Gradients] = [
                [gradient / ACCUMULATED for gradient in gradients] for gradients in kept
            ]
            for index, gradient in enumerate(_added(means, clip)):
                found.weights[index] = found.weights[index] - RATE * gradient
            found.updates += 1
            kept = [found.zeros() for _ in range(REPLICAS)]
        found.note(of_replicas=True, gradient_accumulator=[np.stack(one) for one in zip(*kept, strict=True)])
        found.note_step()
    return found


def _scaled() -> Simulation:
    """The scale doubles after two good steps, and is halved by an overflow, which trains nothing."""
    found = Simulation()
    scale, good = SCALE, 0
    for step in OVERFLOWING:
        if np.isinf(step):
            scale, good = scale / 2, 0
        else:
            for index, gradient in enumerate(_added(_of_replicas(step))):
                found.weights[index] = found.weights[index] - RATE * gradient
            found.updates += 1
            scale, good = (scale * 2, 0) if good == GROWTH_STEPS - 1 else (scale, good + 1)
        found.note_step(dynamic_scale=scale, step_counter=good)
    return found


def _cases() -> Iterator[tuple[str, Callable[[], Simulation]]]:
    yield "plain", _descent
    yield "momentum", lambda: _descent(momentum=MOMENTUM)
    yield "nesterov", lambda: _descent(momentum=MOMENTUM, nesterov=True)
    yield "adam", _adam
    yield "weight_decay", lambda: _descent(decay=DECAY)
    yield "clipnorm", lambda: _descent(clip=_by_norm)
    yield "global_clipnorm", lambda: _descent(clip=_by_global_norm)
    yield "clipvalue", lambda: _descent(clip=_by_value)
    yield "ema", lambda: _moving_average(None)
    yield "ema_overwrite", lambda: _moving_average(OVERWRITE_EVERY)
    yield "accumulation", _accumulation
    yield "accumulation_clipnorm", lambda: _accumulation(_by_norm)
    yield "loss_scale_factor", _descent
    yield "loss_scale_optimizer", _scaled


SIMULATIONS = dict(_cases())
WAYS = ("eager", "function")


def _simulated(name: str) -> Callable[[Process], Arrays]:
    def expected(process: Process) -> Arrays:
        return SIMULATIONS[name]().of(process)

    return expected


def from_config(process: Process) -> Arrays:
    """An optimizer made from another's configuration has all of it, and trains like it."""
    found = _descent(momentum=MOMENTUM, nesterov=True, decay=DECAY).of(process)
    return {"same": True, **found}


def excluded_from_decay(process: Process) -> Arrays:
    """Gradients are zero: only weight decay changes anything."""
    matrix, vector = process.each(START[0] * (1 - DECAY * RATE)), process.each(START[1])
    ways = ("by name", "by variable")
    return {f"matrix {way}": matrix for way in ways} | {f"vector {way}": vector for way in ways}


def variable_of_tensorflow(process: Process) -> Arrays:
    """One step from rest, with Keras's and the legacy Keras's optimizer."""
    weights = START[0] - RATE * sum(gradients_of(replica, 0.0)[0] for replica in range(REPLICAS))
    return {"keras": process.each(weights), "tf_keras": process.each(weights)}


def average_at_the_end(process: Process) -> Arrays:
    """The weights stay what they are until the end, when they become their average."""
    found = _moving_average(None).of(process)
    return {f"{name} weights": found[f"{name} average"][-1] for name in NAMES}


def scaled_loss(process: Process) -> Arrays:
    return {"factor": SCALE * 3, "without": 3.0}


def stateless_apply(process: Process) -> Arrays:
    return {"refused": True}


EXPECTED: dict[str, Callable[[Process], Arrays]] = {
    **{f"{name}_{way}": _simulated(name) for name in SIMULATIONS for way in WAYS},
    **{
        case.__name__: case
        for case in (
            from_config,
            excluded_from_decay,
            variable_of_tensorflow,
            average_at_the_end,
            scaled_loss,
            stateless_apply,
        )
    },
}
