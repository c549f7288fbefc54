"""Ops that keep state which no checkpoint reaches, and where a program makes them."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tf_preempt.strategies._tf_internals.access import attribute
from tf_preempt.strategies._tf_internals.functions import ops_in

# By type of a random op that counts in its kernel, what takes its seed as an argument instead.
_STATELESS = {
    "Multinomial": "tf.random.stateless_categorical",
    "ParameterizedTruncatedNormal": "tf.random.stateless_parameterized_truncated_normal",
    "RandomGamma": "tf.random.stateless_gamma",
    "RandomPoissonV2": "tf.random.stateless_poisson",
    "RandomShuffle": "tf.random.experimental.stateless_shuffle",
    "RandomStandardNormal": "tf.random.stateless_normal",
    "RandomUniform": "tf.random.stateless_uniform",
    "RandomUniformInt": "tf.random.stateless_uniform",
    "SampleDistortedBoundingBoxV2": "tf.image.stateless_sample_distorted_bounding_box",
    "TruncatedNormal": "tf.random.stateless_truncated_normal",
}
_PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OpPlace:
    """An op with state, and where it was made.

    Args:
        type: of the op.
        scope: names of the layers and functions around it; empty if there are none.
        source: file and line of the program, as ``train.py:12``; empty if only libraries took part.
        kind: what its state is.
        is_seeded: of a random op: it draws the same numbers in each process.
        stateless: of a random op: the function without state, if there is one.
    """

    type: str
    scope: str
    source: str
    kind: str
    is_seeded: bool
    stateless: str

    def __str__(self) -> str:
        scope = f" in {self.scope}" if self.scope else ""
        return f"{self.type}{scope}{f' at {self.source}' if self.source else ''}"


def random_ops_of(fn: Any) -> list[OpPlace]:
    """The ops in all traces of a ``tf.function`` that draw random numbers and count in their kernel.

    Args:
        fn: made by ``tf.function``.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    traces = attribute(fn, "_list_all_concrete_functions", "Function")()
    places = (place_of(op) for trace in traces for op in ops_in(trace.graph) if _is_random(op))
    return list(dict.fromkeys(places))


def _is_random(op: tf.Operation) -> bool:
    """Says whether an op draws random numbers and counts in its kernel."""
    definition = op.op_def
    return bool(definition.is_stateful) and any(argument.name == "seed" for argument in definition.attr)


def place_of(op: tf.Operation) -> OpPlace:
    """Where an op with state was made."""
    kind = "random" if _is_random(op) else "python" if op.type in _PYTHON else "other"
    seeds = [op.get_attr(name) for name in ("seed", "seed2") if kind == "random" and _has(op, name)]
    return OpPlace(
        type=op.type,
        scope=_layer(op.name),
        source=next(_lines_of_program(op), ""),
        kind=kind,
        is_seeded=any(seeds),
        stateless=_STATELESS.get(op.type, ""),
    )


def _has(op: tf.Operation, name: str) -> bool:
    return any(argument.name == name for argument in op.op_def.attr)


def _layer(name: str) -> str:
    """The layers around an op: what made it, ``random_normal`` for example, says no more than its type."""
    return "/".join(name.split("/")[:-2])


def _lines_of_program(op: tf.Operation) -> Iterator[str]:
    """Lines of the program that led to an op, the innermost first."""
    libraries = tuple(_directories_of("tensorflow", "keras", "tf_keras", "tf_preempt"))
    for frame in reversed(list(op.traceback or ())):
        if not frame.filename.startswith(libraries):
            yield f"{os.path.basename(frame.filename)}:{frame.lineno}"


def _directories_of(*packages: str) -> Iterator[str]:
    """Where packages lie, those that are imported."""
    for name in packages:
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is not None:
            yield os.path.dirname(os.path.abspath(file)) + os.sep
