from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from tf_preempt import errors
from tf_preempt.strategies import MultiWorkerMirroredStrategy


def test_keras_takes_it_for_tensorflow_s() -> None:
    assert issubclass(MultiWorkerMirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy)


@pytest.mark.parametrize("arguments", [("worker-0:8888",), (None, "nccl")])
def test_argument_of_another_type_is_refused(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(errors.ConfigError, match=f"{arguments[-1]!r}(?s:.)*HINT: "):
        MultiWorkerMirroredStrategy(*arguments)


@pytest.mark.parametrize("task_type", ["ps", "worker"])
def test_parameter_servers_are_refused_on_all_tasks(task_type: str) -> None:
    spec = tf.train.ClusterSpec({"ps": ["127.0.0.1:1"], "worker": ["127.0.0.1:2", "127.0.0.1:3"]})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, task_type=task_type, task_id=0)
    with pytest.raises(errors.UnsupportedStrategyError, match=r"job 'ps': 1 tasks(?s:.)*HINT: "):
        MultiWorkerMirroredStrategy(resolver)


def test_too_late_after_devices_are_set_up(without_cluster: dict[str, Any]) -> None:
    text = without_cluster["after devices"]
    assert text.startswith(
        "ConfigError: MultiWorkerMirroredStrategy was constructed after TensorFlow had set up"
    )
    assert "HINT: construct it right after `import tensorflow`" in text


def test_too_late_in_another_cluster(in_cluster_of_one: dict[str, Any]) -> None:
    text = in_cluster_of_one["after another cluster"]
    assert text.startswith("ConfigError: ")
    assert "constructed in a process that is already set up for another cluster" in text


def test_trains_without_a_cluster(without_cluster: dict[str, Any]) -> None:
    plain = without_cluster["fit without strategy"]
    assert without_cluster["fit"]["loss"] == pytest.approx(plain["loss"], rel=1e-6)
    assert without_cluster["fit"]["rows"] == 12
    assert without_cluster["saveable"] == "no error"


def test_trains_as_the_only_worker_of_a_cluster(
    in_cluster_of_one: dict[str, Any], without_cluster: dict[str, Any]
) -> None:
    plain = without_cluster["fit without strategy"]
    assert in_cluster_of_one["fit"]["loss"] == pytest.approx(plain["loss"], rel=1e-6)
    assert in_cluster_of_one["workers"] == [1, 1]
    assert in_cluster_of_one["saveable"] == "no error"


def test_stock_strategy_is_suspected_until_ours_is_there(in_cluster_of_one: dict[str, Any]) -> None:
    assert in_cluster_of_one["suspected"] == [False, True, False]


def test_nothing_is_suspected_without_a_cluster(without_cluster: dict[str, Any]) -> None:
    assert without_cluster["suspected"] is False


@pytest.mark.parametrize("worker", [0, 1])
def test_ours_is_not_suspected(two_workers: Any, worker: int) -> None:
    assert two_workers.saved[worker]["coordination"]["stock suspected"] is False


def test_strategies_made_later_and_on_one_worker_alone_do_not_disturb_each_other(two_workers: Any) -> None:
    chief, other = (one["more_strategies"] for one in two_workers.saved)
    assert chief == [[1.0] * 4, [2.0] * 3, [1.0] * 6, [2.0] * 5]
    assert other == [[2.0] * 3, [2.0] * 5]
