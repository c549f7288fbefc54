from __future__ import annotations

import pytest

from tf_preempt import errors
from tf_preempt.strategies.sharding.exchange import ROW_BYTES, packed, unpacked


@pytest.mark.parametrize("text", ["", "a", "größer \u2713", '{"a": [1, null]}', "x" * ROW_BYTES])
def test_text_survives_as_numbers(text: str) -> None:
    row = packed(text)
    assert row.shape == (ROW_BYTES // 8,)
    assert unpacked(row) == text


def test_too_long_a_text_is_refused() -> None:
    with pytest.raises(errors.ConfigError, match="4097 bytes are to be sent"):
        packed("x" * (ROW_BYTES + 1))
