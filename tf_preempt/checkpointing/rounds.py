"""The protocol by which all workers come to act at the same boundary, free of threads, stores and TensorFlow.

Every worker counts *boundaries*: the places between executions at which it could save.  The sequence is the
same on all workers.  Somebody (a worker with a notice, or the chief when a periodic save is due) claims a
*round*; then

1. each worker's background thread first holds its main thread, then reads the boundary at which that is,
   and reports it;
2. everybody computes the same *agreed boundary*: one more than the largest report.  Each main thread
   may be inside the execution that follows its report, and such an execution may need all workers
   (a collective), so all of them have to finish it;
3. a held main thread goes on while its boundary is below the agreed one, and acts at the agreed one.

Nobody can be past the agreed boundary: a main thread that was not held yet was reported where it is, and the
next boundary holds it.

The protocol is written as a script: a generator that yields one `Operation` at a time and is sent its result.
`Agreement` performs the operations with threads and a store; between two operations anything may happen on
any worker, and that is where tests put it.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Generator
from typing import Any, Literal, TypeAlias

from tf_preempt.checkpointing.key_value import KeyExistsError
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
    """Nothing is going on: give others the chance to ask for a round."""


@dataclasses.dataclass(frozen=True)
class Hold:
    """From now on every boundary holds the main thread until there is a decision."""


@dataclasses.dataclass(frozen=True)
class ReadBoundary:
    """Result: the boundary at which the main thread is."""


@dataclasses.dataclass(frozen=True)
class Announce:
    """A round has begun, and this worker has said where it is."""

    request: Request


@dataclasses.dataclass(frozen=True)
class Decide:
    """Tell the main thread what was agreed, and wait until it has acted."""

    decision: Decision


Operation: TypeAlias = Await | Write | LookAround | Hold | ReadBoundary | Announce | Decide
Script: TypeAlias = Generator[Operation, Any, None]


class Rounds:
    """One worker's rounds.  The scripts and methods of an object exclude each other between operations.

    Args:
        worker: index of this worker, from 0.
        workers: how many there are.
        prefix: under which all keys lie; the same on all workers, different for each use.
        report_timeout_s: how long to wait for the other workers' reports, in seconds.
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
        """Claims the next round for the oldest wish of this worker, unless somebody has it already."""
        if not self._wanted or self._is_open:
            return
        try:
            yield Write(self._key("claim"), self._wanted[0].to_json())
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
            if claimed is None:
                yield LookAround()
                yield from self.claim()
                continue
            yield from self._settle(Request.from_json(claimed))
            yield from self.claim()

    def _settle(self, request: Request) -> Script:
        self._is_open = True
        yield Hold()  # before the boundary is read: from here on every later one holds
        at = yield ReadBoundary()
        yield Write(self._key(f"at/{self._worker}"), str(at))
        yield Announce(request)
        agreed = 0
        deadline = self._clock() + self._report_timeout_s
        for worker in range(self._workers):
            agreed = max(agreed, (yield from self._report_of(worker, deadline)) + 1)
        self._wanted = [wanted for wanted in self._wanted if not _serves(request, wanted)]
        yield Decide(Decision(boundary=agreed, request=request))

    def _report_of(self, worker: int, deadline: float) -> Generator[Operation, Any, int]:
        key = self._key(f"at/{worker}")
        while (report := (yield Await(key, max(0.0, deadline - self._clock())))) is None:
            if self._clock() >= deadline:
                raise CoordinationError(
                    f"Worker {worker} did not say where it is within {self._report_timeout_s:g} s "
                    f"(round {self._round}); it is taken for lost."
                )
        return int(report)

    def _key(self, name: str) -> str:
        return f"{self._prefix}/round/{self._round}/{name}"


def _serves(settled: Request, wanted: Request) -> bool:
    """Says whether a settled round makes another request needless."""
    return _RANKS[settled.kind] >= _RANKS[wanted.kind]
