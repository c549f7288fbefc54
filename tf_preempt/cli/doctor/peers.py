"""Whether the tasks of the cluster can reach each other, and have the same versions."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from typing import Any

from tf_preempt.cli.doctor.finding import Finding, Status
from tf_preempt.cli.doctor.meeting import Outcome
from tf_preempt.cli.doctor.place import Member, Place

__all__ = ["check_peers", "check_same_versions", "nothing_to_reach"]

_SHOWN = 4
_TOGETHER = (
    "run this command on all tasks at once (srun tf-preempt doctor, tf-preempt launch -- tf-preempt doctor)"
)


def nothing_to_reach(place: Place) -> Finding | None:
    """Says why there are no peers; None if there are some."""
    if place.resolver is None:
        return Finding(
            Status.INFO, "peers", "not checked, as the cluster is not known", values={"tasks": None}
        )
    if place.rank is None:
        return _nothing("this task stands outside the cluster")
    if len(place.members) > 1:
        return None
    if place.job is not None and not place.in_step and not place.members:
        return _nothing("srun did not start this process, so it has no peers")
    return _nothing("there is one worker only")


def _nothing(why: str) -> Finding:
    return Finding(Status.INFO, "peers", f"nothing to reach: {why}", values={"tasks": 1})


def check_peers(members: Sequence[Member], rank: int, outcome: Outcome, *, timeout_s: float) -> list[Finding]:
    """Judges a meeting.

    Args:
        members: all tasks.
        rank: which of them this one is.
        outcome: what came of the meeting.
        timeout_s: how long it was waited for others, in seconds.
    """
    findings = []
    if outcome.port_problem is not None:
        findings.append(_port(members[rank], outcome.port_problem))
    findings += _unreached(members, outcome.problems, timeout_s)
    silent = [other for other in outcome.greetings if other not in outcome.callers]
    if silent and outcome.port_problem is None:
        names = _names(members, silent)
        findings.append(
            Finding(
                Status.ERROR,
                "peers",
                f"{names} can be reached from here, but did not reach this task at {members[rank].address} "
                f"within {timeout_s:g} s.",
                f"open port {members[rank].port} of {members[rank].host} to the other hosts, and let them "
                f"resolve {members[rank].host!r} to an address of it; their own output says more",
                {"ranks": silent},
            )
        )
    if findings:
        return findings
    count = len(members) - 1
    return [
        Finding(
            Status.OK,
            "peers",
            f"{count} of {count} other task(s) reached, and this one by them, at {members[rank].address}",
            values={"reached": count, "tasks": len(members), "address": members[rank].address},
        )
    ]


def _port(member: Member, problem: OSError) -> Finding:
    taken = problem.errno == errno.EADDRINUSE
    message = (
        f"Port {member.port} of {member.host} is taken by another program."
        if taken
        else f"Nobody can listen at port {member.port} of {member.host}: {problem.strerror or problem}."
    )
    hint = (
        f"end that program (ss -ltnp 'sport = :{member.port}' names it), or take other ports: "
        "srun --resv-ports=N, SlurmClusterResolver(port_base=...), or another port in TF_CONFIG"
        if taken
        else "take a port from 1024 on: SlurmClusterResolver(port_base=...), or another port in TF_CONFIG"
    )
    return Finding(Status.ERROR, "port", message, hint, {"address": member.address, "errno": problem.errno})


def _unreached(members: Sequence[Member], problems: Mapping[int, str], timeout_s: float) -> list[Finding]:
    """One finding for each kind of problem, however many tasks have it."""
    ranks_by_problem: dict[str, list[int]] = {}
    for rank in sorted(problems):
        ranks_by_problem.setdefault(problems[rank], []).append(rank)
    return [
        Finding(
            Status.ERROR,
            "peers",
            f"{_names(members, ranks)} cannot be reached within {timeout_s:g} s: {problem}.",
            _cure(problem, members[ranks[0]]),
            {"ranks": ranks, "addresses": [members[rank].address for rank in ranks]},
        )
        for problem, ranks in ranks_by_problem.items()
    ]


def _cure(problem: str, member: Member) -> str:
    if "does not resolve" in problem:
        return f"add {member.host!r} to DNS or /etc/hosts of this host, or name a host that resolves"
    if "answers there" in problem:
        return f"let {member.host!r} resolve to that host's own address on all hosts (see /etc/hosts)"
    if "another program" in problem:
        return f"another program has port {member.port} of {member.host}: end it, or take other ports"
    if "refused" in problem:
        return f"{_TOGETHER}; if it was, a firewall rejects port {member.port}, or the task could not listen"
    return f"open port {member.port} between the hosts (firewall, network policy); and {_TOGETHER}"


def _names(members: Sequence[Member], ranks: Sequence[int]) -> str:
    shown = ", ".join(f"{members[rank].name} ({members[rank].address})" for rank in ranks[:_SHOWN])
    return shown + (f" and {len(ranks) - _SHOWN} more" if len(ranks) > _SHOWN else "")


def check_same_versions(own: Mapping[str, Any], members: Sequence[Member], outcome: Outcome) -> list[Finding]:
    """Compares the packages of this task with those of the tasks that it has reached.

    Args:
        own: package to version.
        members: all tasks.
        outcome: what came of the meeting; each greeting has ``versions``.
    """
    findings = []
    for package, version in own.items():
        others: dict[str, list[int]] = {}
        for rank, greeting in sorted(outcome.greetings.items()):
            versions = greeting.get("versions")
            other = versions.get(package) if isinstance(versions, dict) else None
            if other != version:
                others.setdefault(str(other), []).append(rank)
        for other, ranks in others.items():
            findings.append(
                Finding(
                    Status.ERROR,
                    "versions",
                    f"This task has {package} {version}, but {_names(members, ranks)}: {other}.",
                    "install the same versions on all hosts, or one environment that all of them share",
                    {"package": package, "own": version, "other": other, "ranks": ranks},
                )
            )
    return findings
