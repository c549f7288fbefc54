"""Interrupted at any moment, under any strategy, a program ends with every bit of its undisturbed life.

A *cell* is a program of `programs` under a strategy.  Normal runs interrupt some of them, each in
another way; `make test-exhaustive` interrupts all, under the default strategy at all moments, under the
others at a third of them, which is another third for another program.  docs/exactness.md has the table.
"""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.exactness import matrix
from tests.exactness.matrix import Cell

pytestmark = pytest.mark.timeout(600)  # the first test of a strategy waits for all its runs


class Runs:
    """Runs all sampled cells of a strategy when one of them is asked for first."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._ran: dict[str, str] = {}

    def outcomes(self, cell: Cell) -> list[dict[str, Any]]:
        if cell.strategy not in self._ran:
            self._ran[cell.strategy] = "failed"
            cells = [one for one in matrix.SAMPLED_CELLS if one.strategy == cell.strategy]
            matrix.run(self._root, cells, "some")
            self._ran[cell.strategy] = "ran"
        return matrix.outcomes(self._root, cell)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("sample"))


def check(found: list[dict[str, Any]], cell: Cell) -> None:
    assert len(found) == (2 if cell.strategy == "multi_worker" else 1), "the run of this cell failed"
    for outcomes in found:
        assert len(outcomes["undisturbed"]["seen"]) >= 8
        assert len(outcomes) >= 3
        assert matrix.problems(outcomes, cell) == []


@pytest.mark.parametrize("cell", matrix.SAMPLED_CELLS, ids=str)
def test_cell(sample: Runs, cell: Cell) -> None:
    check(sample.outcomes(cell), cell)


@pytest.mark.exhaustive
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("program", matrix.PROGRAMS)
def test_many_moments(tmp_path: Path, program: str) -> None:
    cells = [Cell(strategy, program) for strategy in matrix.STRATEGIES]
    with ThreadPoolExecutor(len(cells)) as pool:
        runs = [
            pool.submit(matrix.run, tmp_path, [cell], matrix.LONG_SHARES[cell.strategy], timeout_s=1100)
            for cell in cells
        ]
    for run in runs:
        run.result()
    for cell in cells:
        check(matrix.outcomes(tmp_path, cell), cell)


def outcome(**changes: Any) -> dict[str, Any]:
    made = {
        "ended": True,
        "lives": 2,
        "seen": ["step 0 {}", "step 1 {}"],
        "histories": [[[0], {"loss": [0.5]}]],
        "variables": {"0 kernel 0": "float32(1,) ab"},
    }
    return {**made, **changes}


@pytest.mark.parametrize(
    ("way", "changes", "found"),
    [
        ("told at x", {}, []),
        ("told at x", {"ended": False}, ["told at x: did not end in 2 lives"]),
        ("told at x", {"histories": [[[0], {"loss": [0.25]}]]}, ["told at x: histories differ"]),
        ("told at x", {"variables": {"0 kernel 0": "cd"}}, ["told at x: variables differ (['0 kernel 0'])"]),
        ("told at x", {"variables": {}}, ["told at x: variables differ (['0 kernel 0'])"]),
        (
            "told at x",
            {"seen": ["step 0 {}", "step 0 {}", "step 1 {}"]},
            ["told at x: saw ['step 0 {}'] in place of ['step 1 {}']"],
        ),
        ("told at x", {"seen": ["step 0 {}"]}, ["told at x: saw [] in place of ['step 1 {}']"]),
        ("killed at x", {"seen": ["step 0 {}", "step 0 {}", "step 1 {}"]}, []),
        (
            "killed at x",
            {"seen": ["step 0 {}", "step 1 {'loss': 2}"]},
            ["killed at x: saw [\"step 1 {'loss': 2}\"] in place of ['step 1 {}']"],
        ),
        (
            "told while saving",
            {"lives": 1},
            ["told while saving: was interrupted less often than it should be: 1 lives, not 2"],
        ),
        ("told after every step", {"lives": 6}, []),
        ("started again", {"seen": []}, []),
        ("started again", {}, ["started again: saw step 0 {} again"]),
    ],
)
def test_what_differs_is_found(way: str, changes: dict[str, Any], found: list[str]) -> None:
    assert matrix.problems({"undisturbed": outcome(), way: copy.deepcopy(outcome(**changes))}) == found


@pytest.mark.parametrize(
    ("cell", "changes", "found"),
    [
        (Cell("multi_worker", "known length"), {"lives": 3}, []),
        (
            Cell("multi_worker", "known length"),
            {"lives": 2},
            ["told after every step: was interrupted less often than it should be: 2 lives, not 3"],
        ),
        (Cell("mirrored", "unknown length"), {"lives": 6, "variables": {"5 adam/iteration 1": "9"}}, []),
        (
            Cell("mirrored", "known length"),
            {"lives": 6, "variables": {"5 adam/iteration 1": "9"}},
            ["told after every step: variables differ (['5 adam/iteration 1'])"],
        ),
    ],
)
def test_what_may_differ_under_a_strategy(cell: Cell, changes: dict[str, Any], found: list[str]) -> None:
    whole = outcome(variables={"5 adam/iteration 1": "10"})
    assert (
        matrix.problems({"undisturbed": whole, "told after every step": {**whole, **changes}}, cell) == found
    )


def test_the_matrix_has_every_program() -> None:
    from tests.exactness.programs import PROGRAMS

    assert tuple(PROGRAMS) == matrix.PROGRAMS


def test_every_strategy_is_sampled_in_every_kind_of_program() -> None:
    for kind in (matrix.FITS, matrix.SEVERAL, matrix.LOOPS):
        assert {cell.strategy for cell in matrix.SAMPLED_CELLS if cell.program in kind} == set(
            matrix.STRATEGIES
        )
