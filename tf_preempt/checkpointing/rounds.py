"""The protocol by which all workers come to act at the same boundary, free of threads, stores and TensorFlow.

Every worker counts *boundaries*: the places between executions at which it could save.  The sequence is the
same on all workers.  Somebody (a worker with a notice, or the chief when a periodic save is due) claims a
*round*; then

1. each worker's background thread first holds its main thread, then reads the boundary at which that is,
   and reports it, with what it wants itself;
2. the chief reads all reports and tells the others what they came to: the most urgent request (several
   workers may have a deadline, and the earliest counts) and the *agreed boundary*, one more than the largest
   report.  Each main thread may be inside the execution that follows its report, and such an execution may
   need all workers (a collective), so all of them have to finish it;
3. a held main thread goes on while its boundary is below the agreed one, and acts at the agreed one.

Nobody can be past the agreed boundary: a main thread that was not held yet was reported where it is, and the
next boundary holds it.

One worker reads the reports, not each of them: the number of messages grows with the workers, not with their
square (a million reads at 1,000 workers, 0.35 ms each in the service that answers them).  It is the chief, in
whose process the service lives; without it there is no agreement anyhow.

The protocol is written as a script: a generator that yields one `Operation` at a time and is sent its result.
`Agreement` performs the operations with threads and a store; between two operations anything may happen on
any worker, and that is where tests put it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import math
from collections.abc import Callable, Generator
from typing import Any, Literal, TypeAlias

from tf_preempt.checkpointing.key_value import KeyExistsError
from tf_preempt.errors import CoordinationError

_log = logging.getLogger("tf_preempt")

RequestKind = Literal["save", "notice", "leave"]
_RANKS: dict[RequestKind, int] = {"save": 0, "notice": 1, "leave": 2}
_CHIEF = 0
_FAILED = "failed: "
# How much longer than the chief for the reports the others wait for what it says: it may begin later.
_ANSWER_MARGIN_S = 10.0


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

    def acts_at(self, at: int, *, finished: bool) -> bool:
        """Says whether a main thread acts at its boundary `at`; it goes on otherwise.

        Args:
            at: where it is.
            finished: there is no later boundary.

        Raises:
            CoordinationError: it is past the agreed boundary.
        """
        if at > self.boundary:
            raise CoordinationError(
                f"A worker is at boundary {at}, past the agreed {self.boundary}: its sequence of steps "
                "differs from the other workers'.",
                hint="give all workers the same number of steps and the same callbacks",
            )
        return finished or at == self.boundary


@dataclasses.dataclass(frozen=True)
class Await:
    """Wait for a key.  Result: its value, or None when it is time to look up (or not there in time)."""

    key: str
    at_most_s: float | None = None


@dataclasses.dataclass(frozen=True)
class Write:
    """Write a key.  Raises into the script what the store raises."""

    key: str
    value: str


@dataclasses.dataclass(frozen=True)
class LookAround:
    """A wait for a round is over: give others the chance to ask for what has become due."""


@dataclasses.dataclass(frozen=True)
class Hold:
    """From now on every boundary holds the main thread until there is a decision."""


@dataclasses.dataclass(frozen=True)
class ReadBoundary:
    """Result: the boundary at which the main thread is."""


@dataclasses.dataclass(frozen=True)
class Announce:
    """A round has begun, and this worker has said where it is; or it will serve a more urgent request."""

    request: Request


@dataclasses.dataclass(frozen=True)
class Decide:
    """Tell the main thread what was agreed, and wait until it has acted."""

    decision: Decision


Operation: TypeAlias = Await | Write | LookAround | Hold | ReadBoundary | Announce | Decide
Script: TypeAlias = Generator[Operation, Any, None]


@dataclasses.dataclass(frozen=True)
class _Message:
    """A report, or what was agreed: a boundary, and what is wanted there."""

    boundary: int
    request: Request

    def to_text(self) -> str:
        return f"{self.boundary} {self.request.to_json()}"

    @classmethod
    def from_text(cls, text: str) -> _Message:
        boundary, _, request = text.partition(" ")
        return cls(int(boundary), Request.from_json(request))


class Rounds:
    """One worker's rounds.  The scripts and methods of an object exclude each other between operations.

    Args:
        worker: index of this worker, from 0.
        workers: how many there are.
        prefix: under which all keys lie; the same on all workers, different for each use.
        report_timeout_s: how long the chief waits for the other workers' reports, in seconds; the others wait
            ten seconds longer for what it says.
        clock: monotonic seconds.
    """

    def __init__(
        self, *, worker: int, workers: int, prefix: str, report_timeout_s: float, clock: Callable[[], float]
    ) -> None:
        self._worker = worker
        self._workers = workers
        self._prefix = prefix
        self._report_timeout_s = report_timeout_s
        self._clock = clock
        self._round = 0
        self._is_open = False
        self._wanted: list[Request] = []

    def want(self, request: Request) -> None:
        """Notes that a round is wanted; it stays wanted until one has served it."""
        self._wanted.append(request)

    def acted(self) -> None:
        """The main thread has acted: the next round may begin."""
        self._round += 1
        self._is_open = False

    def claim(self) -> Script:
        """Claims the next round for the most urgent wish of this worker, unless somebody has it already."""
        if not self._wanted or self._is_open:
            return
        try:
            yield Write(self._key("claim"), _most_urgent(self._wanted).to_json())
        except KeyExistsError:
            pass  # somebody was faster; ours stays wanted until a round served it
        except CoordinationError as error:
            _log.warning("A round could not be opened: %s", error)

    def serve(self) -> Script:
        """Answers claims, round after round, for ever.

        Raises:
            CoordinationError: another worker did not report in time, or the store failed.
        """
        while True:
            claimed = yield Await(self._key("claim"))
            yield LookAround()
            if claimed is not None:
                yield from self._settle(Request.from_json(claimed))
            yield from self.claim()

    def _settle(self, request: Request) -> Script:
        self._is_open = True
        yield Hold()  # before the boundary is read: from here on every later one holds
        at = yield ReadBoundary()
        report = _Message(at, _most_urgent([request, *self._wanted]))
        yield Write(self._key(f"at/{self._worker}"), report.to_text())
        yield Announce(request)
        deadline = self._clock() + self._report_timeout_s
        agreed = yield from (self._gather(deadline) if self._worker == _CHIEF else self._hear(deadline))
        if agreed.request != request:
            yield Announce(agreed.request)
        self._wanted = [wanted for wanted in self._wanted if not _serves(agreed.request, wanted)]
        yield Decide(Decision(boundary=agreed.boundary, request=agreed.request))

    def _gather(self, deadline: float) -> Generator[Operation, Any, _Message]:
        reports = []
        try:
            for worker in range(self._workers):
                reports.append((yield from self._report_of(worker, deadline)))
        except CoordinationError as error:
            with contextlib.suppress(CoordinationError):
                yield Write(self._key("agreed"), f"{_FAILED}{error}")
            raise
        agreed = _Message(
            max(report.boundary for report in reports) + 1,
            _most_urgent([report.request for report in reports]),
        )
        yield Write(self._key("agreed"), agreed.to_text())
        return agreed

    def _report_of(self, worker: int, deadline: float) -> Generator[Operation, Any, _Message]:
        report = yield from self._value_of(f"at/{worker}", deadline)
        if report is None:
            raise CoordinationError(
                f"Worker {worker} did not say where it is within {self._report_timeout_s:g} s "
                f"(round {self._round}); it is taken for lost."
            )
        return _Message.from_text(report)

    def _hear(self, deadline: float) -> Generator[Operation, Any, _Message]:
        answer = yield from self._value_of("agreed", deadline + _ANSWER_MARGIN_S)
        if answer is None:
            timeout_s = self._report_timeout_s + _ANSWER_MARGIN_S
            raise CoordinationError(
                f"The chief did not say what was agreed within {timeout_s:g} s (round {self._round}); "
                "it is taken for lost."
            )
        if answer.startswith(_FAILED):
            raise CoordinationError(f"The chief says: {answer.removeprefix(_FAILED)}")
        return _Message.from_text(answer)

    def _value_of(self, name: str, deadline: float) -> Generator[Operation, Any, str | None]:
        """The value of a key of this round; None if it is not there at `deadline`."""
        while (value := (yield Await(self._key(name), max(0.0, deadline - self._clock())))) is None:
            if self._clock() >= deadline:
                return None
        return str(value)

    def _key(self, name: str) -> str:
        return f"{self._prefix}/round/{self._round}/{name}"


def _serves(settled: Request, wanted: Request) -> bool:
    """Says whether a settled round makes another request needless."""
    return _RANKS[settled.kind] >= _RANKS[wanted.kind]


def _most_urgent(requests: list[Request]) -> Request:
    """What does most; of several that do as much, the one with the earliest deadline."""

    def urgency(request: Request) -> tuple[int, float]:
        return _RANKS[request.kind], -math.inf if request.deadline_s is None else -request.deadline_s

    return max(requests, key=urgency)
