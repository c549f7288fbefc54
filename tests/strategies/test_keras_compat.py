"""Who is taken for Keras; what Keras gets is in `test_reduction`, with Keras itself."""

from __future__ import annotations

from typing import Any

import pytest

from tf_preempt.strategies import _tf_internals


def called_from(module: str, function: str, depth: int = 0) -> bool:
    """What is answered to a function of that name and module, through so many other functions."""
    source = f"def {function}(call): return call()\n"
    namespace: dict[str, Any] = {"__name__": module}
    exec(source, namespace)

    def through(levels: int) -> bool:
        return through(levels - 1) if levels else _tf_internals.called_by_keras_build()

    return bool(namespace[function](lambda: through(depth)))


@pytest.mark.parametrize("depth", [0, 3])
def test_keras_that_builds_a_model(depth: int) -> None:
    assert called_from("keras.src.backend.tensorflow.trainer", "_maybe_symbolic_build", depth)


@pytest.mark.parametrize(
    ("module", "function"),
    [
        ("keras.src.backend.tensorflow.trainer", "reduce_per_replica"),
        ("keras_of_somebody.trainer", "_maybe_symbolic_build"),
        ("__main__", "_maybe_symbolic_build"),
    ],
)
def test_anybody_else(module: str, function: str) -> None:
    assert not called_from(module, function)


def test_keras_further_away_is_not_asked_for() -> None:
    """A user's function that Keras calls while it builds may reduce for itself."""
    assert not called_from("keras.src.backend.tensorflow.trainer", "_maybe_symbolic_build", 20)
