"""What cannot be a data set is refused with the value, what was expected, and the cure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.data_pipeline.sources import Counted
from tf_preempt import data
from tf_preempt.errors import ConfigError


class Items:
    """A source of given items."""

    def __init__(self, *items: Any) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> Any:
        return self._items[index]


class Short(Counted):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self.item(index) for index in indices[1:]]


class Broken(Counted):
    """Its item 3 cannot be read."""

    def __init__(self, error: Exception) -> None:
        super().__init__(4)
        self._error = error

    def item(self, index: int) -> Any:
        if index == 3:
            raise self._error
        return super().item(index)


class BrokenBatch(Broken):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self.item(index) for index in indices]


class BadLength(Items):
    def __len__(self) -> int:
        raise OSError("no index file")


class NoLength:
    def __getitem__(self, index: int) -> int:
        return index


def from_source(source: Any = range(4), **options: Any) -> Any:
    return data.from_source(source, **{"batch_size": 2, "seed": 1, **options})


def from_arrays(*arrays: Any, **options: Any) -> Any:
    return data.from_arrays(*(arrays or (np.zeros(4),)), **{"batch_size": 2, "seed": 1, **options})


@pytest.mark.parametrize("make", [from_source, from_arrays])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 0}, "batch_size=0 of .*expected an integer, 1 or more"),
        ({"batch_size": 2.5}, r"batch_size=2\.5"),
        ({"batch_size": True}, "batch_size=True"),
        ({"batch_size": None}, "batch_size=None"),
        ({"seed": None}, "shuffle=True and no seed.*Expected an integer"),
        ({"seed": -1}, "seed=-1 of .*0 to"),
        ({"seed": 2**63}, "seed=9223372036854775808"),
        ({"seed": "1"}, "seed='1'"),
        ({"shuffle": 1000}, "shuffle=1000 of .*True or False"),
        ({"drop_remainder": None}, "drop_remainder=None"),
        ({"batch_size": 5, "drop_remainder": True}, r"batch_size=5, drop_remainder=True .*4 example\(s\)"),
    ],
)
def test_option(make: Callable[..., Any], options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s){words}.*HINT"):
        make(**options)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ([], "no examples"),
        (iter([1]), "given a value of type list_iterator: expected __len__ and __getitem__"),
        (3, "given a value of type int: expected __len__ and __getitem__"),
        (Counted, r"given the class Counted: expected an instance.*HINT: Counted\(\)"),
        (tf.data.Dataset.range(3), "expected __len__ and __getitem__"),
        (NoLength(), "given a value of type NoLength"),
        (BadLength(), "length of the source, of type BadLength.*OSError: no index file"),
        ({"a": 1}, r"item 0 of the source, of type dict: KeyError"),
        (Items({}), r"item 0 of the source is empty \(\{\}\)"),
        (Items(None), r"part \(all\) of item 0.*NoneType"),
        (Items((1, object())), r"part \[1\] of item 0 of the source, of type object, cannot"),
        (Items((1, tf.ragged.constant([[1], [1, 2]]))), r"part \[1\] of item 0.*RaggedTensor"),
    ],
)
def test_source(source: Any, words: str) -> None:
    """It is complained about before the seed, without which nothing could be read either."""
    with pytest.raises(ConfigError, match=f"(?s){words}.*HINT" if "HINT" not in words else f"(?s){words}"):
        from_source(source, seed=None)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (Items(1, 2.0), "item 1 of the source has dtype float64.*item 0 has int32"),
        (Items(1, 2**40), "item 1 of the source has dtype int64"),
        (Items(np.zeros(2), np.zeros(3)), r"item 1 of the source has shape \(3,\).*\(2,\)"),
        (Items(np.zeros(2, "f4"), np.zeros(2, "f8")), "item 1 .*dtype float64"),
        (Items((1, 2), (1, 2, 3)), r"item 1 of the source has the parts \[0\], \[1\], \[2\]"),
        (Items({"a": 1}, {"b": 1}), r"item 1 .*\['b'\].*\['a'\]"),
        (Items({"a": (1, "x")}, {"a": (1, 2)}), r"part \['a'\]\[1\] of item 1 of the source is 2"),
        (Short(4), "__getitems__ of the source was asked for 2 items"),
    ],
)
def test_item_that_differs_from_the_first_is_named(source: Any, words: str) -> None:
    """TensorFlow raises it as an error of its own, with the text of ours."""
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"(?s)ConfigError: .*{words}.*HINT"):
        list(from_source(source, shuffle=False))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (Broken(OSError("cannot open file 3.png")), "item 3 of the source: OSError: cannot open file 3.png"),
        (Broken(StopIteration("3")), "item 3 of the source: StopIteration: 3"),
        (Broken(MemoryError("3")), "item 3 of the source: MemoryError: 3"),
        (BrokenBatch(OSError("no 3")), "items 2, 3 of the source: OSError: no 3"),
    ],
)
def test_item_that_cannot_be_read_is_named(source: Any, words: str) -> None:
    """With what the source raised, and where: TensorFlow passes on the traceback as a text."""
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"(?s)ConfigError: {words}\nHINT") as caught:
        list(from_source(source, shuffle=False))
    assert "in item\n    raise self._error" in caught.value.message


@pytest.mark.parametrize(
    ("arrays", "options", "words"),
    [
        (([1, 2, 3], [1, 2]), {}, r"different lengths \(part \[0\]: 3, part \[1\]: 2\)"),
        (({"a": np.zeros(3), "b": np.zeros(2)},), {}, r"part \['a'\]: 3, part \['b'\]: 2"),
        ((np.zeros(0),), {}, "no examples"),
        (({},), {}, r"no arrays \(\{\}\)"),
        ((3,), {}, "part x of from_arrays is a scalar"),
        ((object(),), {}, "part x of from_arrays, of type object, cannot be made a tensor"),
        ((Counted,), {}, "part x of from_arrays is the class Counted: expected an array"),
        ((tf.ragged.constant([[1], [1, 2]]),), {}, "part x of from_arrays is of type RaggedTensor"),
        ((np.zeros(2),), {"sample_weight": np.zeros(2)}, "sample_weight and no y"),
    ],
)
def test_arrays(arrays: tuple[Any, ...], options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s){words}.*HINT"):
        from_arrays(*arrays, **{"seed": None, **options})


def test_inside_a_tf_function() -> None:
    with pytest.raises(ConfigError, match=r"inside a tf\.function.*\nHINT"):
        tf.function(lambda: next(iter(from_source())), autograph=False)()
