import io

import pytest

from tf_preempt.cli.drill.report import print_report
from tf_preempt.testing.drill.options import DrillOptions
from tf_preempt.testing.drill.outcome import Outcome, Verdict


class Terminal(io.StringIO):
    def isatty(self):
        return True


def outcome(verdict):
    return Outcome(options=DrillOptions(command=["x"]), verdict=verdict, steps=6, commits=2, unsent=1)


def test_file_gets_plain_lines():
    output = io.StringIO()
    print_report(outcome(Verdict.IDENTICAL), output)
    assert output.getvalue() == "\n" + "\n".join(outcome(Verdict.IDENTICAL).lines()) + "\n"


@pytest.mark.parametrize(("verdict", "style"), [(Verdict.IDENTICAL, "1;32"), (Verdict.NOT_DISTURBED, "1;31")])
def test_terminal_gets_the_verdict_in_colour_and_long_lines_whole(verdict, style, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    output = Terminal()
    print_report(outcome(verdict), output)
    first, *others = outcome(verdict).lines()
    assert f"\x1b[{style}m{first}\x1b[0m" in output.getvalue()
    for line in others:
        assert line in output.getvalue()
