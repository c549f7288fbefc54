"""A short text of each worker to all workers, with one small all-reduce."""

from __future__ import annotations

import bisect
import itertools
import json
import zlib
from typing import Any

import numpy as np
import tensorflow as tf

from tf_preempt import errors

# Long enough for what is sent, and the same on all workers, whatever they have to say.
ROW_BYTES = 4096

# In place of a text that does not fit: a worker that raised alone would leave the others waiting.
_TOO_LONG = "\x01too long: "


def worker_count(strategy: Any) -> int:
    """How many processes share the data of `strategy`."""
    return int(strategy.num_replicas_in_sync // len(strategy.extended.worker_devices))


def exchange_texts(strategy: Any, text: str) -> tuple[list[str], int]:
    """Tells all workers what each has to say; all must call it, in the same order, eagerly.

    Args:
        strategy: with one worker or several.
        text: at most 4,096 bytes in UTF-8, whatever it says.

    Returns:
        The texts, in the order of the workers, and this worker's place among them.

    Raises:
        ConfigError: the text of one of the workers is too long; the same on all of them.
    """
    workers, replicas_here = worker_count(strategy), len(strategy.extended.worker_devices)
    row = packed(text)
    me = -1

    def part(context: Any) -> tf.Tensor:
        nonlocal me
        worker, replica = divmod(context.replica_id_in_sync_group, replicas_here)
        me = worker
        table = np.zeros((workers, len(row)), np.int64)
        if replica == 0:
            table[worker] = row
        return tf.constant(table)

    parts = strategy.experimental_distribute_values_from_function(part)
    table = strategy.reduce(tf.distribute.ReduceOp.SUM, parts, axis=None)
    texts = [unpacked(one) for one in np.asarray(table)]
    check_complete(texts)
    return texts, me


def packed(text: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """A text as ``int64[512]``; of one that is too long, that it is, which `check_complete` finds."""
    content = text.encode("utf-8", "backslashreplace")
    if len(content) > ROW_BYTES:
        content = f"{_TOO_LONG}{len(content)}".encode()
    return np.frombuffer(content.ljust(ROW_BYTES, b"\0"), dtype="<i8").astype(np.int64)


def unpacked(row: np.ndarray[Any, np.dtype[np.int64]]) -> str:
    """The text that `packed` made a row of."""
    return row.astype("<i8").tobytes().rstrip(b"\0").decode()


def check_complete(texts: list[str]) -> None:
    """Refuses texts of which one did not fit; to be called by all workers with what all have sent.

    Raises:
        ConfigError: the text of a worker is longer than 4,096 bytes in UTF-8.
    """
    for worker, text in enumerate(texts):
        if text.startswith(_TOO_LONG):
            raise errors.ConfigError(
                f"worker {worker} has {text.removeprefix(_TOO_LONG)} bytes to tell the other workers of its "
                f"data set: expected at most {ROW_BYTES}.",
                hint="give the data set's elements a simpler structure.",
            )


def shortened(text: str, limit_bytes: int) -> str:
    """As much of a text as fits, with a checksum of the rest, so that different texts stay different.

    Args:
        text: any; what UTF-8 cannot hold, as in names of files, is written as escapes.
        limit_bytes: of the result in UTF-8, when it is written as JSON; 20 or more.
    """
    text = text.encode("utf-8", "backslashreplace").decode()
    mark = f"... ({zlib.crc32(text.encode()):08x})"
    lengths = [_json_bytes(character) for character in text[: limit_bytes + 1]]
    if len(text) <= limit_bytes and sum(lengths) <= limit_bytes:
        return text
    fits = bisect.bisect_right(list(itertools.accumulate(lengths)), limit_bytes - len(mark))
    return text[:fits] + mark


def _json_bytes(character: str) -> int:
    return len(json.dumps(character, ensure_ascii=False).encode()) - len('""')
