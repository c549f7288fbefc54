"""Trains with a CSVLogger; ``killed_logger.py DIRECTORY append|anew [kill]``.

With ``kill`` the process is killed after the second epoch's row was written, when the newest commit is from
the middle of that epoch.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import keras

from tests.callbacks import lives
from tf_preempt.callbacks import PreemptionCheckpoint


class Kill(keras.callbacks.Callback):
    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1:
            committed = self._directory / "ckpt-1.manifest.json"
            for _ in range(300):
                if committed.exists():
                    break
                threading.Event().wait(0.1)
            os.kill(os.getpid(), signal.SIGKILL)


def main(directory: str, mode: str, kill: str = "") -> None:
    keras.utils.set_random_seed(1)
    place = Path(directory)
    logger = keras.callbacks.CSVLogger(str(place / "log.csv"), append=mode == "append")
    ours = PreemptionCheckpoint(place / "ckpt", save_every=lives.STEPS + 2)
    more = [Kill(place / "ckpt")] if kill else []
    model = lives.dense_model()
    callbacks = [logger, ours, *more]
    model.fit(**lives.fit_pipeline(), epochs=3, verbose=0, shuffle=False, callbacks=callbacks)


if __name__ == "__main__":
    main(*sys.argv[1:])
