from __future__ import annotations

import json
from typing import Any

import pytest
import tensorflow as tf

from tf_preempt.checkpointing.cluster import (
    check_stock_strategy,
    check_strategy,
    cluster_of,
    cluster_of_resolver,
)
from tf_preempt.checkpointing.startup import Cluster
from tf_preempt.errors import UnsupportedStrategyError


def resolver(jobs: dict[str, int], task_type: str | None, task_id: int | None) -> Any:
    addresses = {job: [f"{job}{index}:1" for index in range(count)] for job, count in jobs.items()}
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(addresses), task_type=task_type, task_id=task_id
    )


@pytest.mark.parametrize(
    ("jobs", "task", "cluster"),
    [
        ({}, (None, None), Cluster()),
        ({"worker": 1}, ("worker", 0), Cluster()),
        ({"chief": 1}, ("chief", 0), Cluster()),
        ({"worker": 1, "evaluator": 1}, ("evaluator", 0), Cluster()),
        ({"worker": 3}, ("worker", 0), Cluster(worker=0, workers=3)),
        ({"worker": 3}, ("worker", 2), Cluster(worker=2, workers=3)),
        ({"chief": 1, "worker": 2}, ("chief", 0), Cluster(worker=0, workers=3)),
        ({"chief": 1, "worker": 2}, ("worker", 0), Cluster(worker=1, workers=3)),
        ({"chief": 1, "worker": 2}, ("worker", 1), Cluster(worker=2, workers=3)),
        ({"worker": 2, "evaluator": 1}, ("worker", 1), Cluster(worker=1, workers=2)),
    ],
)
def test_the_cluster_of_a_resolver(jobs: dict[str, int], task: tuple[Any, Any], cluster: Cluster) -> None:
    assert cluster_of_resolver(resolver(jobs, *task)) == cluster


def test_no_resolver_is_one_worker() -> None:
    assert cluster_of_resolver(None) == Cluster(worker=0, workers=1)


@pytest.mark.parametrize(
    ("jobs", "task", "text"),
    [
        ({"chief": 1, "ps": 1, "worker": 1}, ("worker", 0), "parameter servers"),
        ({"ps": 1}, ("ps", 0), "parameter servers"),
        ({"worker": 2, "evaluator": 1}, ("evaluator", 0), "'evaluator' 0"),
        ({"worker": 2}, (None, None), "This task is None"),
    ],
)
def test_a_task_that_does_not_train_synchronously_is_refused(
    jobs: dict[str, int], task: tuple[Any, Any], text: str
) -> None:
    with pytest.raises(UnsupportedStrategyError, match="HINT: use") as raised:
        cluster_of_resolver(resolver(jobs, *task))
    assert text in str(raised.value)


@pytest.mark.parametrize(("worker", "is_chief"), [(0, True), (1, False)])
def test_the_first_worker_is_the_chief(worker: int, is_chief: bool) -> None:
    assert Cluster(worker=worker, workers=2).is_chief is is_chief


def of_class(kind: type) -> Any:
    """A strategy as far as `isinstance` goes; a real multi-worker one would start a server."""
    return object.__new__(kind)


@pytest.mark.parametrize(
    "make", [tf.distribute.get_strategy, lambda: tf.distribute.OneDeviceStrategy("CPU:0")]
)
def test_a_strategy_in_one_process_is_one_worker(make: Any) -> None:
    strategy = make()
    assert cluster_of(strategy) == Cluster()
    check_strategy(strategy, {})


def test_the_stock_multi_worker_strategy_is_refused_by_the_name_of_the_one_to_use() -> None:
    stock = of_class(tf.distribute.MultiWorkerMirroredStrategy)
    with pytest.raises(
        UnsupportedStrategyError, match=r"(?s)HINT: use tf_preempt\.strategies\.MultiWorkerMirroredStrategy"
    ):
        check_strategy(stock, {})


def tf_config(**jobs: int) -> dict[str, str]:
    cluster = {job: [f"h{index}:1" for index in range(count)] for job, count in jobs.items()}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}})}


@pytest.mark.parametrize("environ", [tf_config(worker=2), tf_config(chief=1, worker=1)])
def test_several_workers_that_would_each_train_alone_are_refused(environ: dict[str, str]) -> None:
    with pytest.raises(UnsupportedStrategyError, match=r"(?s)TF_CONFIG describes 2 workers.*HINT: pass"):
        check_strategy(tf.distribute.get_strategy(), environ)


STEP_OF_TWO = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "1",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "n[9-10]",
}


@pytest.mark.parametrize(
    ("environ", "warnings"),
    [
        (STEP_OF_TWO, 1),
        (STEP_OF_TWO | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "SLURM_STEP_NODELIST": "n9"}, 0),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_JOB_NODELIST": "n[9-10]"}, 0),
        (STEP_OF_TWO | {"SLURM_PROCID": "many"}, 0),
    ],
    ids=["two tasks", "one task", "batch script", "unreadable"],
)
def test_tasks_of_a_slurm_step_that_train_alone_are_warned(
    environ: dict[str, str], warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    check_strategy(tf.distribute.get_strategy(), environ)
    assert caplog.text.count("This Slurm step has 2 tasks, but by the model's strategy") == warnings


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"TF_CONFIG": ""},
        {"TF_CONFIG": "no json"},
        {"TF_CONFIG": "[]"},
        {"TF_CONFIG": "{}"},
        {"TF_CONFIG": '{"cluster": null}'},
        {"TF_CONFIG": '{"cluster": {"worker": 3}}'},
        tf_config(worker=1),
        tf_config(worker=1, evaluator=1),
    ],
)
def test_one_worker_or_nothing_that_can_be_read_is_fine(environ: dict[str, str]) -> None:
    check_strategy(tf.distribute.get_strategy(), environ)


def test_no_stock_strategy_was_made_in_this_process() -> None:
    check_stock_strategy()
