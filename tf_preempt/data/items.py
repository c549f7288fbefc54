"""The examples of a source: what the first one looks like, and whether the others look like it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_preempt.errors import ConfigError

_HINT_SAME = (
    "let the source give all items alike: pad or crop them to one shape, and convert them to one dtype, in "
    "__getitem__"
)


class ItemFormat:
    """Structure, shapes and dtypes of a source's items, learned from one of them.

    Args:
        item: the first one: an array, a tensor, a number, a text, or dicts and tuples of these.

    Raises:
        ConfigError: the item holds something else, or nothing.
    """

    def __init__(self, item: Any) -> None:
        parts = dict(_parts(item, ""))
        if not parts:
            raise ConfigError(
                f"item 0 of the source is empty ({item!r:.200}): expected arrays or numbers.",
                hint="let __getitem__ return what the model is to see, such as (image, label)",
            )
        self.structure = _structure(item)
        self._paths = list(parts)
        arrays = [_first_array(parts[path], path) for path in self._paths]
        self.shapes = [array.shape for array in arrays]
        self.dtypes = [tf.as_dtype(array.dtype) for array in arrays]

    def stack(self, items: Sequence[Any], indices: Sequence[int]) -> list[np.ndarray]:
        """One array per part, with one row per item.

        Args:
            items: of the source.
            indices: theirs, for messages.

        Raises:
            ConfigError: an item differs from the first one in structure, shape or dtype; it is named.
        """
        rows = [self._arrays(item, index) for item, index in zip(items, indices, strict=True)]
        return [np.stack(part) for part in zip(*rows, strict=True)]

    def _arrays(self, item: Any, index: int) -> list[np.ndarray]:
        parts = dict(_parts(item, ""))
        if list(parts) != self._paths:
            raise ConfigError(
                f"item {index} of the source has the parts {_listed(parts)}, item 0 has "
                f"{_listed(self._paths)}: expected the same.",
                hint=_HINT_SAME,
            )
        found = zip(self._paths, self.shapes, self.dtypes, strict=True)
        return [_checked(parts[path], path, index, shape, dtype) for path, shape, dtype in found]


def _parts(item: Any, path: str) -> Iterator[tuple[str, Any]]:
    """What is in dicts (by sorted key, as everywhere in TensorFlow) and tuples, each with its path."""
    if isinstance(item, dict):
        for key in sorted(item):
            yield from _parts(item[key], f"{path}[{key!r}]")
    elif isinstance(item, tuple):
        for index, value in enumerate(item):
            yield from _parts(value, f"{path}[{index}]")
    else:
        yield path, item


def _structure(item: Any) -> Any:
    """The item with 0 in place of each part."""
    if isinstance(item, dict):
        return {key: _structure(value) for key, value in item.items()}
    if isinstance(item, tuple):
        parts = [_structure(value) for value in item]
        return type(item)(*parts) if hasattr(item, "_fields") else tuple(parts)
    return 0


def _first_array(value: Any, path: str) -> np.ndarray:
    """As ``tf.convert_to_tensor`` would have it: float32 for Python's floats, int32 for its integers."""
    try:
        if value is None:
            raise TypeError("None")
        array = tf.convert_to_tensor(value).numpy()
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"part {path or '(all)'} of item 0 of the source, of type {type(value).__name__}, cannot be made "
            f"a dense tensor: {error}",
            hint="let __getitem__ return arrays, numbers and texts, in dicts or tuples",
        ) from error
    return np.asarray(array, dtype=object) if isinstance(array, bytes) else np.asarray(array)


def _checked(value: Any, path: str, index: int, shape: tuple[int, ...], dtype: tf.DType) -> np.ndarray:
    where = f"part {path} of item {index}" if path else f"item {index}"
    if dtype == tf.string:
        return _checked_text(value, where, shape)
    raw = value.numpy() if isinstance(value, tf.Tensor) else np.asarray(value)
    wanted = np.dtype(dtype.as_numpy_dtype)
    if raw.shape != shape:
        raise ConfigError(
            f"{where} of the source has shape {raw.shape}, that of item 0 has {shape}: expected the same.",
            hint=_HINT_SAME,
        )
    if raw.dtype == wanted:
        return raw
    # Numbers of Python have no width of their own.
    narrowed = None
    if not isinstance(value, (np.ndarray, np.generic, tf.Tensor)) and raw.dtype.kind == wanted.kind:
        narrowed = raw.astype(wanted)
    if narrowed is None or (wanted.kind in "iu" and not np.array_equal(narrowed, raw)):
        raise ConfigError(
            f"{where} of the source has dtype {raw.dtype} ({value!r:.80}), that of item 0 has {wanted}: "
            "expected the same.",
            hint=_HINT_SAME,
        )
    return narrowed


def _checked_text(value: Any, where: str, shape: tuple[int, ...]) -> np.ndarray:
    raw = value.numpy() if isinstance(value, tf.Tensor) else value
    array = np.asarray(raw, dtype=object)
    if array.shape != shape or not all(isinstance(one, (str, bytes)) for one in array.flat):
        raise ConfigError(
            f"{where} of the source is {value!r:.80}, of shape {array.shape}: expected texts of shape "
            f"{shape}, as in item 0.",
            hint=_HINT_SAME,
        )
    return array


def _listed(paths: Any) -> str:
    return ", ".join(path or "(one alone)" for path in paths) or "(none)"
