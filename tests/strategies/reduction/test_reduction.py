"""``reduce`` over two replicas, with the same results in two processes and on two devices of one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration import cluster

SCRIPT = Path(__file__).parents[1] / "scripts" / "reduce_cases.py"
SETTINGS = ["worker 0 of 2", "worker 1 of 2", "two devices"]

Found = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    directory = tmp_path_factory.mktemp("reduce")
    for stem, workers in (("workers", 2), ("devices", 0)):
        cluster.run_workers(
            SCRIPT, [str(directory / stem)], directory=directory, workers=workers, timeout_s=140
        )
    names = ("workers-0", "workers-1", "devices-0")
    texts = [(directory / f"{name}.json").read_text("utf-8") for name in names]
    return dict(zip(SETTINGS, map(json.loads, texts), strict=True))


RESULTS = [
    ("sum", ["float32", [4.0, 6.0, 8.0, 10.0]]),
    ("sum, no axis given", ["float32", [4.0, 6.0, 8.0, 10.0]]),
    ("sum, axis 0", ["float32", 28.0]),
    ("sum, axis -1", ["float32", 28.0]),
    ("sum, op of TensorFlow", ["float32", 28.0]),
    ("mean", ["float32", [2.0, 3.0, 4.0, 5.0]]),
    ("mean, op in lower case", ["float32", 3.5]),
    ("last batch, sum", ["float32", 15.0]),
    ("last batch, mean", ["float32", 2.5]),
    ("last batch, mean of means", ["float32", 3.0]),
    ("a replica without rows, sum", ["float32", 3.0]),
    ("a replica without rows, mean", ["float32", 1.5]),
    ("scalar, axis 0", ["float32", 2.0]),
    ("scalar, axis (-1,)", ["float32", 4.0]),
    ("matrix, axis 0", ["float32", [3.0, 4.0]]),
    ("matrix, axes (0, 1)", ["float32", 3.5]),
    ("matrix, axes [0, -1]", ["float32", 21.0]),
    ("cube, axes (-3, 2)", ["float32", [3.5]]),
    ("no axes", ["float32", 4.0]),
    ("axis of NumPy", ["float32", 28.0]),
    ("number", ["float32", 4.0]),
    ("number, mean, axis 0", ["float32", 2.0]),
    ("zero", ["float32", 0.0]),
    ("integer number, mean", ["float64", 2.0]),
    ("list of numbers", ["float32", [4.0, 6.0]]),
    ("list of numbers, axis 0", ["float32", 2.5]),
    ("array", ["float32", 6.0]),
    ("tensor", ["float32", [2.0, 4.0]]),
    ("tensor, mean", ["float32", [1.0, 2.0]]),
    ("variable", ["float32", 10.0]),
    ("mirrored variable", ["float32", 6.0]),
    ("mirrored variable, mean", ["float32", 3.0]),
    ("mirrored variable, mean, axis 0", ["float64", 3.5]),
    ("mirrored variable, mean of integers", ["float64", [3.0, 4.0]]),
    ("variable of any length", ["float32", [2.0, 4.0]]),
    ("sync-on-read variable", ["float32", 4.0]),
    ("sync-on-read variable, mean", ["float32", 2.0]),
    ("mirrored value", ["float32", 8.0]),
    ("mirrored value, mean", ["float32", 4.0]),
    ("mirrored value again", ["float32", 10.0]),
    ("Keras variable", ["float32", 6.0]),
    ("nest", {"a": [["float32", 28.0], ["float32", 4.0]], "b": [["float32", [9.0, 12.0]]]}),
    ("nest, means", [["float32", [2.0, 3.0, 4.0, 5.0]], {"n": ["float64", 2.5]}]),
    ("nest of numbers", {"a": ["float32", 2.0], "b": ["int32", 4]}),
    ("empty nest", []),
    ("slices", ["float32", [[4.0], [0.0]]]),
    ("slices, axis 0", ["float32", [1.0]]),
    ("many of float16, sum too large for float16", ["float16", 60000.0]),
    ("more than bfloat16 counts", ["bfloat16", 1.0]),
    ("uint8, mean of a sum too large", ["float32", [150.0, 1.5]]),
    ("in a function, sum", ["float32", [4.0, 6.0, 8.0, 10.0]]),
    ("in a function, last batch, mean", ["float32", 2.5]),
    ("in a function, nest", {"a": [["float32", 2.0], ["float32", 2.5]]}),
    ("in a function, unknown lengths, axis 0", ["float32", float(np.float32(20) / np.float32(6))]),
    ("in a function, unknown lengths", ["float32", [4.0, 4.0]]),
    ("in a function, unknown rank", ["float32", 2.0]),
    ("in a function, variable", [["float32", 6.0], ["float32", 4.0], ["float32", 10.0]]),
    ("in a loop", ["float32", [12.0, 12.0]]),
    ("after it was refused", ["float32", [4.0, 6.0, 8.0, 10.0]]),
]

AXIS_0 = "HINT: axis=0 reduces over the batch's elements as well"
CAST = "HINT: tf.cast(value, tf.int64) before reduce."
UNEQUAL = "has parts of different shape"
RANKS = "has parts with different numbers of axes"
REFUSED = [
    ("refused: parts", ["ConfigError: value", UNEQUAL, "found (4,) and (2,).", AXIS_0]),
    ("refused: parts, nest", ["ConfigError: leaf 1 of value", UNEQUAL, "(4,) and (2,)", AXIS_0]),
    ("refused: parts, other axis", ["ConfigError: value", UNEQUAL, "(2,) and (3,)", AXIS_0]),
    ("refused: a scalar and a vector", ["ConfigError: value", RANKS, "found () and (2,).", "HINT: "]),
    ("refused: a vector and a scalar, axis 0", ["ConfigError: value", RANKS, "found (2,) and ().", "HINT: "]),
    ("refused: a scalar and a vector, in a nest", ["ConfigError: leaf 1 of value", RANKS, "() and (2,)"]),
    ("refused: an axis of one worker's part only", ["ConfigError: value", RANKS, "(2,) and (1, 2)"]),
    ("refused: more axes than the table holds", ["ConfigError: value", RANKS, "(1, 1, 1, 1, 1, 1, 1, 1, "]),
    ("uint8, sum too large", ["ConfigError: the SUM of value", "uint8 (0 to 255): [300, 3].", CAST]),
    ("int32, sum too small", ["ConfigError: the SUM of value", "int32", ": -2147483649.", CAST]),
    (
        "refused: op",
        ["ConfigError: reduce_op='MAX' (str): expected 'SUM', 'MEAN'", "HINT: ", "strategy.gather"],
    ),
    ("refused: op of another kind", ["ConfigError: reduce_op=", "VariableAggregation", "HINT: "]),
    ("refused: axis", ["ConfigError: axis=1: the value has rank 1", "expected -1 to 0", "HINT: axis=None"]),
    ("refused: axis of a scalar", ["ConfigError: axis=1: the value has rank 0", "HINT: axis=None"]),
    ("refused: axis twice", ["ConfigError: axis=(0, -2): ", "named twice", "HINT: "]),
    ("refused: axis of another kind", ["ConfigError: axis='0' (str): expected None, an int", "HINT: axis=0"]),
    (
        "refused: sparse",
        ["ConfigError: value is a SparseTensor: expected dense", "HINT: ", "tf.sparse.to_dense"],
    ),
    ("refused: ragged", ["ConfigError: value is a RaggedTensor: expected dense", "HINT: ", "to_tensor"]),
    ("refused: None", ["ConfigError: leaf 1 of value=None (NoneType) cannot be reduced", "HINT: "]),
    (
        "refused: in a replica",
        ["ConfigError: strategy.reduce was called in a replica function", "all_reduce"],
    ),
]
# AutoGraph and Assert write their own words around these.
REFUSED_IN_A_GRAPH = [
    ("refused: parts, in a function", ["value has parts of", "[(4) and (2)]", "HINT: axis=0"]),
    (
        "refused: parts, in a function, nest",
        ["leaf 2 of value has parts of", "[(2) and (1)]", "HINT: axis=0"],
    ),
    (
        "refused: parts, in a function, last batch of a data set",
        ["value has parts of", "[(4) and (3)]", "HINT: axis=0"],
    ),
    ("uint8, sum too large, in a function", ["the SUM of value", "uint8 (0 to 255)", "[300 3]", CAST]),
]

INTEGERS = {
    "int8": "float32",
    "int16": "float32",
    "int32": "float64",
    "int64": "float64",
    "uint8": "float32",
    "uint16": "float32",
    "uint32": "float64",
    "uint64": "float64",
}
FLOATS = ["bfloat16", "float16", "float32", "float64"]
# What the script has of each dtype: the values of replica 0 and of replica 1.
PARTS = {
    **dict.fromkeys(FLOATS, ([1.5, 2], [3, 4])),
    **dict.fromkeys(INTEGERS, ([-1, 2], [4, 5])),
    **dict.fromkeys(("uint8", "uint16", "uint32"), ([1, 2], [4, 5])),
    "uint64": ([1, 2**63], [4, 5]),
    "complex64": ([1 + 1j, 2], [3, 4 - 1j]),
    "complex128": ([1 + 1j, 2], [3, 4 - 1j]),
}
WHERE = ["", ", in a function"]


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize(("case", "expected"), RESULTS, ids=[case for case, _ in RESULTS])
def test_result(found: Found, setting: str, case: str, expected: Any) -> None:
    assert found[setting]["results"][case] == expected


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize(("case", "parts"), REFUSED, ids=[case for case, _ in REFUSED])
def test_refused_with_cause_and_cure(found: Found, setting: str, case: str, parts: list[str]) -> None:
    text = found[setting]["results"][case]
    assert text.startswith(parts[0])
    assert [part for part in parts if part not in text] == []


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize(("case", "parts"), REFUSED_IN_A_GRAPH, ids=[case for case, _ in REFUSED_IN_A_GRAPH])
def test_refused_when_the_graph_runs(found: Found, setting: str, case: str, parts: list[str]) -> None:
    text = found[setting]["results"][case]
    assert text.startswith("InvalidArgumentError: ")
    assert [part for part in parts if part not in text] == []


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("where", WHERE, ids=["eagerly", "in a function"])
@pytest.mark.parametrize("axis", [None, 0])
@pytest.mark.parametrize("dtype", PARTS)
def test_sum_has_the_dtype_of_its_values(
    found: Found, setting: str, dtype: str, axis: int | None, where: str
) -> None:
    first, second = PARTS[dtype]
    sums = [a + b for a, b in zip(first, second, strict=True)]
    expected = sums if axis is None else sum(sums)
    got_dtype, got = found[setting]["results"][f"SUM of {dtype}, axis={axis}{where}"]
    assert (got_dtype, read(dtype, got)) == (dtype, expected)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("where", WHERE, ids=["eagerly", "in a function"])
@pytest.mark.parametrize("axis", [None, 0])
@pytest.mark.parametrize("dtype", PARTS)
def test_mean_has_the_dtype_of_its_values_but_for_integers(
    found: Found, setting: str, dtype: str, axis: int | None, where: str
) -> None:
    first, second = PARTS[dtype]
    sums = [a + b for a, b in zip(first, second, strict=True)]
    expected = [one / 2 for one in sums] if axis is None else sum(sums) / 4
    got_dtype, got = found[setting]["results"][f"MEAN of {dtype}, axis={axis}{where}"]
    assert (got_dtype, read(dtype, got)) == (INTEGERS.get(dtype, dtype), expected)


def read(dtype: str, values: Any) -> Any:
    if not dtype.startswith("complex"):
        return values
    return [complex(one) for one in values] if isinstance(values, list) else complex(values)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("where", WHERE, ids=["eagerly", "in a function"])
@pytest.mark.parametrize("axis", [None, 0])
@pytest.mark.parametrize("op", ["SUM", "MEAN"])
@pytest.mark.parametrize(("dtype", "cure"), [("bool", "tf.int32"), ("string", "experimental_local_results")])
def test_dtype_without_a_sum_is_named_with_the_cure(
    found: Found, setting: str, dtype: str, cure: str, op: str, axis: int | None, where: str
) -> None:
    text = found[setting]["results"][f"{op} of {dtype}, axis={axis}{where}"]
    assert text.startswith(f"ConfigError: values of dtype {dtype} cannot be reduced with {op}")
    assert cure in text.partition("HINT: ")[2]


@pytest.mark.parametrize("setting", SETTINGS)
def test_bits_are_those_of_tensorflow(found: Found, setting: str) -> None:
    same = found[setting]["same as TensorFlow"]
    assert len(same) == 24
    assert [case for case, is_same in same.items() if not is_same] == []


@pytest.mark.parametrize("setting", SETTINGS[:2])
@pytest.mark.parametrize(
    ("case", "collectives"),
    [
        ("a scalar, axis 0, as Keras reduces logs", 1),
        ("a known shape", 1),
        ("a mean over elements", 2),
        ("a mirrored variable's mean", 0),
        ("an unknown shape", 2),
        ("two unknown shapes", 4),
    ],
)
def test_collectives_per_run(found: Found, setting: str, case: str, collectives: int) -> None:
    """TensorFlow's own runs one, or two for a mean over elements; shapes cost one more for a whole nest."""
    assert found[setting]["collectives"][case] == collectives


@pytest.mark.parametrize("setting", SETTINGS)
def test_keras_builds_for_the_dtypes_of_the_data(found: Found, setting: str) -> None:
    seen = found[setting]["Keras"]
    assert seen[0] == {"image": "uint8", "count": "int32", "name": "string", "size": "float32"}
    assert all(one == seen[0] for one in seen)


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_case_has_a_test(found: Found, setting: str) -> None:
    tested = {case for case, _ in [*RESULTS, *REFUSED, *REFUSED_IN_A_GRAPH]}
    assert {case for case in found[setting]["results"] if ", axis=" not in case} == tested
