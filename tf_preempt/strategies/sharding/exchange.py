"""A short text of each worker to all workers, with one small all-reduce."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tf_preempt import errors

# Long enough for what is sent, and the same on all workers, whatever they have to say.
ROW_BYTES = 4096


def worker_count(strategy: Any) -> int:
    """How many processes share the data of `strategy`."""
    return int(strategy.num_replicas_in_sync // len(strategy.extended.worker_devices))


def exchange_texts(strategy: Any, text: str) -> tuple[list[str], int]:
    """Tells all workers what each has to say; all must call it, in the same order, eagerly.

    Args:
        strategy: with one worker or several.
        text: at most 4,096 bytes in UTF-8.

    Returns:
        The texts, in the order of the workers, and this worker's place among them.

    Raises:
        ConfigError: `text` is too long.
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
    return [unpacked(one) for one in np.asarray(table)], me


def packed(text: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """A text as ``int64[512]``.

    Raises:
        ConfigError: it is longer than 4,096 bytes in UTF-8.
    """
    content = text.encode()
    if len(content) > ROW_BYTES:
        raise errors.ConfigError(
            f"{len(content)} bytes are to be sent to the other workers ({text[:60]!r}...): expected at most "
            f"{ROW_BYTES}.",
            hint="give the data set's elements a simpler structure.",
        )
    return np.frombuffer(content.ljust(ROW_BYTES, b"\0"), dtype="<i8").astype(np.int64)


def unpacked(row: np.ndarray[Any, np.dtype[np.int64]]) -> str:
    """The text that `packed` made a row of."""
    return row.astype("<i8").tobytes().rstrip(b"\0").decode()
