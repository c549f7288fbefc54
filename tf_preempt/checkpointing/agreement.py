"""Acting at the same boundary on all workers: the threads around the protocol of `rounds`.

The main thread pays for an attribute that it writes and one that it reads at each boundary.  Everything else
happens in a background thread, which answers the other workers.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Any

from tf_preempt.checkpointing.key_value import KeyValueStore
from tf_preempt.checkpointing.rounds import (
    Announce,
    Await,
    Decide,
    Decision,
    Hold,
    LookAround,
    Operation,
    ReadBoundary,
    Request,
    Rounds,
    Script,
    Write,
)
from tf_preempt.errors import CoordinationError

__all__ = ["Agreement", "Decision", "Request"]

# How much longer than for the other workers' reports the main thread waits for its own agreement thread,
# which has keys to write too.
_OWN_THREAD_MARGIN_S = 30.0


class Agreement:
    """One worker's part in agreeing on boundaries.

    The main thread calls `boundary` and `finish`; any background thread calls `request`; an own thread
    answers the other workers.

    Args:
        store: the store that all workers share.
        worker: index of this worker, from 0.
        workers: how many there are.
        prefix: under which all keys lie; the same on all workers, different for each use.
        report_timeout_s: how long to wait for the other workers' reports, in seconds.  When one is missing
            the worker is taken for lost: `boundary` raises.
        poll_s: how often the thread looks up from waiting, in seconds.
        on_claim: called in the background thread when a round was claimed and this worker has reported, and
            once more if the round serves a more urgent request than the claimed one.
        on_poll: called in the background thread about every `poll_s` seconds, and when a round was claimed;
            may call `request`.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        store: KeyValueStore,
        *,
        worker: int,
        workers: int,
        prefix: str,
        report_timeout_s: float = 60.0,
        poll_s: float = 0.5,
        on_claim: Callable[[Request], None] = lambda _: None,
        on_poll: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._report_timeout_s = report_timeout_s
        self._poll_s = poll_s
        self._on_claim = on_claim
        self._on_poll = on_poll
        self._thread = threading.Thread(target=self._run, name="tf_preempt-agreement", daemon=True)
        self._closed = threading.Event()
        # Read and written by the main thread at every boundary: plain attributes, no lock.
        self._at = 0
        self._hold = False
        self._awaited = ""  # the key that the agreement thread waits for; written by it alone
        # Everything below is guarded by the condition.
        self._changed = threading.Condition()
        self._rounds = Rounds(
            worker=worker, workers=workers, prefix=prefix, report_timeout_s=report_timeout_s, clock=clock
        )
        self._decision: Decision | None = None
        self._failure: CoordinationError | None = None

    @property
    def at(self) -> int:
        """The boundary at which the main thread is; 0 before the first."""
        return self._at

    def start(self) -> None:
        """Starts answering the other workers."""
        self._thread.start()

    def close(self) -> None:
        """Stops answering; may be called more than once and from any thread."""
        self._closed.set()
        with self._changed:
            self._changed.notify_all()
        if self._thread is threading.current_thread():
            return
        until = time.monotonic() + self._poll_s + 5.0
        while self._thread.is_alive() and time.monotonic() < until:
            self._store.wake(self._awaited)  # again and again: it may be just about to wait
            self._thread.join(0.05)

    # -------------------------------------------------------------------------------- main thread

    def boundary(self) -> Decision | None:
        """Counts one boundary; returns a decision if all workers act here.

        Raises:
            CoordinationError: another worker did not report in time, the chief is gone, or this worker's
                agreement thread has stopped.
        """
        return self._count(finished=False)

    def finish(self) -> Decision | None:
        """Counts the last boundary: training is over.  Returns the decision of a round that was under way.

        The agreed boundary of such a round may lie behind the last one: whoever reports from here has not
        seen it in time, and need not.

        Raises:
            CoordinationError: as `boundary`.
        """
        return self._count(finished=True)

    def _count(self, *, finished: bool) -> Decision | None:
        self._at += 1
        return self._wait_for_decision(finished=finished) if self._hold else None

    def _wait_for_decision(self, *, finished: bool) -> Decision | None:
        with self._changed:
            # The agreement thread ends the wait, as its waits for others have time-outs; unless it hangs.
            timeout_s = self._report_timeout_s + _OWN_THREAD_MARGIN_S
            if not self._changed.wait_for(self._is_answered, timeout_s):
                raise CoordinationError(
                    f"Boundary {self._at} was held for {timeout_s:g} s: this worker's agreement thread hangs."
                )
            if self._failure is not None:
                raise self._failure
            decision = self._decision
            if decision is None or not decision.acts_at(self._at, finished=finished):
                return None
            self._decision = None
            self._hold = False
            self._rounds.acted()
            self._changed.notify_all()
            return decision

    def _is_answered(self) -> bool:
        return self._decision is not None or self._failure is not None or self._closed.is_set()

    # -------------------------------------------------------------------------- background threads

    def request(self, request: Request) -> None:
        """Asks for a round; returns at once.  Call it from a background thread, not in a signal handler."""
        with self._changed:
            self._rounds.want(request)
        self._play(self._rounds.claim())

    def _run(self) -> None:
        try:
            self._play(self._rounds.serve())
        except BaseException as error:  # noqa: BLE001 - a main thread may be waiting: it has to hear of it
            self._fail(error)

    def _play(self, script: Script) -> None:
        """Performs a script's operations; the script itself runs under the lock, the operations do not."""
        proceed: Callable[[], Operation] = functools.partial(next, script)
        while not self._closed.is_set():
            with self._changed:
                try:
                    operation = proceed()
                except StopIteration:
                    return
            try:
                proceed = functools.partial(script.send, self._perform(operation))
            except CoordinationError as error:
                proceed = functools.partial(script.throw, error)

    def _perform(self, operation: Operation) -> Any:
        match operation:
            case Await(key, at_most_s):
                return self._await(key, self._poll_s if at_most_s is None else min(self._poll_s, at_most_s))
            case Write(key, value):
                self._store.set(key, value)
            case Hold():
                self._hold = True
            case ReadBoundary():
                return self._at
            case LookAround():
                self._on_poll()
            case Announce(request):
                self._on_claim(request)
            case Decide(decision):
                self._decide(decision)
        return None

    def _await(self, key: str, timeout_s: float) -> str | None:
        self._awaited = key
        try:
            return self._store.get(key, timeout_s)
        except TimeoutError:
            return None

    def _decide(self, decision: Decision) -> None:
        with self._changed:
            self._decision = decision
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._decision is None or self._closed.is_set())

    def _fail(self, error: BaseException) -> None:
        if not isinstance(error, CoordinationError):
            error = CoordinationError(f"The agreement thread has stopped: {type(error).__name__}: {error}")
        with self._changed:
            self._failure = error
            self._hold = True
            self._changed.notify_all()
