"""Callbacks that change weights when training or an epoch begins do not do it again over what was trained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from tests.callbacks.lives import Program, assert_identical
from tf_preempt.callbacks import OnChief
from tf_preempt.callbacks.begin_hooks import may_change_variables


class Scales(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        kernel = self.model.layers[1].kernel
        kernel.assign(kernel * 0.5)


class SetsWeights(keras.callbacks.Callback):
    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self.model.layers[1].kernel.assign(np.ones(self.model.layers[1].kernel.shape))


class Counts(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        pass


def scales_by_a_lambda() -> keras.callbacks.Callback:
    callback = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: Scales.on_epoch_begin(callback, epoch)
    )
    return callback


@pytest.mark.parametrize(
    "make", [Scales, SetsWeights, scales_by_a_lambda], ids=["epoch", "training", "lambda"]
)
@pytest.mark.parametrize("batch", [0, 2])
@pytest.mark.parametrize("ours_first", [True, False], ids=["behind ours", "before ours"])
def test_weights_that_begin_hooks_change(
    tmp_path: Path, make: Callable[[], Any], batch: int, ours_first: bool
) -> None:
    def callbacks(ours: Any) -> list[Any]:
        return [ours, make()] if ours_first else [make(), ours]

    program = Program(callbacks=callbacks)
    whole = program.run(tmp_path / "whole")
    assert_identical(program.run_interrupted(tmp_path / "lives", epoch=1, batch=batch), whole)


@pytest.mark.parametrize(
    ("callback", "expected"),
    [
        (Scales(), True),
        (OnChief(SetsWeights()), True),
        (scales_by_a_lambda(), True),
        (Counts(), False),
        (keras.callbacks.LambdaCallback(on_epoch_end=print), False),
        (keras.callbacks.EarlyStopping(), False),
        (keras.callbacks.LearningRateScheduler(lambda epoch: 0.1), False),
    ],
)
def test_the_checkpoint_is_read_again_only_where_it_may_be_needed(callback: Any, expected: bool) -> None:
    assert may_change_variables([callback]) is expected
