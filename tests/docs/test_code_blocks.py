"""The code in docs/ does what the pages say; and a page that says something else is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.docs import code_blocks

ROOT = Path(__file__).parents[2]
PAGES = [
    page
    for page in sorted((ROOT / "docs").glob("*.md"))
    if code_blocks.read_blocks(page.read_text(encoding="utf-8"), page.name)
]
BLOCK = "```python\n{}\n```\n"


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_page(page: Path, run_script: Any, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"  # pages make directories with tempfile.mkdtemp
    temporary.mkdir()
    environ = {
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_CONFIG": None,
        "TMPDIR": str(temporary),
    }
    ended = run_script(ROOT / "tests/docs/code_blocks.py", str(page), env=environ, timeout=200)
    assert ended.rc == 0, ended.stderr[-8000:]


def test_pages_with_code_are_found() -> None:
    assert ROOT / "docs/reduce.md" in PAGES


def run(text: str) -> None:
    code_blocks.run_blocks(code_blocks.read_blocks(text))


def test_blocks_share_their_names() -> None:
    run(BLOCK.format("x = 1") + "Prose.\n\n" + BLOCK.format("x += 1") + BLOCK.format(">>> x\n2"))


def test_names_of_a_doctest_are_kept() -> None:
    run(BLOCK.format(">>> x = 3") + BLOCK.format("if x != 3:\n    raise ValueError"))


@pytest.mark.parametrize("printed", ["1 2\n3", "1 2 3", "1 ... 3", "1 2\n\n3\n"])
def test_output_that_is_right(printed: str) -> None:
    run(BLOCK.format("print(1, 2)\nprint(3)") + f"\n```text\n{printed}\n```\n")


@pytest.mark.parametrize(
    "text",
    [
        BLOCK.format("print(1)") + "\n```text\n2\n```\n",
        BLOCK.format("print(1)") + "\n\n```text\n\n```\n",
        BLOCK.format("print(1)") + "\n```text\n1\n```\n" + BLOCK.format("pass") + "```text\n1\n```\n",
        BLOCK.format(">>> 1 + 1\n3"),
        "\n* in a list:\n\n  ```python\n  print(1)\n  ```\n\n  ```text\n  2\n  ```\n",
        "````python\nprint('```')\n````\n```text\n\n```\n",
    ],
)
def test_output_that_is_wrong(text: str) -> None:
    with pytest.raises(code_blocks.BadPageError, match=r"^page:\d+: "):
        run(text)


def test_text_that_is_not_output() -> None:
    run(BLOCK.format("print(1)") + "The directory looks like this:\n\n```text\na  b\n```\n")


def test_error_has_the_line_of_the_page() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        run("# Page\n\n" + BLOCK.format("x = 0\n1 / x"))
    assert (caught.traceback[-1].path, caught.traceback[-1].lineno + 1) == ("page", 5)


def test_block_that_is_not_run() -> None:
    text = "```python no-run: needs a TPU\n1 / 0\n```\n"
    assert code_blocks.read_blocks(text) == []


@pytest.mark.parametrize("info", ["python no-run", "python no-run:", "python norun: why", "python skip"])
def test_block_that_is_not_run_without_a_reason(info: str) -> None:
    with pytest.raises(
        code_blocks.BadPageError, match=r"page:1: .*expected 'python' or 'python no-run: REASON'"
    ):
        code_blocks.read_blocks(f"```{info}\n1 / 0\n```\n")


@pytest.mark.parametrize("language", ["", "bash", "text", "json", "pythonic"])
def test_block_of_another_language(language: str) -> None:
    assert code_blocks.read_blocks(f"```{language}\n1 / 0\n```\n") == []


def test_block_without_an_end() -> None:
    with pytest.raises(code_blocks.BadPageError, match="page:2: this block has no end"):
        code_blocks.read_blocks("\n```python\nx = 1\n")
