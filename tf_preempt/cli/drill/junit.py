"""What a drill has found, as the XML that continuous integration systems read.

References:
    https://github.com/testmoapp/junitxml (elements and attributes that readers agree on), 2026-11.
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from tf_preempt.testing.drill.outcome import Outcome, Verdict

__all__ = ["failed_suite", "suite", "write"]

_NAME = "tf-preempt drill"
_REPEATABLE = "undisturbed trainings end alike"
_EXACT = "a disturbed training ends as an undisturbed one"
_COUNTED = {"failures": "failure", "errors": "error", "skipped": "skipped"}


def suite(outcome: Outcome, *, seconds: float) -> ElementTree.Element:
    """The test suite of a drill that came to its end: whether the program is repeatable, and exact.

    Args:
        outcome: of the drill.
        seconds: how long it took.
    """
    text = "\n".join(outcome.lines())
    repeatable, exact = _case(_REPEATABLE), _case(_EXACT)
    if outcome.verdict is Verdict.NOT_REPEATABLE:
        _add(repeatable, "failure", text)
        ElementTree.SubElement(exact, "skipped", message="undisturbed trainings do not end alike")
    else:
        kind = {Verdict.DIFFERENT: "failure", Verdict.NOT_DISTURBED: "error"}.get(outcome.verdict)
        _add(exact, kind or "system-out", text)
    return _suite([exact] if outcome.repeatable is None else [repeatable, exact], seconds)


def failed_suite(message: str, *, seconds: float) -> ElementTree.Element:
    """The test suite of a drill that could not be done.

    Args:
        message: why.
        seconds: how long it took until then.
    """
    case = _case(_EXACT)
    _add(case, "error", message)
    return _suite([case], seconds)


def write(element: ElementTree.Element, path: str) -> None:
    """Writes the file.

    Raises:
        OSError: it cannot be written.
    """
    root = ElementTree.Element("testsuites")
    root.append(element)
    ElementTree.indent(root)
    ElementTree.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def _suite(cases: list[ElementTree.Element], seconds: float) -> ElementTree.Element:
    counts = {kind: str(sum(case.find(tag) is not None for case in cases)) for kind, tag in _COUNTED.items()}
    attributes = {"name": _NAME, "tests": str(len(cases)), "time": f"{seconds:.3f}", **counts}
    element = ElementTree.Element("testsuite", attributes)
    element.extend(cases)
    return element


def _case(name: str) -> ElementTree.Element:
    return ElementTree.Element("testcase", classname=_NAME, name=name)


def _add(case: ElementTree.Element, kind: str, text: str) -> None:
    # XML has no place for the control characters of a terminal, which the last lines of a program may hold.
    clean = "".join(letter if letter.isprintable() or letter in "\n\t" else "?" for letter in text)
    attributes = {} if kind == "system-out" else {"message": clean.partition("\n")[0]}
    ElementTree.SubElement(case, kind, attributes).text = clean
