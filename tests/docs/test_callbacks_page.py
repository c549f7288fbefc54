"""The tests that docs/callbacks.md names exist, and there is one for each row."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = [
    line
    for line in (ROOT / "docs/callbacks.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith(("| callback ", "| drawn by "))
]


def test_rows_are_found() -> None:
    assert len(ROWS) > 25


@pytest.mark.parametrize("row", ROWS, ids=[row.split("|")[1].strip(" `")[:40] for row in ROWS])
def test_row_names_a_test(row: str) -> None:
    named = re.fullmatch(r"`(tests/\S+\.py)::(test_\w+)`", row.split("|")[-2].strip())
    assert named is not None, row
    source = (ROOT / named[1]).read_text(encoding="utf-8")
    assert f"def {named[2]}(" in source, row
