"""How two arrays or JSON values differ, and by how much; computes only.

Arrays are compared bit by bit: NaN equals the same NaN, 0.0 does not equal -0.0.  Distances are given as the
largest absolute difference and in units in the last place (ulp): how many numbers of that type lie between.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["Difference", "compare_arrays", "compare_values"]

Array = Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """One variable, or one value, that differs.

    Args:
        name: its name.
        group: what it is part of, such as ``"weights"``.
        differing: how many elements differ; None: it is missing on one side, or of another shape or type.
        elements: how many it has.
        max_abs: the largest absolute difference; None: it is no number, or NaN is on one side only.
        max_ulp: the largest difference in units in the last place; None: not of a floating type, or as above.
        note: what else there is to say.
    """

    name: str
    group: str
    differing: int | None = None
    elements: int | None = None
    max_abs: float | None = None
    max_ulp: int | None = None
    note: str | None = None


def compare_arrays(one: Array | None, other: Array | None, *, name: str, group: str) -> Difference | None:
    """How two arrays differ; None: not at all.

    Args:
        one: of any shape and type, those of ``ml_dtypes`` included; None: it is missing.
        other: likewise.
        name: for the result.
        group: for the result.
    """
    if one is None or other is None:
        where = "second" if one is None else "first"
        return Difference(name=name, group=group, note=f"only the {where} training has it")
    if one.dtype != other.dtype or one.shape != other.shape:
        shapes = f"{one.dtype}{list(one.shape)} and {other.dtype}{list(other.shape)}"
        return Difference(name=name, group=group, note=shapes)
    differs = _unlike(one, other)
    if not differs.any():
        return None
    return Difference(
        name=name,
        group=group,
        differing=int(differs.sum()),
        elements=int(one.size),
        max_abs=_max_abs(one, other),
        max_ulp=_max_ulp(one, other),
    )


def compare_values(one: Any, other: Any, *, name: str, group: str) -> list[Difference]:
    """How two JSON values differ: one entry per member of a mapping that does, by its path.

    Args:
        one: of any kind.
        other: likewise.
        name: where they are; members are named behind a dot.
        group: for the results.
    """
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        found: list[Difference] = []
        for key in sorted(one.keys() | other.keys()):
            found += compare_values(one.get(key), other.get(key), name=f"{name}.{key}", group=group)
        return found
    if one == other:
        return []
    if _are_numbers(one) and _are_numbers(other):
        a, b = (np.atleast_1d(np.asarray(value, np.float64)) for value in (one, other))
        if a.shape == b.shape:
            difference = compare_arrays(a, b, name=name, group=group)
            # JSON says nothing of how many bits a number has, so that its units have no meaning.
            return [dataclasses.replace(difference, max_ulp=None, note=_first(a, b))] if difference else []
    return [Difference(name=name, group=group, note=f"{_short(one)} and {_short(other)}")]


def _first(one: Array, other: Array) -> str | None:
    """Of a list, where it begins to differ."""
    return f"from position {int(np.argmax(one != other))} on" if one.size > 1 else None


def _are_numbers(value: Any) -> bool:
    numbers = value if isinstance(value, list) and value else [value]
    return all(isinstance(number, int | float) and not isinstance(number, bool) for number in numbers)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _unlike(one: Array, other: Array) -> Array:
    if one.dtype.hasobject:
        return one != other
    shape = (one.size, one.dtype.itemsize)
    a, b = (np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(shape) for array in (one, other))
    return (a != b).any(axis=1)


def _max_abs(one: Array, other: Array) -> float | None:
    if one.dtype.kind not in "iufc" and not _is_float(one):
        return None
    wide: Any = np.complex128 if one.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        distances = np.abs(one.astype(wide) - other.astype(wide))
    # Equal infinities have no distance; a NaN on both sides neither.
    distances = np.where(_unlike(one, other).reshape(one.shape), distances, 0.0)
    largest = float(distances.max())
    return largest if np.isfinite(largest) else None


def _max_ulp(one: Array, other: Array) -> int | None:
    if not _is_float(one) or one.dtype.itemsize not in (1, 2, 4, 8):
        return None
    differs = _unlike(one, other)
    a, b = (array.reshape(-1)[differs] for array in (one, other))
    if np.isnan(a.astype(np.float64)).any() or np.isnan(b.astype(np.float64)).any():
        return None
    return max(abs(p - q) for p, q in zip(_ordered(a), _ordered(b), strict=True))


def _is_float(array: Array) -> bool:
    # Types of ml_dtypes (bfloat16 and smaller) are of kind V or f, depending on NumPy's version.
    return array.dtype.kind == "f" or "float" in array.dtype.name


def _ordered(array: Array) -> list[int]:
    """The place of each number among all of its type, negative below zero; both zeros are at 0."""
    bits = array.dtype.itemsize * 8
    patterns = np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")
    magnitude = patterns & ((1 << (bits - 1)) - 1)
    return [
        -int(number) if negative else int(number)
        for number, negative in zip(magnitude, patterns >> (bits - 1), strict=True)
    ]
