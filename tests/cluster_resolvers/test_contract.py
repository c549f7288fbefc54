"""What every resolver has to do, run on each implementation."""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import tensorflow as tf

from tf_preempt.cluster_resolvers import (
    LocalClusterResolver,
    SlurmClusterResolver,
    TFConfigClusterResolver,
    auto,
)
from tf_preempt.cluster_resolvers.base import ClusterResolverBase
from tf_preempt.errors import ClusterConfigError


def slurm_step(index):
    return {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(index),
        "SLURM_STEP_NUM_TASKS": "3",
        "SLURM_STEP_NODELIST": "n[9-10],a1",
        "SLURM_STEP_TASKS_PER_NODE": "1(x3)",
    }


def tf_config(index):
    cluster = {"worker": ["n9:1", "n10:1", "a1:1"]}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})}


@dataclasses.dataclass(frozen=True)
class Case:
    """How to build worker `index` of a cluster of three, and the environment that it may read."""

    build: Callable[[int, dict[str, str]], ClusterResolverBase]
    environ: Callable[[int], Mapping[str, str]] = lambda index: {}


CASES = {
    "local": Case(lambda index, environ: LocalClusterResolver(3, index, [15001, 15002, 15003])),
    "tf_config": Case(lambda index, environ: TFConfigClusterResolver(environ=environ), tf_config),
    "slurm": Case(lambda index, environ: SlurmClusterResolver(environ=environ), slurm_step),
    "auto_slurm": Case(lambda index, environ: auto(environ), slurm_step),
    "auto_tf_config": Case(lambda index, environ: auto(environ), tf_config),
}


@pytest.fixture(params=CASES)
def build(request) -> Callable[[int], Any]:
    case = CASES[request.param]
    return lambda index: case.build(index, dict(case.environ(index)))


def test_tensorflow_accepts_it(build):
    assert isinstance(build(0), tf.distribute.cluster_resolver.ClusterResolver)
    assert isinstance(build(0).cluster_spec(), tf.train.ClusterSpec)


def test_the_task_is_known_before_the_cluster_is_asked_for(build):
    assert [build(index).get_task_info() for index in range(3)] == [
        ("worker", 0),
        ("worker", 1),
        ("worker", 2),
    ]
    assert [(build(index).task_type, build(index).task_id) for index in range(3)] == [
        ("worker", 0),
        ("worker", 1),
        ("worker", 2),
    ]


def test_all_workers_see_the_same_cluster_of_different_addresses(build):
    clusters = [build(index).cluster_spec().as_dict() for index in range(3)]
    assert clusters == [clusters[0]] * 3
    assert len(set(clusters[0]["worker"])) == 3


def test_asking_twice_gives_the_same_answer(build):
    resolver = build(1)
    assert resolver.cluster_spec().as_dict() == resolver.cluster_spec().as_dict()
    assert resolver.get_task_info() == ("worker", 1)


def test_master_is_the_own_address_unless_told_otherwise(build):
    resolver = build(1)
    addresses = resolver.cluster_spec().as_dict()["worker"]
    assert resolver.master(rpc_layer="grpc") == f"grpc://{addresses[1]}"
    assert resolver.master(task_id=2, rpc_layer="x") == f"x://{addresses[2]}"
    assert resolver.master("worker", 0, "grpc") == f"grpc://{addresses[0]}"


@pytest.mark.parametrize("task", [("ps", 0), ("worker", 3), ("worker", -1)])
def test_master_of_a_task_that_is_not_there_is_an_error(build, task):
    with pytest.raises(ClusterConfigError, match="no task") as caught:
        build(0).master(*task)
    assert "{'worker': 3}" in str(caught.value)


def test_environment_is_empty_outside_of_google(build):
    assert build(0).environment == ""


def test_attributes_can_be_set_as_tensorflows(build):
    resolver = build(0)
    resolver.rpc_layer, resolver.task_type, resolver.task_id = "x", "worker", 2
    addresses = resolver.cluster_spec().as_dict()["worker"]
    assert resolver.master() == f"x://{addresses[2]}"


def test_accelerators_are_those_of_this_process(build):
    expected = len(tf.config.list_physical_devices("GPU"))
    assert build(0).num_accelerators().get("GPU", 0) == expected
    assert build(0).num_accelerators("worker", 1, config_proto=None).get("GPU", 0) == expected


def test_counting_accelerators_leaves_the_runtime_uninitialized():
    # In a process of its own.  Virtual devices can be configured until the runtime is initialized, not after.
    code = (
        "import tensorflow as tf; from tf_preempt.cluster_resolvers import LocalClusterResolver as Local\n"
        "Local().num_accelerators(); cpu, *_ = tf.config.list_physical_devices('CPU')\n"
        "tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)\n"
        "assert len(tf.config.list_logical_devices('CPU')) == 2\n"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=120, check=False, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr.decode()
