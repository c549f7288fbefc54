"""A CSVLogger's file by itself; test_resumed_callbacks.py has it in trainings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import pytest

from tf_preempt.callbacks.csv_rows import put_rows, take_rows


def logger_with_a_row(file: Path, *, append: bool = False) -> Any:
    logger = keras.callbacks.CSVLogger(str(file), append=append)
    logger.on_train_begin()
    logger.on_epoch_end(0, {"loss": 0.5})
    return logger


@pytest.mark.parametrize("append", [True, False])
def test_logger_that_has_written_goes_on_behind_the_rows_put_back(tmp_path: Path, append: bool) -> None:
    """As in a notebook, where the logger of the interrupted training is used again."""
    logger = logger_with_a_row(tmp_path / "log.csv", append=append)
    rows = take_rows(logger)
    assert rows is not None
    logger.on_epoch_end(1, {"loss": 9.0})
    keys = logger.keys
    put_rows(logger, rows, go_on=True)
    assert logger.append is append
    logger.keys = keys
    logger.on_epoch_end(1, {"loss": 0.25})
    logger.on_train_end()
    assert (tmp_path / "log.csv").read_text().split() == ["epoch,loss,val_loss", "0,0.5,NA", "1,0.25,NA"]


def test_complete_file_stays_closed(tmp_path: Path) -> None:
    logger = logger_with_a_row(tmp_path / "log.csv")
    put_rows(logger, b"all of it\r\n", go_on=False)
    assert logger.csv_file.closed
    logger.on_train_end()
    assert (tmp_path / "log.csv").read_bytes() == b"all of it\r\n"


def test_file_that_is_not_there_has_no_rows(tmp_path: Path) -> None:
    assert take_rows(keras.callbacks.CSVLogger(str(tmp_path / "log.csv"))) is None


def test_empty_file_gets_its_header_after_it_was_put_back(tmp_path: Path) -> None:
    logger = logger_with_a_row(tmp_path / "log.csv")
    put_rows(logger, b"", go_on=True)
    logger.on_epoch_end(0, {"loss": 1.0})
    logger.on_train_end()
    assert (tmp_path / "log.csv").read_text().split() == ["epoch,loss,val_loss", "0,1.0,NA"]
