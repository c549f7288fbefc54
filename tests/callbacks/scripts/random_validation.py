"""Trains with random layers in the data and a strategy: ``random_validation.py DIR RESULT [interrupt]``.

Op determinism is on: what strategies read ahead would draw from the layers at any time.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import keras
import tensorflow as tf

from tests.callbacks import lives
from tests.callbacks.test_randomness import augmented, layer_noise
from tf_preempt.callbacks import PreemptionCheckpoint
from tf_preempt.strategies import MirroredStrategy


def main(directory: str, result: str, interrupt: str = "") -> None:
    keras.utils.set_random_seed(1)
    tf.config.experimental.enable_op_determinism()
    with MirroredStrategy(["CPU:0"]).scope():
        model = lives.dense_model()
    more = [lives.Interrupt(1, 2)] if interrupt else []
    callbacks = [PreemptionCheckpoint(directory, save_every=None), *more]
    history = model.fit(**augmented(layer_noise)(), epochs=3, verbose=0, shuffle=False, callbacks=callbacks)
    Path(result).write_text(json.dumps(history.history))


if __name__ == "__main__":
    main(*sys.argv[1:])
