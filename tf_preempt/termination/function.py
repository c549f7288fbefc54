"""The user's own ``termination_watcher_fn`` as a source of notices."""

from __future__ import annotations

from collections.abc import Callable

from tf_preempt.termination.notice import TerminationNotice
from tf_preempt.termination.watcher import TerminationWatcher

SOURCE = "termination_watcher_fn"


class FunctionWatcher(TerminationWatcher):
    """Gives a notice when a function's answer turns true.

    TensorFlow's handler asks no more after the first True.  This watcher goes on asking, so that a function
    which says True, then False, then True gives a second notice; one that stays True gives one.

    Args:
        termination_watcher_fn: called about once a second, without arguments; says whether a notice is
            there.  It has to return at once: other sources wait for it.  What it raises is logged once and
            survived (see `TerminationMonitor`).
    """

    def __init__(self, termination_watcher_fn: Callable[[], bool]) -> None:
        self._fn = termination_watcher_fn
        self._was_true = False

    def poll(self) -> TerminationNotice | None:
        """Calls the function.

        Returns:
            A notice without a deadline if the answer is true and was not true before.

        Raises:
            Exception: whatever the function raises.
        """
        is_true = bool(self._fn())
        turned_true = is_true and not self._was_true
        self._was_true = is_true
        if not turned_true:
            return None
        name = getattr(self._fn, "__qualname__", repr(self._fn))
        return TerminationNotice(source=SOURCE, reason=f"{name} returned True", deadline=None)
