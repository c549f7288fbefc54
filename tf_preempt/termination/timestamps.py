"""Points in time as metadata servers write them."""

from __future__ import annotations

import datetime
import email.utils
import re

__all__ = ["parse_http_date", "parse_rfc3339"]


def parse_rfc3339(text: str) -> float:
    """Seconds since the epoch of ``2017-09-18T08:22:00Z`` or the like; fractions of seconds are cut off.

    Raises:
        ValueError: it is no such time.
    """
    # Python 3.10 reads neither a Z nor nine digits behind the point.
    plain = re.sub(r"\.\d+", "", text.strip()).replace("Z", "+00:00")
    return _seconds(datetime.datetime.fromisoformat(plain))


def parse_http_date(text: str) -> float:
    """Seconds since the epoch of ``Mon, 19 Sep 2016 18:29:47 GMT``, with or without the day of the week.

    Raises:
        ValueError: it is no such time.
    """
    try:
        return _seconds(email.utils.parsedate_to_datetime(text))
    except TypeError as error:  # Python 3.10's way to say that there is no date in it
        raise ValueError(f"no date: {text!r}") from error


def _seconds(when: datetime.datetime) -> float:
    return (when if when.tzinfo else when.replace(tzinfo=datetime.timezone.utc)).timestamp()
