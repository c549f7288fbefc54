from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from tf_preempt.strategies import MirroredStrategy


def test_keras_takes_it_for_tensorflow_s() -> None:
    assert issubclass(MirroredStrategy, tf.distribute.MirroredStrategy)


def test_strategies_over_the_same_devices_do_not_disturb_each_other(without_cluster: dict[str, Any]) -> None:
    assert without_cluster["strategies in turn"] == [[2.0] * 3, [2.0] * 5]


BUILT = """
import sys
import tensorflow as tf
import tf_preempt
if sys.argv[2:]:
    exec(sys.argv[2])
try:
    strategy = tf_preempt.strategies.MirroredStrategy(sys.argv[1].split(","))
    print("replicas:", strategy.num_replicas_in_sync)
except tf_preempt.errors.ConfigError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("CPU:0,CPU:1", "devices=['CPU:0', 'CPU:1']: CPU:1 is not there; this process has CPU:0."),
        ("cpu:2,cpu:0", "devices=['CPU:2', 'CPU:0']: CPU:2 is not there; this process has CPU:0."),
        ("GPU:77", "devices=['GPU:77']: GPU:77 is not there; this process has CPU:0"),
    ],
)
def test_devices_that_do_not_exist_are_named(run_script: Any, asked: str, said: str) -> None:
    result = run_script(BUILT, asked)
    assert said in result.stdout, result.stdout + result.stderr
    assert "or leave devices out" in result.stdout


def test_the_cure_makes_as_many_devices_as_were_asked_for(run_script: Any) -> None:
    refused = run_script(BUILT, "CPU:0,CPU:1")
    _, _, hint = refused.stdout.partition("HINT: ")
    cure = hint[hint.index("tf.config.set") : hint.index("; or")]
    assert "replicas: 2" in run_script(BUILT, "CPU:0,CPU:1", cure).stdout
