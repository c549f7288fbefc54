"""The tasks of a cluster meet: each listens at its own address and calls all others.

What is said, one line of JSON in each direction on a connection of its own::

    {"tf_preempt_doctor": 1, "rank": 1, "name": "worker 1", ...}      the caller's greeting, then the other's

A greeting tells that whoever listens there is the task that the cluster's description names, and carries what
the tasks have to tell each other.  After that, all but the first call the first once more to report what they
have seen, so that the first knows when nobody needs its files any longer.

Tasks do not start in the same moment: who is not there yet is called again until a time-out.  Listening is on
all interfaces, as TensorFlow's server does, so that a port that is taken for it is taken here too.
"""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import json
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tf_preempt.cli.doctor.place import Member

__all__ = ["Outcome", "meet"]

_KEY = "tf_preempt_doctor"
_FORMAT = 1
_LINE_BYTES = 1 << 20
_CALLS_AT_ONCE = 64
_CALL_TIMEOUT_S = 5.0
_PAUSE_S = 0.2

Greeting = Mapping[str, Any]


@dataclasses.dataclass(kw_only=True)
class Outcome:
    """What came of a meeting, seen from one task.

    Args:
        port_problem: why this task could not listen at its port; None if it could.
        problems: what went wrong with the calls to each task that was not reached, by rank.
        greetings: what the tasks that were reached have said, by rank.
        callers: ranks of the tasks that have called this one.
        reports: what they have reported, by rank; only the first task gets any.
        is_reported: whether the first task has taken this one's report.
    """

    port_problem: OSError | None = None
    problems: dict[int, str] = dataclasses.field(default_factory=dict)
    greetings: dict[int, Greeting] = dataclasses.field(default_factory=dict)
    callers: set[int] = dataclasses.field(default_factory=set)
    reports: dict[int, Greeting] = dataclasses.field(default_factory=dict)
    is_reported: bool = False


def meet(
    members: Sequence[Member],
    rank: int,
    greeting: Greeting,
    *,
    timeout_s: float,
    report: Callable[[Outcome], Greeting],
) -> Outcome:
    """Meets the other tasks.

    Args:
        members: all tasks.
        rank: which of them this process is.
        greeting: what this task tells the others; anything that JSON knows.
        timeout_s: for how many seconds at most others are waited for; their reports may take as long again.
        report: called once when all have met or the time is over, but not in the first task; says what the
            first is to be told.

    Returns:
        What came of it; no error of the network is raised.
    """
    return asyncio.run(_Meeting(members, rank, greeting, timeout_s).hold(report))


class _Meeting:
    def __init__(self, members: Sequence[Member], rank: int, greeting: Greeting, timeout_s: float) -> None:
        self._members = members
        self._rank = rank
        self._greeting = {_KEY: _FORMAT, **greeting, "rank": rank, "name": members[rank].name}
        self._timeout_s = timeout_s
        self._others = {other for other in range(len(members)) if other != rank}
        self._outcome = Outcome()
        self._changed = asyncio.Event()

    async def hold(self, report: Callable[[Outcome], Greeting]) -> Outcome:
        outcome = self._outcome
        try:
            server = await asyncio.start_server(
                self._answer, sock=_listening_socket(self._members[self._rank]), limit=_LINE_BYTES
            )
        except OSError as error:
            outcome.port_problem = error
            server = None
        try:
            called = self._until(self._all_have_called) if server is not None else asyncio.sleep(0)
            await asyncio.gather(self._call_all(), called)
            if self._rank != 0:
                await self._report(await asyncio.to_thread(report, outcome))
            elif server is not None:
                await self._until(lambda: outcome.callers <= outcome.reports.keys())
        finally:
            if server is not None:
                server.close()
        return outcome

    def _all_have_called(self) -> bool:
        return self._others <= self._outcome.callers

    async def _until(self, is_true: Callable[[], bool]) -> None:
        """Waits until something is true that a caller can make so, or the time is over."""
        end = self._now() + self._timeout_s
        while not is_true() and (left := end - self._now()) > 0:
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except asyncio.TimeoutError:
                return

    async def _call_all(self) -> None:
        end = self._now() + self._timeout_s
        gate = asyncio.Semaphore(_CALLS_AT_ONCE)
        # Each task begins with the one behind it, so that not all call the first at once.
        order = sorted(self._others, key=lambda other: (other - self._rank) % len(self._members))
        await asyncio.gather(*(self._reach(other, end, gate) for other in order))

    async def _reach(self, other: int, end: float, gate: asyncio.Semaphore) -> None:
        """Calls a task until it answers, its name is found not to exist, or the time is over."""
        outcome, member = self._outcome, self._members[other]
        while True:
            async with gate:
                try:
                    answer = await self._call(member, self._greeting)
                    if (problem := _wrong_answer(answer, other)) is None:
                        outcome.greetings[other] = answer
                        outcome.problems.pop(other, None)
                        return
                    outcome.problems[other] = problem
                except (OSError, ValueError, asyncio.TimeoutError, asyncio.IncompleteReadError) as error:
                    outcome.problems[other] = _in_words(error)
                    if isinstance(error, socket.gaierror) and error.errno != socket.EAI_AGAIN:
                        return
            if self._now() + _PAUSE_S >= end:
                return
            await asyncio.sleep(_PAUSE_S)

    async def _report(self, report: Greeting) -> None:
        try:
            await self._call(self._members[0], {**self._greeting, "report": dict(report)})
            self._outcome.is_reported = True
        except (OSError, ValueError, asyncio.TimeoutError, asyncio.IncompleteReadError):
            pass  # the first task is gone, or was never reached: that is said already

    async def _call(self, member: Member, greeting: Greeting) -> Greeting:
        return await asyncio.wait_for(self._exchange(member, greeting), _CALL_TIMEOUT_S)

    async def _exchange(self, member: Member, greeting: Greeting) -> Greeting:
        reader, writer = await asyncio.open_connection(member.host, member.port, limit=_LINE_BYTES)
        try:
            writer.write(json.dumps(greeting).encode() + b"\n")
            return _parse(await reader.readline())
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            caller = _parse(await asyncio.wait_for(reader.readline(), _CALL_TIMEOUT_S))
            # Before the answer: who gets one relies on having been heard.
            self._note(caller)
            writer.write(json.dumps(self._greeting).encode() + b"\n")
            await asyncio.wait_for(writer.drain(), _CALL_TIMEOUT_S)
        except (OSError, ValueError, asyncio.TimeoutError):
            pass  # a caller that is none of ours, or has gone: it calls again
        finally:
            writer.close()
            self._changed.set()

    def _note(self, caller: Greeting) -> None:
        rank = caller.get("rank")
        if isinstance(rank, int) and rank in self._others:
            self._outcome.callers.add(rank)
            if isinstance(caller.get("report"), dict):
                self._outcome.reports[rank] = caller["report"]

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def _listening_socket(member: Member) -> socket.socket:
    """A socket that listens at a task's port, of the protocol that its host's addresses are of.

    Raises:
        OSError: the port cannot be had.
    """
    try:
        families = {
            entry[0] for entry in socket.getaddrinfo(member.host, member.port, type=socket.SOCK_STREAM)
        }
    except socket.gaierror:
        families = set()  # the others say so; the port can be tried all the same
    is_ipv6 = families == {socket.AF_INET6}
    return socket.create_server(
        ("", member.port), family=socket.AF_INET6 if is_ipv6 else socket.AF_INET, backlog=1024
    )


def _parse(line: bytes) -> Greeting:
    """Reads a greeting.

    Raises:
        ValueError: it is none.
    """
    if not line:
        raise ConnectionResetError(errno.ECONNRESET, "the connection was closed without a word")
    try:
        greeting = json.loads(line)
    except ValueError:
        greeting = None
    if not isinstance(greeting, dict) or greeting.get(_KEY) != _FORMAT:
        raise ValueError(f"no greeting of format {_FORMAT}")
    return greeting


def _wrong_answer(answer: Greeting, expected: int) -> str | None:
    if answer.get("rank") == expected:
        return None
    return f"{answer.get('name')} on {answer.get('host')} answers there"


def _in_words(error: Exception) -> str:
    if isinstance(error, asyncio.TimeoutError):
        return f"no answer within {_CALL_TIMEOUT_S:g} s"
    if isinstance(error, asyncio.IncompleteReadError):
        return "the connection was closed"
    # Of a name with several addresses, asyncio has one error for all of them.
    if isinstance(error, ConnectionRefusedError) or f"[Errno {errno.ECONNREFUSED}]" in str(error):
        return "nobody listens there (connection refused)"
    if isinstance(error, socket.gaierror):
        return f"its name does not resolve ({error.strerror})"
    if isinstance(error, ValueError):
        return "another program listens there"
    return str(error)
