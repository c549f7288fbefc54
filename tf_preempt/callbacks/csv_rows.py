"""The file of a ``CSVLogger``: after a resume it has the rows up to the commit, no more and no fewer.

Without ``append=True`` Keras empties the file in ``on_train_begin``, before anything can be restored; with
it, rows that a killed life wrote after its last commit stay, and are written again.  So a checkpoint keeps
the rows themselves (one per epoch: few bytes), and a resume puts them back, whatever has become of the file.
"""

from __future__ import annotations

import logging
import os
from typing import Any

import keras
import tensorflow as tf

from tf_preempt import _files

_log = logging.getLogger("tf_preempt")

_put_back: set[str] = set()
"""Files that this process has put in order."""


def take_rows(logger: Any) -> bytes | None:
    """What is in the file now, header included; None if there is no file.

    Args:
        logger: a ``keras.callbacks.CSVLogger``.

    Raises:
        OSError, tf.errors.OpError: the file cannot be read.
    """
    if logger.csv_file is not None and not logger.csv_file.closed:
        logger.csv_file.flush()
    return _files.read_bytes(logger.filename) if _files.exists(logger.filename) else None


def put_rows(logger: Any, rows: bytes, *, go_on: bool) -> None:
    """Gives the file the rows of a commit.

    Args:
        logger: a ``keras.callbacks.CSVLogger``.
        rows: what `take_rows` has read.
        go_on: more rows follow; else the file stays closed.

    Raises:
        OSError, tf.errors.OpError: the file cannot be written.
    """
    if logger.csv_file is not None and not logger.csv_file.closed:
        logger.csv_file.close()
    logger.writer = None  # of that file; Keras 3.10 would keep it
    with tf.io.gfile.GFile(logger.filename, "wb") as file:  # in place: somebody may be following the file
        file.write(rows)
    _put_back.add(_key(logger))
    if go_on:
        append, logger.append = logger.append, True
        try:
            # Opens the file, and sees whether it has a header.
            keras.callbacks.CSVLogger.on_train_begin(logger)
        finally:
            logger.append = append


def warn_of_rows_of_a_lost_life(logger: Any) -> None:
    """Warns where a file may hold rows of a life that ended before its first checkpoint.

    Such a life is repeated from its beginning, and nobody knows what the file held then.

    Args:
        logger: a ``keras.callbacks.CSVLogger`` in a training that an earlier life has begun, and of which
            there is no checkpoint.
    """
    name = logger.filename
    if (
        not logger.append
        or _key(logger) in _put_back
        or not _files.exists(name)
        or not _files.size_bytes(name)
    ):
        return
    _log.warning(
        "CSVLogger(%r, append=True): the file has rows already, and an earlier life of this program ended "
        "before its first checkpoint. Rows that it wrote are written again.\n"
        "HINT: CSVLogger(..., append=False): PreemptionCheckpoint keeps the rows over a resume.",
        name,
    )


def _key(logger: Any) -> str:
    name: str = logger.filename
    return name if _files.is_url(name) else os.path.abspath(name)
