"""The resolver beside TensorFlow's: where both agree, and where docs/migration.md says that they differ.

A difference that TensorFlow gives up fails here, so that the page can be mended.
"""

import os

import pytest
import tensorflow as tf

from tf_preempt.cluster_resolvers import SlurmClusterResolver
from tf_preempt.errors import ClusterConfigError

STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "2",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
    "SLURM_GPUS_ON_NODE": "2",
    "CUDA_VISIBLE_DEVICES": "0,1",
}


Theirs = tf.distribute.cluster_resolver.SlurmClusterResolver


@pytest.fixture
def environ(monkeypatch):
    """Sets variables for TensorFlow's resolver, which reads the process's own, and returns them for ours."""

    def put(**change):
        merged = {**STEP, **change}
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        for name, value in merged.items():
            if value is None:
                monkeypatch.delenv(name, raising=False)
            else:
                monkeypatch.setenv(name, value)
        return {name: value for name, value in merged.items() if value is not None}

    return put


@pytest.mark.parametrize(
    ("change", "arguments"),
    [
        ({}, (None, 8888)),
        ({}, ({"worker": 3}, 8888)),
        ({}, ({"chief": 1, "worker": 2}, 8888)),
        ({}, ({"worker": 3}, 9000, 2, 1)),
        ({}, ({"worker": 3}, 9000, 2, 1, {"n1": 2, "n2": 1}, False, "grpc+verbs")),
        ({"SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_STEP_NUM_TASKS": "4"}, ({"worker": 4}, 9000, 2, 1, 2)),
        ({"SLURM_STEP_NODELIST": "n[08-09]"}, ({"ps": 1, "worker": 2}, 9000)),
    ],
)
def test_a_program_that_names_its_ports_gets_the_same(environ, change, arguments):
    ours_in = environ(**change)
    theirs, ours = Theirs(*arguments), SlurmClusterResolver(*arguments, environ=ours_in)
    assert theirs.cluster_spec() == ours.cluster_spec()
    assert theirs.get_task_info() == ours.get_task_info()
    assert (theirs.task_type, theirs.task_id) == (ours.task_type, ours.task_id)
    assert theirs.rpc_layer == ours.rpc_layer
    assert theirs.environment == ours.environment == ""
    for override in ((), ("worker", 0), ("worker", 1, "x")):
        assert theirs.master(*override) == ours.master(*override)
    assert ours_in["CUDA_VISIBLE_DEVICES"] == os.environ["CUDA_VISIBLE_DEVICES"]


@pytest.mark.parametrize(
    ("jobs", "gpus_per_task", "words"),
    [
        ({"worker": 4}, None, "equested 4 tasks|requests 4 tasks"),
        (None, 2, "more GPUs per node"),
    ],
)
def test_the_same_errors_of_the_same_type(environ, jobs, gpus_per_task, words):
    ours_in = environ()
    for build in (
        lambda: Theirs(jobs, 8888, None, gpus_per_task).cluster_spec(),
        lambda: SlurmClusterResolver(jobs, 8888, None, gpus_per_task, environ=ours_in),
    ):
        with pytest.raises(RuntimeError, match=words):
            build()


def test_hosts_are_in_slurms_order_not_the_alphabets(environ):
    ours_in = environ(
        SLURM_STEP_NODELIST="n[9-10]",
        SLURM_STEP_TASKS_PER_NODE="1(x2)",
        SLURM_STEP_NUM_TASKS="2",
        SLURM_PROCID="0",
    )
    assert Theirs(None, 80).cluster_spec().as_dict() == {"worker": ["n10:80", "n9:80"]}
    assert SlurmClusterResolver(None, 80, environ=ours_in).cluster_spec().as_dict() == {
        "worker": ["n9:80", "n10:80"]
    }


def test_ranks_go_to_jobs_in_the_order_given_not_the_alphabets(environ):
    ours_in, jobs = environ(SLURM_PROCID="0"), {"worker": 2, "evaluator": 1}
    theirs = Theirs(jobs, 80)
    assert theirs.get_task_info() == (None, None)
    theirs.cluster_spec()
    assert theirs.get_task_info() == ("evaluator", 0)
    assert SlurmClusterResolver(jobs, 80, environ=ours_in).get_task_info() == ("worker", 0)


def test_ports_are_of_the_job_unless_given(environ):
    ours_in = environ()
    assert Theirs().cluster_spec().as_dict()["worker"][0] == "n1:8888"
    first = SlurmClusterResolver(environ=ours_in).cluster_spec().as_dict()["worker"][0]
    assert (
        first
        != SlurmClusterResolver(environ={**ours_in, "SLURM_JOB_ID": "8"})
        .cluster_spec()
        .as_dict()["worker"][0]
    )


def test_gpus_keep_their_names_and_are_divided_once(environ):
    ours_in = environ(CUDA_VISIBLE_DEVICES="4,5,6,7", SLURM_GPUS_ON_NODE="4", SLURM_PROCID="0")
    for theirs, ours in (("0,1", "4,5"), ("0", "4,5")):
        Theirs().cluster_spec()
        SlurmClusterResolver(environ=ours_in).cluster_spec()
        assert (os.environ["CUDA_VISIBLE_DEVICES"], ours_in["CUDA_VISIBLE_DEVICES"]) == (theirs, ours)


@pytest.mark.parametrize("visible", ["0", "", "NoDevFiles"])
def test_a_task_with_one_gpu_of_its_own_or_none_is_no_error(environ, visible):
    ours_in = environ(CUDA_VISIBLE_DEVICES=visible, SLURMD_TRES_BIND="gpu:per_task:1")
    with pytest.raises(ValueError, match="must not be zero"):
        Theirs().cluster_spec()
    SlurmClusterResolver(environ=ours_in)
    assert ours_in["CUDA_VISIBLE_DEVICES"] == visible


def test_a_job_without_gpus_needs_no_argument(environ, monkeypatch):
    ours_in = environ(CUDA_VISIBLE_DEVICES=None, SLURM_GPUS_ON_NODE=None)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(FileNotFoundError, match="nvidia-smi"):
        Theirs()
    assert SlurmClusterResolver(environ=ours_in).num_accelerators() == {}


@pytest.mark.parametrize(
    ("change", "theirs", "ours"),
    [
        ({"SLURM_PROCID": "3"}, IndexError, "SLURM_PROCID=3 is not a rank"),
        ({"SLURM_STEP_TASKS_PER_NODE": "2"}, RuntimeError, "are for 1 nodes, but the step has 2"),
        ({"SLURM_STEP_NODELIST": "n[1-2]-ib"}, ValueError, "nothing after the last bracket"),
    ],
)
def test_what_contradicts_itself_is_a_runtime_error(environ, change, theirs, ours):
    ours_in = environ(**change)
    with pytest.raises(theirs):
        Theirs().cluster_spec()
    with pytest.raises(RuntimeError, match=ours):
        SlurmClusterResolver(environ=ours_in)


def test_host_lists_with_two_brackets_are_read(environ):
    ours_in = environ(SLURM_STEP_NODELIST="rack1n[1],rack[2]n[1]")
    with pytest.raises(ValueError, match="Invalid part"):
        Theirs()
    hosts = SlurmClusterResolver(None, 80, environ=ours_in).cluster_spec().as_dict()["worker"]
    assert hosts == ["rack1n1:80", "rack1n1:81", "rack2n1:80"]


def test_outside_of_srun_a_job_of_one_task_is_a_cluster(environ):
    alone = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "1", "SLURM_JOB_NODELIST": "n1", "SLURMD_NODENAME": "n1"}
    environ(**dict.fromkeys(STEP), **{name: alone.get(name) for name in alone if name not in STEP})
    with pytest.raises(RuntimeError, match="not found in environment"):
        Theirs()
    assert SlurmClusterResolver(None, 80, environ=alone).cluster_spec().as_dict() == {"worker": ["n1:80"]}


def test_master_of_a_task_that_is_not_there_is_an_error_of_ours(environ):
    ours_in = environ()
    with pytest.raises(ValueError, match="No task with index 7"):
        Theirs().master("worker", 7)
    with pytest.raises(ClusterConfigError, match="no task 'worker' 7"):
        SlurmClusterResolver(environ=ours_in).master("worker", 7)
