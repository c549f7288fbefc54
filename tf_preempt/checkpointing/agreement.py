"""How all workers come to act at the same boundary: a small state machine that knows no TensorFlow.

Every worker counts *boundaries*: the places between executions at which it could save.  The sequence is the
same on all workers.  Somebody (a worker with a notice, or the chief when a periodic save is due) claims a
*round*; then

1. each worker's background thread first sets `hold`, then reads the boundary at which its main thread is,
   and reports it;
2. everybody computes the same *agreed boundary*: one more than the largest report.  Each main thread
   may be inside the execution that follows its report, and such an execution may need all workers
   (a collective), so all of them have to finish it;
3. a held main thread goes on while its boundary is below the agreed one, and acts at the agreed one.

Nobody can be past the agreed boundary: a main thread that has not seen `hold` yet was reported where it is,
and the next boundary holds it.  The main thread pays for an attribute that it writes and one that it reads.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import threading
import time
from collections.abc import Callable
from typing import Literal

from tf_preempt.checkpointing.key_value import KeyExistsError, KeyValueStore
from tf_preempt.errors import CoordinationError

_log = logging.getLogger("tf_preempt")

RequestKind = Literal["save", "notice", "leave"]
_RANKS: dict[RequestKind, int] = {"save": 0, "notice": 1, "leave": 2}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """Why a round is opened.

    Args:
        kind: ``"save"``: a periodic save; ``"notice"``: save now, and train on in the time that is left;
            ``"leave"``: save and leave.
        worker: index of the worker that asks.
        reason: for people, e.g. ``"SIGTERM"`` or ``"every 600 s"``.
        deadline_s: seconds left when the request was made, if the platform said.
    """

    kind: RequestKind
    worker: int
    reason: str
    deadline_s: float | None = None

    def to_json(self) -> str:
        """The request as the value of a key."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Request:
        """Reads what `to_json` wrote."""
        return cls(**json.loads(text))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decision:
    """What a round came to: everybody acts on `request` at boundary `boundary`."""

    boundary: int
    request: Request


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
        on_claim: called in the background thread when a round was claimed and this worker has reported.
        on_poll: called in the background thread about every `poll_s` seconds; may call `request`.
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
        self._worker = worker
        self._workers = workers
        self._prefix = prefix
        self._report_timeout_s = report_timeout_s
        self._poll_s = poll_s
        self._on_claim = on_claim
        self._on_poll = on_poll
        self._clock = clock
        self._thread = threading.Thread(target=self._run, name="tf_preempt-agreement", daemon=True)
        self._closed = threading.Event()
        # Read and written by the main thread at every boundary: plain attributes, no lock.
        self._at = 0
        self._hold = False
        # Everything below is guarded by the condition.
        self._changed = threading.Condition()
        self._round = 0
        self._wanted: list[Request] = []
        self._decision: Decision | None = None
        self._failure: CoordinationError | None = None
        self._finished = False

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
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(self._poll_s + 5.0)

    # -------------------------------------------------------------------------------- main thread

    def boundary(self) -> Decision | None:
        """Counts one boundary; returns a decision if all workers act here.

        Raises:
            CoordinationError: another worker did not report in time, or the chief is gone.
        """
        self._at += 1
        if not self._hold:
            return None
        return self._wait_for_decision()

    def finish(self) -> Decision | None:
        """Counts the last boundary: training is over.  Returns the decision of a round that was under way.

        Raises:
            CoordinationError: another worker did not report in time, or the chief is gone.
        """
        self._finished = True
        self._at += 1
        if not self._hold:
            return None
        return self._wait_for_decision()

    def _wait_for_decision(self) -> Decision | None:
        with self._changed:
            # The agreement thread always ends the wait: its own waits for others have time-outs.
            self._changed.wait_for(
                lambda: self._decision is not None or self._failure is not None or self._closed.is_set()
            )
            if self._failure is not None:
                raise self._failure
            decision = self._decision
            if decision is None or (self._at < decision.boundary and not self._finished):
                return None
            if self._at > decision.boundary:
                raise CoordinationError(
                    f"Worker {self._worker} is at boundary {self._at}, past the agreed {decision.boundary}: "
                    "its sequence of steps differs from the other workers'.",
                    hint="give all workers the same number of steps and the same callbacks",
                )
            self._decision = None
            self._hold = False
            self._round += 1
            self._changed.notify_all()
            return decision

    # -------------------------------------------------------------------------- background threads

    def request(self, request: Request) -> None:
        """Asks for a round; returns at once.  Call it from a background thread, not in a signal handler."""
        with self._changed:
            self._wanted.append(request)
            self._changed.notify_all()
        self._claim_if_wanted()

    def _claim_if_wanted(self) -> None:
        """Claims the current round for the oldest request of this worker, unless somebody has it already."""
        with self._changed:
            if not self._wanted or self._hold:
                return
            request, current = self._wanted[0], self._round
        try:
            self._store.set(self._key(f"round/{current}"), request.to_json())
        except KeyExistsError:
            pass  # somebody was faster; ours stays wanted until a round served it
        except CoordinationError as error:
            _log.warning("A round could not be opened: %s", error)

    def _run(self) -> None:
        try:
            self._serve()
        except Exception as error:  # noqa: BLE001 - a main thread may be waiting: it has to hear of it
            self._fail(error)

    def _serve(self) -> None:
        while not self._closed.is_set():
            try:
                claimed = self._store.get(self._key(f"round/{self._round}"), self._poll_s)
            except TimeoutError:
                self._on_poll()
                self._claim_if_wanted()
                continue
            self._settle(Request.from_json(claimed))
            self._wait_until_done()
            self._claim_if_wanted()

    def _settle(self, request: Request) -> None:
        self._hold = True  # before the report is read: from here on every boundary holds
        current = self._round
        self._store.set(self._key(f"round/{current}/at/{self._worker}"), str(self._at))
        self._on_claim(request)
        deadline = self._clock() + self._report_timeout_s
        reports = [self._report(current, worker, deadline) for worker in range(self._workers)]
        with self._changed:
            self._wanted = [wanted for wanted in self._wanted if not _serves(request, wanted)]
            self._decision = Decision(boundary=max(reports) + 1, request=request)
            self._changed.notify_all()

    def _report(self, current: int, worker: int, deadline: float) -> int:
        key = self._key(f"round/{current}/at/{worker}")
        while not self._closed.is_set():
            left = deadline - self._clock()
            if left <= 0:
                raise CoordinationError(
                    f"Worker {worker} did not say where it is within {self._report_timeout_s:g} s "
                    f"(round {current}); it is taken for lost."
                )
            try:
                return int(self._store.get(key, min(left, self._poll_s)))
            except TimeoutError:
                continue
        raise CoordinationError("Closed while a round was under way.")

    def _wait_until_done(self) -> None:
        """Waits until the main thread has acted: the next round must not begin before."""
        with self._changed:
            self._changed.wait_for(lambda: self._decision is None or self._closed.is_set())

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self._failure = error if isinstance(error, CoordinationError) else CoordinationError(str(error))
            self._hold = True
            self._changed.notify_all()

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}"


def _serves(settled: Request, wanted: Request) -> bool:
    """Says whether a settled round makes another request needless."""
    return _RANKS[settled.kind] >= _RANKS[wanted.kind]
