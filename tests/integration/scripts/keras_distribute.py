"""Runs, in one setting, what Keras 3 expects of a strategy: keras_distribute.py SETTING DIRECTORY [CASE ...]

SETTING is ``devices`` (two logical CPUs of this process) or ``workers`` (one of two processes, told by
``TF_CONFIG``).  Writes ``<devices | worker-i>-<case>.npz`` for each case that has ended.
"""

from __future__ import annotations

import sys

import numpy as np

from tests.integration.scripts import keras_matrix


def main(setting_name: str, directory: str, *names: str) -> None:
    strategy, worker = keras_matrix.make_strategy(setting_name)
    from tests.integration.scripts import keras_distribute_models as models
    from tests.integration.scripts import keras_distribute_optimizers as optimizers
    from tests.integration.scripts.keras_matrix_parts import Setting

    setting = Setting(name=setting_name, strategy=strategy, directory=directory, worker=worker)
    for name, case in {**models.CASES, **optimizers.CASES}.items():
        if names and name not in names:
            continue
        print("case", name, flush=True)
        found = {key: np.asarray(value) for key, value in case(setting).items()}
        np.savez(setting.own_path(f"{name}.npz"), **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
