"""Runs cases of the Keras conformance matrix in one setting, one after the other.

Usage: keras_matrix.py SETTING DIRECTORY GROUP [CASE ...]

SETTING is ``alone``, ``devices`` (two logical CPUs of this process) or ``workers`` (one of several processes,
told by ``TF_CONFIG``).  Writes ``<alone | devices | worker-i>-<case>.npz`` for each case that has ended.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from tests.integration.scripts import keras_matrix_table as table

if TYPE_CHECKING:
    from tests.integration.scripts import keras_matrix_parts as parts


def make_strategy(setting: str) -> tuple[tf.distribute.Strategy, int]:
    """The strategy and this worker's index; must come before anything else of TensorFlow and Keras."""
    if setting == "workers":
        from tf_preempt.strategies import MultiWorkerMirroredStrategy

        strategy = MultiWorkerMirroredStrategy()
        return strategy, strategy.cluster_resolver.task_id
    if setting == "devices":
        from tf_preempt.strategies import MirroredStrategy

        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        return MirroredStrategy(["CPU:0", "CPU:1"]), 0
    return tf.distribute.get_strategy(), 0


def main(setting_name: str, directory: str, group: str, *names: str) -> None:
    strategy, worker = make_strategy(setting_name)
    from tests.integration.scripts import keras_matrix_parts as parts

    setting = parts.Setting(name=setting_name, strategy=strategy, directory=directory, worker=worker)
    module = importlib.import_module(f"tests.integration.scripts.keras_matrix_{group}")
    cases = [case for case in table.cases_of(group) if not names or case.name in names]
    for case in cases:
        print("case", case.name, flush=True)
        function = getattr(module, case.name)
        refused = setting_name in case.refused
        found = {"error": refusal(function, setting)} if refused else function(setting)
        arrays = {key: np.asarray(value) for key, value in found.items()}
        np.savez(setting.own_path(f"{case.name}.npz"), **arrays)
    if setting_name == "workers" and any("workers" in case.refused for case in cases):
        # A step that failed has ended the collectives, without which TensorFlow aborts as it leaves.
        os._exit(0)


def refusal(case: Callable[[parts.Setting], parts.Arrays], setting: parts.Setting) -> str:
    """The message of the error that the case has to raise; empty if it raises none."""
    try:
        case(setting)
    except Exception as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main(*sys.argv[1:])
