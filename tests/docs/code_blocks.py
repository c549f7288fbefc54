"""Runs the Python blocks of a Markdown page, and compares what they print with what the page says.

Usage: code_blocks.py PAGE.  All blocks of a page share their names, in a process with two logical CPUs.

* A block that starts with three backticks and ``python`` runs.  If a ``text`` block comes next, with nothing
  but empty lines between, it is what the block prints.
* A block with ``>>>`` runs as a doctest, with what it says that it prints.
* In both, ``...`` stands for anything, and spaces and line breaks count as equal.
* ``python no-run: REASON`` does not run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import doctest
import io
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_FENCE = re.compile(r"(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<info>[^`]*)")
_LANGUAGES = ("python", "pycon", "py")
_NO_RUN = re.compile(r"no-run: \S.*")
_COMPARISON = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class BadPageError(Exception):
    """A page cannot be read, or a block does not do what the page says; the message begins with where."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
    """One block of code.

    Args:
        line: number of its first line in the page, from 1.
        source: the code, without the indentation of the block.
        prints: what the page says that it prints; None if it says nothing.
    """

    line: int
    source: str
    prints: str | None = None

    @property
    def is_doctest(self) -> bool:
        return self.source.lstrip().startswith(">>> ")


def read_blocks(text: str, page: str = "page") -> list[Block]:
    """The Python blocks of a page that are to run, in order.

    Raises:
        BadPageError: a block has no end, or has words after its language other than ``no-run: REASON``.
    """
    blocks: list[Block] = []
    last_end: int | None = None  # of a block that ran last, as long as nothing else came after it
    lines = text.splitlines()
    for start, end, info, source in _fenced(lines, page):
        language, _, words = info.partition(" ")
        between = "".join(lines[last_end + 1 : start]).strip() if last_end is not None else "no block"
        if language == "text" and not between:
            blocks[-1] = dataclasses.replace(blocks[-1], prints=source)
        last_end = None
        if language not in _LANGUAGES or _NO_RUN.fullmatch(words):
            continue
        if words:
            raise BadPageError(f"{page}:{start + 1}: {info!r}: expected 'python' or 'python no-run: REASON'")
        blocks.append(Block(line=start + 2, source=source))
        last_end = end
    return blocks


def _fenced(lines: list[str], page: str) -> Iterator[tuple[int, int, str, str]]:
    """Indices of the first and last line, words after the backticks, and content of each fenced block."""
    start: int | None = None
    opening: re.Match[str] | None = None
    for number, line in enumerate(lines):
        found = _FENCE.fullmatch(line.rstrip())
        if start is None or opening is None:
            if found:
                start, opening = number, found
        elif found and not found["info"] and found["fence"].startswith(opening["fence"]):
            content = textwrap.dedent("\n".join(lines[start + 1 : number]) + "\n")
            yield start, number, opening["info"].strip(), content
            start = None
    if start is not None:
        raise BadPageError(f"{page}:{start + 1}: this block has no end")


def run_blocks(blocks: list[Block], page: str = "page") -> None:
    """Runs blocks one after the other, all with the same global names.

    Raises:
        BadPageError: a block prints something else than the page says.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks:
        run = _run_doctest if block.is_doctest else _run_program
        run(block, names, page)


def _run_program(block: Block, names: dict[str, Any], page: str) -> None:
    # Empty lines before it, so that tracebacks have the page's line numbers.
    code = compile("\n" * (block.line - 1) + block.source, page, "exec")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, names)
    if block.prints is None:
        return
    if not doctest.OutputChecker().check_output(block.prints, printed.getvalue(), _COMPARISON):
        raise BadPageError(
            f"{page}:{block.line}: this block prints\n{printed.getvalue()}\nand the page says\n{block.prints}"
        )


def _run_doctest(block: Block, names: dict[str, Any], page: str) -> None:
    test = doctest.DocTestParser().get_doctest(block.source, names, page, page, block.line - 1)
    test.globs = names  # get_doctest gives it a copy
    report = io.StringIO()
    failed, _ = doctest.DocTestRunner(optionflags=_COMPARISON, verbose=False).run(
        test, out=report.write, clear_globs=False
    )
    if failed:
        raise BadPageError(f"{page}:{block.line}: {report.getvalue()}")


def main() -> None:
    import tensorflow as tf

    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    page = Path(sys.argv[1])
    run_blocks(read_blocks(page.read_text(encoding="utf-8"), str(page)), str(page))


if __name__ == "__main__":
    main()
