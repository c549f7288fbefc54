"""The table of docs/exactness.md, made of the matrix; ``python -m tests.exactness.table`` writes it."""

from __future__ import annotations

from pathlib import Path

from tests.exactness import matrix
from tests.exactness.matrix import Cell

PAGE = Path(__file__).parents[2] / "docs" / "exactness.md"
BEGIN, END = "<!-- made by tests/exactness/table.py -->\n", "<!-- end of what is made -->\n"

_HEADINGS = {
    "`model.fit`, one": matrix.FITS,
    "`model.fit` more than once, or beside `evaluate` and `predict`": matrix.SEVERAL,
    "A loop of your own, with `handler.track`": matrix.LOOPS,
}


def mark(cell: Cell) -> str:
    """How often a cell is tested."""
    return "always" if cell in matrix.SAMPLED_CELLS else "exhaustive"


def table() -> str:
    """The table in Markdown: a row for each program, a column for each strategy."""
    lines = [f"| program | {' | '.join(f'`{strategy}`' for strategy in matrix.STRATEGIES)} |"]
    lines.append("|" + "---|" * (len(matrix.STRATEGIES) + 1))
    for heading, programs in _HEADINGS.items():
        lines.append(f"| **{heading}** |" + " |" * len(matrix.STRATEGIES))
        for program in programs:
            marks = (mark(Cell(strategy, program)) for strategy in matrix.STRATEGIES)
            lines.append(f"| {program} | {' | '.join(marks)} |")
    return "\n".join(lines) + "\n"


def with_table(page: str) -> str:
    """The page with the table as it is now."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
