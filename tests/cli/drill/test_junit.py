import xml.etree.ElementTree as ElementTree

import pytest

from tf_preempt.cli.drill import junit
from tf_preempt.testing.drill.options import DrillOptions
from tf_preempt.testing.drill.outcome import Outcome, Verdict

REPEATABLE, EXACT = "undisturbed trainings end alike", "a disturbed training ends as an undisturbed one"


def outcome(verdict, repeatable):
    options = DrillOptions(command=["x"])
    return Outcome(options=options, verdict=verdict, steps=6, commits=2, repeatable=repeatable)


def cases(element):
    """What became of each test: the tags below it."""
    return {case.get("name"): [child.tag for child in case] for case in element.iter("testcase")}


@pytest.mark.parametrize(
    ("verdict", "repeatable", "expected", "counts"),
    [
        (Verdict.IDENTICAL, True, {REPEATABLE: [], EXACT: ["system-out"]}, ("2", "0", "0", "0")),
        (Verdict.IDENTICAL, None, {EXACT: ["system-out"]}, ("1", "0", "0", "0")),
        (Verdict.DIFFERENT, True, {REPEATABLE: [], EXACT: ["failure"]}, ("2", "1", "0", "0")),
        (Verdict.NOT_DISTURBED, None, {EXACT: ["error"]}, ("1", "0", "1", "0")),
        (Verdict.NOT_REPEATABLE, False, {REPEATABLE: ["failure"], EXACT: ["skipped"]}, ("2", "1", "0", "1")),
    ],
)
def test_verdict_becomes_the_state_of_two_tests(verdict, repeatable, expected, counts):
    element = junit.suite(outcome(verdict, repeatable), seconds=1.5)
    assert cases(element) == expected
    assert tuple(element.get(name) for name in ("tests", "failures", "errors", "skipped")) == counts
    assert element.get("time") == "1.500"


def test_failure_has_its_first_line_as_message_and_no_control_characters(tmp_path):
    path = tmp_path / "x.xml"
    junit.write(junit.failed_suite("failed: \x1b[1mbold\x1b[0m\nmore <&>\n", seconds=0.0), str(path))
    (suite,) = ElementTree.parse(path).getroot()
    (error,) = suite.iter("error")
    assert error.get("message") == "failed: ?[1mbold?[0m"
    assert error.text == "failed: ?[1mbold?[0m\nmore <&>\n"
