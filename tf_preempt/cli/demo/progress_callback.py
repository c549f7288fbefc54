"""The Keras callback of the demo's workers that writes down each batch."""

from __future__ import annotations

from typing import Any

import keras

from tf_preempt.cli.demo.progress import TRAIN, VALIDATE, Position, ProgressFile

__all__ = ["Progress"]


class Progress(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Notes each batch of training and validation when it is done.

    Args:
        file: where.
    """

    def __init__(self, file: ProgressFile) -> None:
        super().__init__()
        self._file = file
        self._epoch = 0

    def get_state(self) -> dict[str, Any]:
        """What a resumed training has to give back: the epoch."""
        return {"epoch": self._epoch}

    def set_state(self, state: dict[str, Any]) -> None:
        """Takes what `get_state` gave."""
        self._epoch = state["epoch"]

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Notes the epoch."""
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Writes down a training step."""
        self._file.add(Position(self._epoch, TRAIN, batch))

    def on_test_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Writes down a batch of a validation."""
        self._file.add(Position(self._epoch, VALIDATE, batch))
