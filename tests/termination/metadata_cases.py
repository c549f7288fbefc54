"""What the tests of all clouds' watchers need: to wait for a notice, and to count what was logged."""

from __future__ import annotations

import select
from typing import Any

from tf_preempt.termination import TerminationNotice, TerminationWatcher

PATIENCE_S = 30.0


def notice_of(watcher: TerminationWatcher, timeout_s: float = PATIENCE_S) -> TerminationNotice:
    """Waits for the watcher's next notice as the monitor does."""
    fd = watcher.fileno()
    assert fd is not None
    assert select.select([fd], [], [], timeout_s)[0], f"no notice within {timeout_s} s"
    notice = watcher.poll()
    assert notice is not None
    return notice


def has_notice(watcher: TerminationWatcher) -> bool:
    """Says whether a notice is there now."""
    return bool(select.select([watcher.fileno()], [], [], 0)[0])


def warnings_of(caplog: Any) -> list[str]:
    """What was said at warning level or above."""
    return [record.getMessage() for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
