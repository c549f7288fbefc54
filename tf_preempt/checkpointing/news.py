"""Good news for the person at the terminal, which a warning would make sound bad and INFO would hide."""

from __future__ import annotations

import logging

_log = logging.getLogger("tf_preempt")


def say(message: str) -> None:
    """Says one line in one place: in the log where that shows INFO, else on standard output, as Keras does.

    Args:
        message: a sentence.
    """
    if _log.isEnabledFor(logging.INFO) and _log.hasHandlers():
        _log.info("%s", message)
    else:
        print(f"tf_preempt: {message}", flush=True)
