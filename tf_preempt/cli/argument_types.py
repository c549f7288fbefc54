"""Types of command line arguments, for argparse: each takes the text and says what it should have been."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

__all__ = ["count", "exit_codes", "seconds"]


def count(minimum: int) -> Callable[[str], int]:
    """Makes a type for whole numbers of `minimum` or more."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = minimum - 1
        if value < minimum:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of {minimum} or more")
        return value

    return parse


def seconds(text: str) -> float:
    """A number of seconds, 0 or more.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, 0 or more")
    return value


def exit_codes(text: str) -> frozenset[int]:
    """Exit statuses from 1 to 255, separated by commas.

    Raises:
        argparse.ArgumentTypeError: one of them is none.
    """
    try:
        codes = frozenset(int(part) for part in text.split(","))
    except ValueError:
        codes = frozenset({0})
    if not all(1 <= code <= 255 for code in codes):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list like 7,8 of exit statuses from 1 to 255")
    return codes
