from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import tensorflow as tf

from tf_preempt import errors, strategies
from tf_preempt.strategies.auto import worker_count


def resolver(cluster: dict[str, list[str]], task_type: str) -> tf.distribute.cluster_resolver.ClusterResolver:
    spec = tf.train.ClusterSpec(cluster)
    return tf.distribute.cluster_resolver.SimpleClusterResolver(spec, task_type=task_type, task_id=0)


@pytest.mark.parametrize(
    ("cluster", "task_type", "workers"),
    [
        ({}, None, 0),
        ({}, "", 0),
        ({"worker": ["a:1"]}, "worker", 1),
        ({"worker": ["a:1", "b:1"]}, "worker", 2),
        ({"chief": ["a:1"], "worker": ["b:1", "c:1"]}, "chief", 3),
        ({"chief": ["a:1"], "evaluator": ["b:1"]}, "chief", 1),
        ({"worker": ["a:1"], "ps": []}, "worker", 1),
    ],
)
def test_worker_count(cluster: dict[str, list[str]], task_type: str | None, workers: int) -> None:
    assert worker_count(cluster, task_type) == workers


@pytest.mark.parametrize(
    ("cluster", "task_type", "named"),
    [
        ({"worker": ["a:1"], "ps": ["b:1", "c:1"]}, "worker", "'ps': 2 tasks"),
        ({"worker": ["a:1", "b:1"], "evaluator": ["c:1"]}, "evaluator", "this task is 'evaluator'"),
    ],
)
def test_clusters_that_do_not_train_synchronously_are_refused(
    cluster: dict[str, list[str]], task_type: str, named: str
) -> None:
    with pytest.raises(errors.UnsupportedStrategyError, match=f"{named}(?s:.)*HINT: "):
        worker_count(cluster, task_type)


@pytest.mark.parametrize("cluster", [{}, {"worker": ["127.0.0.1:1"]}])
def test_one_worker_gets_tensorflow_s_default(cluster: dict[str, list[str]]) -> None:
    assert strategies.auto(resolver(cluster, "worker")) is tf.distribute.get_strategy()


def test_no_resolver_asks_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    from tf_preempt import cluster_resolvers

    monkeypatch.setattr(cluster_resolvers, "auto", lambda: resolver({}, "worker"))
    assert strategies.auto() is tf.distribute.get_strategy()


def test_several_gpus_get_a_mirrored_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    mirrored = object()
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind] * 2)
    monkeypatch.setattr("tf_preempt.strategies.mirrored.MirroredStrategy", lambda: mirrored)
    assert strategies.auto(resolver({}, "worker")) is mirrored


@pytest.mark.parametrize("worker", [0, 1])
def test_two_workers_get_ours(two_workers: Any, worker: int) -> None:
    found = two_workers.saved[worker]["coordination"]["strategy"]
    assert found == "tf_preempt.strategies.multi_worker_mirrored"


def test_package_is_imported_without_tensorflow_and_auto_stays_a_function() -> None:
    program = (
        "import sys, tf_preempt.strategies, tf_preempt.strategies.auto\n"
        "print('tensorflow' in sys.modules, callable(tf_preempt.strategies.auto), dir(tf_preempt.strategies))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout.startswith("False True ")
    assert "MultiWorkerMirroredStrategy" in ended.stdout


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'MirroredStrategies'"):
        strategies.MirroredStrategies  # noqa: B018
