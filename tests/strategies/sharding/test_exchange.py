from __future__ import annotations

import json
import re

import pytest

from tf_preempt import errors
from tf_preempt.strategies.sharding.exchange import ROW_BYTES, check_complete, packed, shortened, unpacked


@pytest.mark.parametrize("text", ["", "a", "größer \u2713", '{"a": [1, null]}', "x" * ROW_BYTES])
def test_text_survives_as_numbers(text: str) -> None:
    row = packed(text)
    assert row.shape == (ROW_BYTES // 8,)
    assert unpacked(row) == text
    check_complete([unpacked(row)])


def test_what_utf_8_cannot_hold_is_sent_as_escapes() -> None:
    assert unpacked(packed("file-\udcff")) == "file-\\udcff"


@pytest.mark.parametrize(("text", "size"), [("x" * 4097, 4097), ("\u2713" * 1366, 4098)])
def test_too_long_a_text_is_refused_by_all_who_hear_of_it(text: str, size: int) -> None:
    heard = [unpacked(packed("short")), unpacked(packed(text))]
    with pytest.raises(errors.ConfigError, match=f"worker 1 has {size} bytes(?s:.*)HINT: "):
        check_complete(heard)


@pytest.mark.parametrize("text", ["", "größer", "x" * 100, "\u2713" * 33, '"' * 50])
def test_what_fits_is_not_shortened(text: str) -> None:
    assert shortened(text, 100) == text


@pytest.mark.parametrize("character", ["x", "ö", "\u2713", "\U0001f600", '"', "\n", "\x01", "\udcff"])
def test_long_texts_fit_in_bytes_and_still_differ(character: str) -> None:
    first, second = (shortened(character * 200 + last, 100) for last in "ab")
    for one in (first, second):
        assert len(json.dumps(one, ensure_ascii=False).encode()) <= 100 + len('""')
        assert re.search(r"\.\.\. \([0-9a-f]{8}\)$", one)
    assert first != second
