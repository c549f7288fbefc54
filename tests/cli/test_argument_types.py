import argparse

import pytest

from tf_preempt.cli.argument_types import count, exit_codes, seconds


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (count(0), "0", 0),
        (count(1), "17", 17),
        (seconds, "0", 0.0),
        (seconds, "1.5", 1.5),
        (seconds, "1e3", 1000.0),
        (exit_codes, "7", frozenset({7})),
        (exit_codes, "7, 8,7", frozenset({7, 8})),
    ],
)
def test_text_is_taken_for(parse, text, value):
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "texts"),
    [
        (count(1), ["0", "-1", "1.5", "two", ""]),
        (seconds, ["-1", "inf", "nan", "soon", ""]),
        (exit_codes, ["0", "256", "-1", "7,", "a", "", "7 8"]),
    ],
)
def test_wrong_text_is_shown(parse, texts):
    for text in texts:
        with pytest.raises(argparse.ArgumentTypeError, match=f"^{text!r} is not"):
            parse(text)
