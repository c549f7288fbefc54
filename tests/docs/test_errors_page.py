"""What docs/errors.md says of errors and exit statuses is so in the code, and in the tests that it names."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import signal
from pathlib import Path

import pytest

import tf_preempt
from tf_preempt import errors
from tf_preempt.checkpointing import end_of_process
from tf_preempt.termination import exit_codes
from tf_preempt.termination.exit_codes import Outcome, classify, restart_exit_code

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/errors.md").read_text(encoding="utf-8")
CLASSES = {name: getattr(errors, name) for name in errors.__all__}
NEVER_RAISED = {"DirectoryError", "CheckpointError"}
DOES = {
    Outcome.SUCCESS: "ends",
    Outcome.PERMANENT: "ends",
    Outcome.INTERRUPTED: "ends",
    Outcome.RESTART: "starts it again",
}


def rows(header):
    """The cells of each row of the table with this header."""
    _, found, rest = PAGE.partition(header + "\n")
    assert found, header
    lines = [line for line in rest.partition("\n\n")[0].splitlines() if not line.startswith("|---")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


ERRORS = rows("| error | also a | when, and what it says | cure | test |")
STATUSES = rows("| status | a program, or `tf-preempt`, leaves with it when | `tf-preempt run` | test |")


def code(cell):
    return re.findall(r"`([^`]+)`", cell)


def class_in(row):
    return CLASSES[code(row[0])[0]]


def statuses(row):
    return [int(number) for number in re.findall(r"\d+", row[0])]


def named_test(cell):
    """The text of the test that a row names, with its decorators."""
    path, _, name = code(cell)[0].partition("::")
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    (found,) = [node for node in ast.walk(tree) if getattr(node, "name", "") == name]
    return ast.unparse(found)


@functools.cache
def modules():
    """Of each module: the names in it, those that it calls, raises and derives from, and its texts."""
    return [Module(path) for path in sorted((ROOT / "tf_preempt").rglob("*.py"))]


class Module:
    def __init__(self, path):
        self.names, self.raised, self.bases, self.texts = set(), set(), set(), []
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Name() | ast.Attribute():
                    self.names.add(name_of(node))
                case ast.Call(func=called) | ast.Raise(exc=called):
                    self.raised.add(name_of(called))
                case ast.ClassDef():
                    self.bases |= {name_of(base) for base in node.bases}
                case ast.Constant(value=str(text)):
                    self.texts.append(text)
                case ast.JoinedStr(values=parts):  # … stands for what is put in
                    self.texts.append("".join(map(text_of, parts)))


def name_of(node):
    """A name, with or without a module in front."""
    return getattr(node, "id", getattr(node, "attr", None))


def text_of(part):
    return part.value if isinstance(part, ast.Constant) else "…"


def test_every_class_has_a_row_and_every_row_a_class():
    defined = [name for name, _ in inspect.getmembers(errors, inspect.isclass)]
    assert sorted(code(row[0])[0] for row in ERRORS) == sorted(defined) == sorted(errors.__all__)


def test_there_is_no_class_of_warnings():
    assert not [base for module in modules() for base in module.bases if base and "Warning" in base]


def test_a_class_stands_below_its_base_and_is_the_builtins_that_are_named():
    above = {-1: Exception}
    for row in ERRORS:
        kind, depth = class_in(row), row[0].count("- ")
        assert above[depth - 1] in kind.__bases__
        above[depth] = kind
        builtins = [one.__name__ for one in kind.__mro__ if one.__module__ == "builtins"]
        assert code(row[1]) == (builtins[: builtins.index("Exception")] or ["Exception"])


def test_what_an_error_says_is_in_a_module_that_raises_it():
    for row in ERRORS:
        quoted, name = re.findall(r'"([^"]+)"', row[2] + row[3]), class_in(row).__name__
        texts = [text for module in modules() if name in module.raised for text in module.texts]
        assert [words for words in quoted if not any(words.strip("…") in text for text in texts)] == []
        assert quoted or name in {"TfPreemptError", *NEVER_RAISED}


def test_classes_that_are_never_raised_themselves():
    assert not NEVER_RAISED & {name for module in modules() for name in module.raised}
    for row in ERRORS:
        assert row[2].startswith("never itself") is (class_in(row).__name__ in NEVER_RAISED)


def test_the_test_of_an_error_sees_it_raised():
    for row in ERRORS:
        name, text = class_in(row).__name__, named_test(row[4])
        itself = f"def {test_classes_that_are_never_raised_themselves.__name__}"
        assert re.search(itself if name in NEVER_RAISED else rf"\b{name}\b", text), row


def test_run_does_what_the_row_says():
    for row in STATUSES:
        assert {DOES[classify(status)] for status in statuses(row)} == {row[2]}, row
        names = re.findall(r"SIG[A-Z0-9]+", row[1])
        assert not names or [128 + signal.Signals[name] for name in names] == statuses(row)


def test_every_status_of_the_code_has_a_row():
    listed = {status for row in STATUSES for status in statuses(row)}
    constants = {getattr(exit_codes, name) for name in exit_codes.__all__ if name.isupper()}
    ours = {value for value in constants if isinstance(value, int)}
    special = {status for status in range(256) if classify(status) is not Outcome.PERMANENT}
    assert ours
    assert not (ours | special) - listed
    # Beside these a shell's own, and a signal that says that a restart would not help.
    assert listed - ours - special == {126, 127, 139}


def test_every_platform_is_in_a_row_with_its_status():
    told = {name: restart_exit_code(name) for name in exit_codes._RESTART_BY_PLATFORM}
    listed = {name: statuses(row) for row in STATUSES for name in code(row[1]) if name in told}
    assert listed == {name: [status] for name, status in told.items()}


def test_the_test_of_a_status_is_about_it():
    for row in STATUSES:
        names = [name for name in exit_codes.__all__ if getattr(exit_codes, name) in statuses(row)]
        # Or a list of all statuses, as this page's own tests have one.
        words = [*map(str, statuses(row)), *names, "STATUSES"]
        assert re.search(rf"\b({'|'.join(words)})\b", named_test(row[3])), row


def test_the_message_that_is_shown_is_what_is_raised():
    (shown,) = re.findall(r"raises\n\n```text\n(.+?)\n```", PAGE, re.DOTALL)
    with pytest.raises(ValueError, match="grace_period") as raised:
        tf_preempt.TerminationConfig(grace_period=-1)
    assert shown == f"{type(raised.value).__name__}: {raised.value}"
    assert isinstance(raised.value, errors.TfPreemptError)
    assert shown.endswith(f"HINT: {raised.value.hint}")


def test_times_in_the_text_are_those_of_the_code():
    assert f"get {end_of_process.GRACE_S:.0f} s. Then" in PAGE
    strategy = (ROOT / "tf_preempt/strategies/multi_worker_mirrored.py").read_text(encoding="utf-8")
    (default,) = re.findall(r"^_PEER_TIMEOUT_S = (.*)$", strategy, re.MULTILINE)
    assert f"MultiWorkerMirroredStrategy(resolver, peer_timeout_s={default})" in PAGE


def test_tests_named_in_the_text_exist():
    for path in re.findall(r"`(tests/[\w/]+\.py)", PAGE):
        assert (ROOT / path).exists(), path
