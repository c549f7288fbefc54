from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_preempt.strategies import MirroredStrategy


def test_keras_takes_it_for_tensorflow_s() -> None:
    assert issubclass(MirroredStrategy, tf.distribute.MirroredStrategy)


def test_strategies_over_the_same_devices_do_not_disturb_each_other(without_cluster: dict[str, Any]) -> None:
    assert without_cluster["strategies in turn"] == [[2.0] * 3, [2.0] * 5]
