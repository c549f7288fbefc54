"""Iterators over data that nobody needs any more: they are deleted in the background.

Deleting one waits for the thread that tunes its pipeline.  That thread can miss that it is to end, and then
sleeps on, for about as long as the iterator has lived and at most a minute (TensorFlow 2.18 to 2.21: the
cancellation tells the thread before it is marked as cancelled).  In the main thread this would happen at the
beginning of an epoch, with every notice of the time unanswered: a preempted job was lost that way.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

__all__ = ["delete_in_background"]

THREAD_NAME = "tf_preempt-old-iterator"
# Whoever replaces an iterator has it for a moment longer, as in `iterator = handler.track(iter(data))`.
_OTHERS_WAIT_S = 10.0
_LOOK_S = 0.02
# To what is in a box: the box's, and the argument of getrefcount.
_OUR_REFERENCES = 2


def delete_in_background(box: list[Any]) -> None:
    """Lets go of iterators in a thread of its own, as soon as nobody else has them; returns at once.

    Args:
        box: holds them, or None; it is emptied.  The caller has no other reference to them, or drops it soon.
    """
    if any(one is not None for one in box):
        threading.Thread(target=_delete, args=(box,), name=THREAD_NAME, daemon=True).start()


def _delete(box: list[Any]) -> None:
    others = threading.Event()  # is never set: a pause that holds nobody up
    for _ in range(int(_OTHERS_WAIT_S / _LOOK_S)):
        if all(sys.getrefcount(box[index]) <= _OUR_REFERENCES for index in range(len(box))):
            break
        others.wait(_LOOK_S)
    box.clear()
