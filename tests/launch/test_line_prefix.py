import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_preempt.launch.line_prefix import LinePrefixer

# Bytes that matter come up often.
output = st.lists(st.sampled_from([b"\n", b"\r", b"\r\n", b"a", b"bc", b"\xff", b"\x08", b"\xc3"])).map(
    b"".join
)


def prefixed(*chunks):
    prefixer = LinePrefixer(b"> ")
    return b"".join(prefixer.feed(chunk) for chunk in chunks) + prefixer.finish()


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (b"", b""),
        (b"one\n", b"> one\n"),
        (b"one\ntwo\n", b"> one\n> two\n"),
        (b"\n\n", b"> \n> \n"),
        (b"no end", b"> no end\n"),
        (b"one\nno end", b"> one\n> no end\n"),
        (b"dos\r\nlines\r\n", b"> dos\n> lines\n"),
        (b"\r10%\r20%\r100%\n", b"> 100%\n"),
        (b"10%\r20%\r100%\r\n", b"> 100%\n"),
        (b"\r10%\r20%", b"> 20%\n"),
        (b"10%\r20%\r", b"> 20%\n"),
        (b"\r", b""),
    ],
)
def test_lines_are_shown_as(content, shown):
    assert prefixed(content) == shown


@given(content=output, cuts=st.lists(st.integers(0, 60)))
def test_it_does_not_matter_where_the_output_is_cut(content, cuts):
    ends = [0, *sorted(cuts), len(content)]
    chunks = [content[start:end] for start, end in itertools.pairwise(ends)]
    assert prefixed(*chunks) == prefixed(content)


@given(st.binary())
def test_every_line_is_whole_and_has_the_prefix(content):
    shown = prefixed(content)
    assert shown == b"" or shown.endswith(b"\n")
    assert all(line.startswith(b"> ") for line in shown.split(b"\n")[:-1])


@given(st.binary().map(lambda content: content.replace(b"\r", b"")))
def test_without_carriage_returns_nothing_is_lost(content):
    lines = [line.removeprefix(b"> ") for line in prefixed(content).split(b"\n")]
    assert b"\n".join(lines).removesuffix(b"\n") == content.removesuffix(b"\n")


@given(output)
def test_nothing_is_shown_that_was_not_there(content):
    states = {state for line in content.split(b"\n") for state in line.split(b"\r")}
    assert {line.removeprefix(b"> ") for line in prefixed(content).split(b"\n")[:-1]} <= states | {b""}


def test_progress_is_shown_when_asked_and_not_twice():
    prefixer = LinePrefixer(b"> ")
    assert prefixer.feed(b"\r10%\r20%") == b""
    assert prefixer.show_progress() == b"> 20%\n"
    assert prefixer.show_progress() == b""
    assert prefixer.feed(b"\r30%") == b""
    assert prefixer.show_progress() == b"> 30%\n"
    assert prefixer.feed(b"\r40%\nnext\n") == b"> 40%\n> next\n"


def test_progress_is_shown_too_where_the_carriage_return_comes_last():
    prefixer = LinePrefixer(b"> ")
    prefixer.feed(b"10%\r")
    assert prefixer.show_progress() == b"> 10%\n"
    prefixer.feed(b"20%")
    assert prefixer.show_progress() == b"> 20%\n"


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r\r\n"])
def test_end_of_a_line_whose_last_state_was_shown_is_no_empty_line(end):
    prefixer = LinePrefixer(b"> ")
    prefixer.feed(b"\r100%")
    prefixer.show_progress()
    assert prefixer.feed(end + b"\nnext\n") == b"> \n> next\n"


def test_incomplete_line_is_not_torn_apart_by_asking_for_progress():
    prefixer = LinePrefixer(b"> ")
    assert prefixer.feed(b"half a ") == b""
    assert prefixer.show_progress() == b""
    assert prefixer.feed(b"line\n") == b"> half a line\n"


def test_bar_that_never_ends_its_line_needs_no_memory():
    prefixer = LinePrefixer(b"> ")
    for i in range(10_000):
        assert prefixer.feed(b"\r%04d " % i + b"#" * 50) == b""
    assert len(prefixer._pending) < 200
    assert prefixer.finish() == b"> 9999 " + b"#" * 50 + b"\n"


def test_line_without_an_end_is_shown_in_pieces_and_completely():
    shown = prefixed(*[b"x" * 1000] * 200)
    assert shown.count(b"x") == 200_000
    assert shown.count(b"> ") == 4
