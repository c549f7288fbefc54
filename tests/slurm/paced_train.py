"""Runs examples/train.py with steps that take as long as those of a larger model."""

import runpy
import time
from pathlib import Path

import keras

PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "train.py"
STEP_S = 0.25  # at least
fit = keras.Model.fit


class Pace(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(STEP_S)


def paced_fit(model, *arguments, callbacks, **options):
    return fit(model, *arguments, callbacks=[Pace(), *callbacks], **options)


keras.Model.fit = paced_fit
runpy.run_path(str(PROGRAM), run_name="__main__")
