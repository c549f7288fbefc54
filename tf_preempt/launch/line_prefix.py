"""Puts a name in front of each line of a worker's output, so that several can share a terminal.

A progress bar rewrites its line with carriage returns.  Two of them would overwrite each other, and every
state of them on a line of its own would drown the rest; so of a rewritten line the last state is shown, and
while it is being rewritten, one state now and then.
"""

from __future__ import annotations

__all__ = ["LinePrefixer"]

# A line longer than this is shown in pieces: something that never ends its line must not fill the memory.
_MAX_LINE_BYTES = 64 * 1024


class LinePrefixer:
    r"""Turns chunks of output, cut anywhere, into whole lines with a prefix.

    Example::

        prefixer = LinePrefixer(b"[worker 1] ")
        prefixer.feed(b"loss: 0.2\naccu")    # b"[worker 1] loss: 0.2\n"
        prefixer.feed(b"racy: 0.9")          # b""
        prefixer.finish()                    # b"[worker 1] accuracy: 0.9\n"

    Args:
        prefix: what to put in front.
    """

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self._pending = b""
        self._progress_was_shown = False

    def feed(self, chunk: bytes) -> bytes:
        """Takes the next piece of output and gives the lines that it completes, prefixed."""
        *lines, self._pending = (self._pending + chunk).split(b"\n")
        if lines and self._progress_was_shown:
            self._progress_was_shown = False
            if not _last_state(lines[0]):
                del lines[0]  # the end of a line whose last state has been shown
        shown = [self._show(line) for line in lines]
        if b"\r" in self._pending:
            self._pending = _without_overwritten(self._pending)
        while len(self._pending) > _MAX_LINE_BYTES:
            shown.append(self._show(self._pending[:_MAX_LINE_BYTES]))
            self._pending = self._pending[_MAX_LINE_BYTES:]
        return b"".join(shown)

    def show_progress(self) -> bytes:
        """The present state of a line that is being rewritten; nothing if there is none or it was shown.

        To be called about once a second.  A line that is merely incomplete is not torn apart for this.
        """
        if b"\r" not in self._pending:
            return b""
        if not _last_state(self._pending):
            return b""
        shown = self._show(self._pending)
        self._progress_was_shown = True
        # The carriage return stays: what follows rewrites this line too.
        self._pending = b"\r"
        return shown

    def finish(self) -> bytes:
        """The last line, if the output did not end with a line's end."""
        shown = self._show(self._pending) if self._pending.strip(b"\r") else b""
        self._pending = b""
        return shown

    def _show(self, line: bytes) -> bytes:
        return self._prefix + _last_state(line) + b"\n"


def _last_state(line: bytes) -> bytes:
    r"""What is to be seen of a line: some write the carriage return before the text, some behind it."""
    return next((state for state in reversed(line.split(b"\r")) if state), b"")


def _without_overwritten(line: bytes) -> bytes:
    r"""The last complete state and what follows it, which may be all that is to be seen."""
    head, _, tail = line.rpartition(b"\r")
    return _last_state(head) + b"\r" + tail
