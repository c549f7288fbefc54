"""docs/exactness.md has every cell of the matrix, and names tests and warnings that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.exactness import matrix, table

ROOT = Path(__file__).parents[2]
PAGE = table.PAGE.read_text(encoding="utf-8")
NAMED_TESTS = sorted(set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE)))
QUOTED_WARNINGS = re.findall(r"^\| .* \| \"(.+?)\" \|", PAGE, re.MULTILINE)


def sources() -> str:
    """All texts of the package, with literals that are written in pieces put together."""
    found = []
    for path in sorted((ROOT / "tf_preempt").rglob("*.py")):
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        found += [
            node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
    return "\n".join(found)


def test_the_table_is_that_of_the_matrix() -> None:
    assert table.with_table(PAGE) == PAGE, "HINT: python -m tests.exactness.table"


@pytest.mark.parametrize("program", matrix.PROGRAMS)
def test_each_program_has_a_row_with_all_strategies(program: str) -> None:
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| {program} |")]
    marks = [mark.strip() for mark in row.strip("|").split("|")][1:]
    assert len(marks) == len(matrix.STRATEGIES)
    assert set(marks) <= {"always", "exhaustive"}


@pytest.mark.parametrize(("file", "test"), NAMED_TESTS)
def test_a_test_that_the_page_names_exists(file: str, test: str) -> None:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert not test or test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_the_page_names_tests() -> None:
    assert len(NAMED_TESTS) >= 10


def test_warnings_that_the_page_quotes_are_said() -> None:
    assert len(QUOTED_WARNINGS) >= 5
    said = sources()
    assert [warning for warning in QUOTED_WARNINGS if warning not in said] == []


def test_a_row_that_is_missing_is_noticed() -> None:
    without = "\n".join(line for line in PAGE.splitlines() if not line.startswith("| fine-tuning |")) + "\n"
    assert table.with_table(without) == PAGE != without
