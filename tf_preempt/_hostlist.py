"""Slurm's compressed lists: ``node[1-2,05]`` for host names, ``3,1(x2)`` for numbers of tasks.

The reference is what ``scontrol show hostnames`` answers, odd corners included, because the position of a
name in the list is what Slurm's own node numbers count.  Where `scontrol` answers malformed input with
nonsense (``n[1 - 2]``, ``n[1-3``, ``n[1-]``), this module refuses it.

References:
    ``scontrol show hostnames`` of Slurm 22.05.8, asked for every line of ``tests/data/hostlists*.tsv``.
"""

from __future__ import annotations

import itertools
import math
import re

from tf_preempt.errors import SlurmError

__all__ = ["MAX_HOSTS", "MAX_HOSTS_PER_RANGE", "expand_hostlist", "expand_tasks_per_node"]

MAX_HOSTS_PER_RANGE = 65_536
"""Largest range that Slurm accepts: ``n[0-65535]``."""

MAX_HOSTS = 1 << 20
"""Largest list that is expanded.  Several brackets multiply, so that a short text can mean any number."""

_HOSTS, _COUNTS = "host list", "list of tasks per node"
_CURES = {
    _HOSTS: "`scontrol show hostnames LIST` shows how Slurm itself reads a host list.",
    _COUNTS: "Slurm writes 3,1(x2) for three tasks on the first node and one on each of the next two.",
}
_SEPARATORS = re.compile(r"[,\s]+")
_LITERAL = re.compile(r"[^\[\],\s]+")
_BRACKET = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_COUNT = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?")


def expand_hostlist(text: str) -> list[str]:
    """Expands a host list as ``scontrol show hostnames`` does: same names, same order, duplicates kept.

    Example:
        >>> expand_hostlist("node[9-10],login")
        ['node9', 'node10', 'login']

    Args:
        text: host names separated by commas or white space, each with any number of ``[ranges]``, the last of
            which ends the name (Slurm knows no suffix behind it).

    Returns:
        The host names.

    Raises:
        SlurmError: `text` names no host, is malformed (the position of what is wrong is given), stands for
            more than `MAX_HOSTS` hosts, or has a range of more than `MAX_HOSTS_PER_RANGE`.
    """
    if "[" not in text and "]" not in text:
        return _plain_names(text)  # ten times as fast, for lists that nobody compressed
    hosts: list[str] = []
    position = 0
    while position < len(text):
        if separator := _SEPARATORS.match(text, position):
            position = separator.end()
            continue
        pieces, position = _parse_name(text, position)
        if len(hosts) + math.prod(len(alternatives) for alternatives in pieces) > MAX_HOSTS:
            raise _malformed(text, position, f"at most {MAX_HOSTS} hosts")
        hosts.extend(_combine(pieces))
    if not hosts:
        raise _malformed(text, 0, "at least one host name")
    return hosts


def _plain_names(text: str) -> list[str]:
    hosts = text.replace(",", " ").split()
    if not hosts:
        raise _malformed(text, 0, "at least one host name")
    if len(hosts) > MAX_HOSTS:
        raise _malformed(text, 0, f"at most {MAX_HOSTS} hosts")
    return hosts


def _parse_name(text: str, start: int) -> tuple[list[list[str]], int]:
    """One host expression: for each bracket its alternatives, prefixed with the literal before it."""
    pieces: list[list[str]] = []
    position = start
    while position < len(text):
        literal = _LITERAL.match(text, position)
        prefix = literal.group() if literal else ""
        if literal:
            position = literal.end()
        bracket = _BRACKET.match(text, position)
        if bracket:
            pieces.append(
                [prefix + number for number in _parse_ranges(text, bracket.start(1), bracket.end(1))]
            )
            position = bracket.end()
            continue
        if position < len(text) and text[position] in "[]":
            raise _malformed(text, position, "brackets in pairs")
        if prefix and pieces:
            raise _malformed(text, position - len(prefix), "nothing after the last bracket of a name")
        if prefix:
            pieces.append([prefix])
        break
    return pieces, position


def _parse_ranges(text: str, start: int, end: int) -> list[str]:
    """The numbers between two brackets, as strings that keep each range's zero padding."""
    numbers: list[str] = []
    position = start
    for item in text[start:end].split(","):
        match = _RANGE.fullmatch(item)
        if not match:
            raise _malformed(text, position, "a number or a range such as 1-4")
        first, last = match[1], match[2] or match[1]
        count = int(last) - int(first) + 1
        if count < 1:
            raise _malformed(text, position, "a range whose end is not below its start")
        if count > MAX_HOSTS_PER_RANGE or len(numbers) + count > MAX_HOSTS:
            raise _malformed(text, position, f"at most {MAX_HOSTS_PER_RANGE} hosts in a range")
        width = len(first)  # the padding is the first number's: [001-3] is 001,002,003 and [1-003] is 1,2,3
        numbers.extend(str(number).zfill(width) for number in range(int(first), int(last) + 1))
        position += len(item) + 1
    return numbers


def _combine(pieces: list[list[str]]) -> list[str]:
    """All names of one expression, in Slurm's order.

    The last bracket varies fastest; the others follow from left to right, so that with three brackets the
    first varies faster than the second.
    """
    *leading, last = pieces
    if not leading:
        return last
    return [
        "".join(reversed(backwards)) + ending
        for backwards in itertools.product(*reversed(leading))
        for ending in last
    ]


def expand_tasks_per_node(text: str) -> list[int]:
    """Expands Slurm's run-length notation of tasks per node.

    Example:
        >>> expand_tasks_per_node("3,1(x2)")
        [3, 1, 1]

    Args:
        text: counts separated by commas, each with an optional repetition ``(xN)``.

    Returns:
        One number per node, in the order of the node list.

    Raises:
        SlurmError: `text` is malformed, has a count or a repetition of 0, or is for more than `MAX_HOSTS`
            nodes.
    """
    counts: list[int] = []
    position = 0
    for item in text.split(","):
        match = _COUNT.fullmatch(item)
        if not match or int(match[1]) < 1 or int(match[2] or 1) < 1:
            raise _malformed(
                text, position, "positive numbers such as 3,1(x2)", kind="list of tasks per node"
            )
        repeat = int(match[2] or 1)
        if len(counts) + repeat > MAX_HOSTS:
            raise _malformed(text, position, f"at most {MAX_HOSTS} nodes", kind=_COUNTS)
        counts.extend([int(match[1])] * repeat)
        position += len(item) + 1
    return counts


def _malformed(text: str, position: int, expected: str, *, kind: str = _HOSTS) -> SlurmError:
    shown = text if len(text) <= 200 else f"{text[:200]}..."
    return SlurmError(
        f"Malformed {kind} {shown!r} at position {position} ({text[position : position + 12]!r}): "
        f"expected {expected}.",
        hint=_CURES[kind],
    )
