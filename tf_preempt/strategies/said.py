"""Warnings that come once in a process."""

from __future__ import annotations

import logging

_log = logging.getLogger("tf_preempt")
_said: set[str] = set()


def warn_once(message: str) -> None:
    """Logs a warning, unless the very same one was logged before.

    Args:
        message: cause and cure; the same text each time.
    """
    if message not in _said:
        _said.add(message)
        _log.warning(message)
