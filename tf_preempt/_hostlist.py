"""Slurm's compressed lists: ``node[1-2,05]`` for host names, ``3,1(x2)`` for numbers of tasks.

The reference is what ``scontrol show hostnames`` answers, odd corners included, because the position of a
name in the list is what Slurm's own node numbers count.  Where `scontrol` answers malformed input with
nonsense (``n[1 - 2]``, ``n[1-3``, ``n[1-]``), this module refuses it.

References:
    ``scontrol show hostnames`` of Slurm 22.05.8, asked for every line of ``tests/data/hostlists*.tsv``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

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
# A piece of a list: a literal; behind it a bracket, with one number or with anything else, of which one range
# is taken apart; what ends the name.  Each may be missing; where all are, a bracket has no partner.  One call
# takes a whole list apart, because what is done for each of 65,536 names adds up.
_PIECES = re.compile(
    r"([^\[\],\s]*)(?:\[([0-9]{1,18})\]|(\[(?:([0-9]{1,18})-([0-9]{1,18})|[^\[\]]*)\]))?([,\s]*)"
)
_Piece = tuple[str, str, str, str, str, str]
_ITEMS = re.compile(r"(([0-9]{1,18})(?:-([0-9]{1,18}))?|[^,]*),")
_NUMBERS = re.compile(r"[0-9]{1,18}(?:,[0-9]{1,18})*")
_AFTER_BRACKET = "nothing after the last bracket of a name"
_FEWER_HOSTS = f"at most {MAX_HOSTS} hosts"
_NONE: Sequence[int | str] = ()
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
    # The comma ends the last name.  What matches at the very end is empty, and no piece.
    pieces = _PIECES.findall(f"{text},")[:-1]
    try:
        return _join(pieces)
    except _FaultError as fault:
        position = _start(pieces, fault.index) + fault.offset
        raise _malformed(text, position, fault.expected) from None


def _plain_names(text: str) -> list[str]:
    hosts = text.replace(",", " ").split()
    if not hosts:
        raise _malformed(text, 0, "at least one host name")
    if len(hosts) > MAX_HOSTS:
        raise _malformed(text, 0, _FEWER_HOSTS)
    return hosts


class _FaultError(Exception):
    """What was expected instead of what is in a piece, the number of that piece, and where in it."""

    def __init__(self, expected: str, index: int, offset: int = 0) -> None:
        super().__init__(expected)
        self.expected, self.index, self.offset = expected, index, offset


def _start(pieces: list[_Piece], index: int) -> int:
    """Position of a piece in the text."""
    return sum(
        len(literal) + (len(number) + 2 if number else len(ranges)) + len(end)
        for literal, number, ranges, _, _, end in pieces[:index]
    )


def _join(pieces: list[_Piece]) -> list[str]:
    """Puts the pieces of a list together to names, and expands these.

    What has to be done for each of 65,536 names is done here and in loops: a call, or a comprehension, costs
    as much as two names.  So the first range of a name waits for what follows it, to be expanded only once.
    """
    hosts: list[str] = []
    # Of a name with more than one bracket: what comes before its first range, that range (of several, all
    # their combinations); and in each name what is read behind that.
    start, heads, text = "", _NONE, ""
    # The same ranges come again and again: a1n[0-1],a2n[0-1].
    known, numbers = "", _NONE
    for index, (literal, number, ranges, first, last, end) in enumerate(pieces):
        text += literal
        if first and first == last:
            number, ranges = first, ""  # n[5-5] is n[5]
        if ranges:
            if ranges != known:
                known, offset = ranges, len(literal) + 1
                if last:
                    numbers = _expand_range(first, last, index, offset)
                else:
                    numbers = _parse_ranges(ranges[1:-1], index, offset)
            if len(hosts) + len(numbers) * (len(heads) or 1) > MAX_HOSTS:
                raise _FaultError(_FEWER_HOSTS, index)
            if not heads and end:
                for tail in numbers:
                    hosts.append(f"{text}{tail}")
            elif not heads:
                start, heads = text, numbers
            elif end:
                for head in heads:
                    for tail in numbers:
                        hosts.append(f"{start}{head}{text}{tail}")
                heads = _NONE
            else:
                # Slurm's order: the last range varies fastest, and among those before it the first.
                heads = [f"{start}{head}{text}{tail}" for tail in numbers for head in heads]
                start = ""
            text = ""
        elif number or (literal and literal == text and not heads):
            text += number
            if not end:
                continue
            if len(hosts) + (len(heads) or 1) > MAX_HOSTS:
                raise _FaultError(_FEWER_HOSTS, index)
            if heads:
                for head in heads:
                    hosts.append(f"{start}{head}{text}")
                heads = _NONE
            else:
                hosts.append(text)
            text = ""
        elif literal or not end:  # what separates comes before the first name, too
            raise _FaultError(_AFTER_BRACKET if literal else "brackets in pairs", index)
    return hosts


def _parse_ranges(text: str, index: int, offset: int) -> Sequence[int | str]:
    """The numbers between two brackets."""
    if "-" not in text and _NUMBERS.fullmatch(text):
        return text.split(",")
    numbers: list[int | str] = []
    for item, first, last in _ITEMS.findall(f"{text},"):
        if last:
            numbers += _expand_range(first, last, index, offset)
        elif first:
            numbers.append(first)
        else:
            raise _FaultError("a number or a range such as 1-4", index, offset)
        if len(numbers) > MAX_HOSTS:
            raise _FaultError(_FEWER_HOSTS, index, offset)
        offset += len(item) + 1
    return numbers


def _expand_range(first: str, last: str, index: int, offset: int) -> Sequence[int | str]:
    """The padding is that of the first number: ``001-3`` is 001,002,003 and ``1-003`` is 1,2,3.

    Returns:
        Strings where there is padding, else the range as it is.
    """
    numbers = range(int(first), int(last) + 1)
    if not numbers:
        raise _FaultError("a range whose end is not below its start", index, offset)
    if len(numbers) > MAX_HOSTS_PER_RANGE:
        raise _FaultError(f"at most {MAX_HOSTS_PER_RANGE} hosts in a range", index, offset)
    if first[0] != "0":
        return numbers
    width = len(first)
    padded: list[str] = []
    for number in numbers:
        padded.append(str(number).zfill(width))
    return padded


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
