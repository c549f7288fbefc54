"""How long host lists of 65,536 hosts take to expand, beside TensorFlow's `SlurmClusterResolver`.

    python benchmarks/hostlists.py [--rounds 15]

Milliseconds of the processor, medians of rounds in which both take turns.  Where TensorFlow's answer is not
Slurm's, or an error, "wrong" stands in place of its time.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

from tensorflow.python.distribute.cluster_resolver.slurm_cluster_resolver import (
    expand_hostlist as expand_as_tensorflow,
)

from tf_preempt._hostlist import expand_hostlist

PAIRS, FOURS, EIGHTS = range(32_768), range(16_384), range(8_192)
LISTS = {
    "n[0-65535]": "n[0-65535]",
    "r[0-255]n[0-255]": "r[0-255]n[0-255]",
    "node00000,node00001,...": ",".join(f"node{n:05d}" for n in range(65_536)),
    "n[1,3,...]": "n[" + ",".join(f"{n}" for n in range(1, 131_073, 2)) + "]",
    "a0n[0-1],a1n[0-1],...": ",".join(f"a{n}n[0-1]" for n in PAIRS),
    "a[0-1],a[1-2],...": ",".join(f"a[{n}-{n + 1}]" for n in PAIRS),
    "a0[0,5],a1[1,6],...": ",".join(f"a{n}[{n},{n + 5}]" for n in PAIRS),
    "a0n[5],a1n[5],...": ",".join(f"a{n}n[5]" for n in range(65_536)),
    "a[0]b[00000-00001],...": ",".join(f"a[{n}]b[{n:05d}-{n + 1:05d}]" for n in PAIRS),
    "a[0-1]b[0-0],...": ",".join(f"a[{n}-{n + 1}]b[0-0]" for n in PAIRS),
    "a[0-1]b[0-1],a[1-2]b[1-2],...": ",".join(f"a[{n}-{n + 1}]b[{n}-{n + 1}]" for n in FOURS),
    "a[0-1,5-6],a[1-2,6-7],...": ",".join(f"a[{n}-{n + 1},{n + 5}-{n + 6}]" for n in FOURS),
    "a[0-1]b[0-1]c[0-1],...": ",".join(f"a[{n}-{n + 1}]b[{n}-{n + 1}]c[{n}-{n + 1}]" for n in EIGHTS),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    print(f"{'65,536 hosts, ms':32}{'tf_preempt':>11}{'TensorFlow':>12}{'ratio':>7}")
    for name, text in LISTS.items():
        expected = expand_hostlist(text)
        both: list[list[float]] = [[], []]
        ways = (
            [expand_hostlist, expand_as_tensorflow]
            if tensorflow_is_right(text, expected)
            else [expand_hostlist]
        )
        for _ in range(rounds):
            for taken, expand in zip(both, ways, strict=False):
                taken.append(taken_ms(expand, text))
        ours, theirs = (statistics.median(taken) if taken else None for taken in both)
        shown = f"{theirs:>12.1f}{ours / theirs:>7.2f}" if theirs else f"{'wrong':>12}"
        print(f"{name:32}{ours:>11.1f}{shown}", flush=True)


def tensorflow_is_right(text: str, expected: list[str]) -> bool:
    try:
        return bool(expand_as_tensorflow(text) == expected)
    except (TypeError, ValueError):
        return False


def taken_ms(expand: Callable[[str], list[str]], text: str) -> float:
    begun = time.process_time()
    expand(text)
    return (time.process_time() - begun) * 1e3


if __name__ == "__main__":
    main()
