"""Host lists, against what `scontrol show hostnames` of Slurm 22.05.8 answered."""

import string
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_preempt import _hostlist
from tf_preempt._hostlist import expand_hostlist, expand_tasks_per_node
from tf_preempt.errors import SlurmError, TfPreemptError

DATA = Path(__file__).parent / "data"


def rows(name):
    lines = (DATA / name).read_text(encoding="utf-8").splitlines()
    return [tuple(line.split("\t")) for line in lines if line]


@pytest.mark.parametrize(("text", "answer"), rows("hostlists.tsv"))
def test_expands_as_scontrol_does(text, answer):
    assert expand_hostlist(text) == answer.split(",")


def test_the_ground_truth_is_all_there():
    names = ("hostlists.tsv", "hostlists_refused.tsv", "hostlists_malformed.tsv")
    assert [len(rows(name)) for name in names] == [52, 14, 4]


@pytest.mark.parametrize("text", [row[0] for row in rows("hostlists_refused.tsv")])
def test_refuses_what_scontrol_refuses(text):
    with pytest.raises(SlurmError) as caught:
        expand_hostlist(text)
    assert repr(text) in str(caught.value)
    assert "at position" in str(caught.value)
    assert "HINT:" in str(caught.value)


@pytest.mark.parametrize("text", [row[0] for row in rows("hostlists_malformed.tsv")])
def test_refuses_what_scontrol_answers_with_nonsense(text):
    with pytest.raises(SlurmError, match="at position"):
        expand_hostlist(text)


@pytest.mark.parametrize(
    ("text", "position", "found"),
    [
        ("", 0, ""),
        (" , ", 0, " , "),
        ("n[3-1]", 2, "3-1]"),
        ("n[1,2,x]", 6, "x]"),
        ("n[1,,2]", 4, ",2]"),
        ("ok,n[1-3]x", 9, "x"),
        ("ok,n[1-3", 4, "[1-3"),
        ("a,n]1[", 3, "]1["),
        ("a[5]n[0-1],b[07]x", 16, "x"),
        ("a[5]n[0-1],b[07]x[2-x]", 18, "2-x]"),
        ("a[0-1]n[2,3]y", 12, "y"),
        ("a[5][", 4, "["),
        ("a[0-1],,b[]", 10, "]"),
        ("n[0-65536]", 2, "0-65536]"),
        ("n[1-9999999999999999999]", 2, "1-9999999999"),
    ],
)
def test_says_where_a_host_list_is_wrong(text, position, found):
    with pytest.raises(SlurmError) as caught:
        expand_hostlist(text)
    assert f"at position {position} ({found!r})" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("n[1-003]", ["n1", "n2", "n3"]),
        ("n[08-010]", ["n08", "n09", "n10"]),
        ("n[1,08-10,9-10]", ["n1", "n08", "n09", "n10", "n9", "n10"]),
        ("a[1-2],b[1-2],b[2-3],a[1-2]", ["a1", "a2", "b1", "b2", "b2", "b3", "a1", "a2"]),
        ("host1\n", ["host1"]),
        ("a\tb", ["a", "b"]),
        ("a[1-2] ,b", ["a1", "a2", "b"]),
        ("\t,a[05]b[1-2],c", ["a05b1", "a05b2", "c"]),
        ("a[1-2][7]", ["a17", "a27"]),
        ("a[4-4]b[05-05]c[05-5]d[1-2]", ["a4b05c05d1", "a4b05c05d2"]),
        ("a[1-2]b[4-4]c[1-2]d[6-6]", ["a1b4c1d6", "a2b4c1d6", "a1b4c2d6", "a2b4c2d6"]),
        ("a[1-2]b[1-2]c[1-2]", [f"a{a}b{b}c{c}" for b in (1, 2) for a in (1, 2) for c in (1, 2)]),
        ("a[7]b[1-2]c[8]d[3,4]", ["a7b1c8d3", "a7b1c8d4", "a7b2c8d3", "a7b2c8d4"]),
        ("a[1-2]b[01,1]c[3]", ["a1b01c3", "a2b01c3", "a1b1c3", "a2b1c3"]),
    ],
)
def test_expands_odd_input_as_scontrol_does(text, answer):
    assert expand_hostlist(text) == answer


def test_a_text_that_stands_for_too_many_hosts_is_refused_at_once():
    begun = time.process_time()
    with pytest.raises(SlurmError, match="at most 1048576 hosts"):
        expand_hostlist("r[1-60000]c[1-60000]")
    with pytest.raises(SlurmError, match="at most"):
        expand_hostlist("n[" + ",".join(["1-60000"] * 1000) + "]")
    assert time.process_time() - begun < 5


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("node[00000-65535]", "node00000", "node65535"),
        (",".join(f"node{number:05d}" for number in range(65_536)), "node00000", "node65535"),
        (",".join(f"a{number}n[0-1]" for number in range(32_768)), "a0n0", "a32767n1"),
        (",".join(f"a[{number}]n[0-1]" for number in range(32_768)), "a0n0", "a32767n1"),
        (",".join(f"a{number}n[5]" for number in range(65_536)), "a0n5", "a65535n5"),
        ("n[" + ",".join(f"{number}" for number in range(1, 131_073, 2)) + "]", "n1", "n131071"),
        (",".join(f"a[{number}-{number + 1}]" for number in range(32_768)), "a0", "a32768"),
        (",".join(f"a{number}[{number},{number + 5}]" for number in range(32_768)), "a00", "a3276732772"),
        (",".join(f"a[{n}-{n + 1}]b[{n}-{n + 1}]" for n in range(16_384)), "a0b0", "a16384b16384"),
        (
            ",".join(f"a[{n}-{n + 1}]b[{n}]c[{n}-{n + 1}]" for n in range(16_384)),
            "a0b0c0",
            "a16384b16383c16384",
        ),
        (",".join(f"a[{n:06d}-{n + 1:06d}]" for n in range(32_768)), "a000000", "a032768"),
        (",".join(f"a[{n}-{n + 1}]b[0-0]" for n in range(32_768)), "a0b0", "a32768b0"),
        (",".join(f"a[{n}]b[{n:05d}-{n + 1:05d}]" for n in range(32_768)), "a0b00000", "a32767b32768"),
        (",".join(f"a[{n}-{n + 1},{n + 5}-{n + 6}]" for n in range(16_384)), "a0", "a16389"),
    ],
    ids=[
        *("range", "names", "pairs", "two-brackets", "single-numbers", "numbers"),
        *("other-ranges", "other-numbers", "two-ranges", "three-brackets", "padded-ranges"),
        *("range-and-range-of-one", "number-and-padded-range", "several-ranges"),
    ],
)
def test_65536_hosts_are_expanded(text, first, last):
    """How quickly is measured by ``benchmarks/hostlists.py``."""
    hosts = expand_hostlist(text)
    assert (len(hosts), hosts[0], hosts[-1]) == (65_536, first, last)


def test_too_many_names_are_refused():
    with pytest.raises(
        SlurmError, match=r"at position 2097152 \('a\[0-1\]'\): expected at most 1048576 hosts"
    ):
        expand_hostlist("n," * (1 << 20) + "a[0-1]")
    with pytest.raises(SlurmError, match="at most 1048576 hosts"):
        expand_hostlist("n," * (1 << 20) + "n")


LITERALS = st.text(alphabet=string.ascii_letters + "-_.", min_size=1, max_size=5)
RANGES = st.tuples(st.integers(0, 300), st.integers(0, 6), st.integers(1, 4))


def compress(name_and_ranges):
    """One prefix and its ranges as Slurm writes them, and the names that they stand for."""
    prefix, ranges = name_and_ranges
    texts, names = [], []
    for first, more, width in ranges:
        padded = str(first).zfill(width)
        texts.append(padded if more == 0 else f"{padded}-{first + more}")
        names += [f"{prefix}{number:0{len(padded)}d}" for number in range(first, first + more + 1)]
    return f"{prefix}[{','.join(texts)}]", names


@given(st.lists(st.tuples(LITERALS, st.lists(RANGES, min_size=1, max_size=4)), min_size=1, max_size=4))
def test_expanding_undoes_compressing(parts):
    compressed = [compress(part) for part in parts]
    assert expand_hostlist(",".join(text for text, _ in compressed)) == [
        name for _, names in compressed for name in names
    ]


@given(st.text(alphabet="an01-,[] x", max_size=14))
def test_any_text_gives_clean_names_or_the_typed_error(text):
    try:
        hosts = expand_hostlist(text)
    except SlurmError:
        return
    assert hosts
    assert not any(set(host) & set("[], ") or not host for host in hosts)


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("1", [1]),
        ("3,1(x2)", [3, 1, 1]),
        ("2(x3),2,1", [2, 2, 2, 2, 1]),
        ("1(x2),2", [1, 1, 2]),
        ("12", [12]),
    ],
)
def test_expands_tasks_per_node(text, counts):
    assert expand_tasks_per_node(text) == counts


@given(st.lists(st.tuples(st.integers(1, 99), st.integers(1, 5)), min_size=1, max_size=5))
def test_expanding_tasks_per_node_undoes_compressing(runs):
    text = ",".join(str(count) if times == 1 else f"{count}(x{times})" for count, times in runs)
    assert expand_tasks_per_node(text) == [count for count, times in runs for _ in range(times)]


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("", 0),
        ("0", 0),
        ("2, 1", 2),
        ("2(X2)", 0),
        ("1,2(x0)", 2),
        ("3,", 2),
        ("a", 0),
        ("1(x2", 0),
        ("-1", 0),
    ],
)
def test_refuses_malformed_tasks_per_node(text, position):
    with pytest.raises(SlurmError, match=f"tasks per node .* at position {position} "):
        expand_tasks_per_node(text)


def test_refuses_tasks_for_more_nodes_than_can_be():
    with pytest.raises(SlurmError, match="at most 1048576 nodes"):
        expand_tasks_per_node("1(x999999999)")


def test_errors_are_runtime_errors_and_ours():
    with pytest.raises(RuntimeError) as caught:
        expand_hostlist("n[")
    assert isinstance(caught.value, TfPreemptError)
    assert set(_hostlist.__all__) >= {"expand_hostlist", "expand_tasks_per_node"}
