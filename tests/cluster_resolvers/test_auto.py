"""Which resolver is chosen, and what the log says about it."""

import json

import pytest

from tf_preempt import cluster_resolvers
from tf_preempt.cluster_resolvers import (
    LocalClusterResolver,
    SlurmClusterResolver,
    TFConfigClusterResolver,
    auto,
)
from tf_preempt.errors import ClusterConfigError, SlurmError

TF_CONFIG = {
    "TF_CONFIG": json.dumps({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}})
}
BATCH = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_NODELIST": "n[1-2]"}


def step(ntasks):
    return {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": "1",
        "SLURM_STEP_NUM_TASKS": str(ntasks),
        "SLURM_STEP_NODELIST": f"n[1-{ntasks}]",
    }


@pytest.mark.parametrize(
    ("environ", "kind", "info", "warnings"),
    [
        ({}, LocalClusterResolver, "TF_CONFIG is not set and this is no Slurm job", []),
        ({"TF_CONFIG": "{}"}, LocalClusterResolver, "TF_CONFIG is not set", []),
        (TF_CONFIG, TFConfigClusterResolver, "because it is set: worker 1 of a cluster of 2 worker", []),
        (
            step(3),
            SlurmClusterResolver,
            "this is a task of step 7.0 and TF_CONFIG is not set: worker 1 of 3",
            [],
        ),
        (BATCH, LocalClusterResolver, "srun did not start this process", ["is for 2 tasks"]),
        ({**BATCH, "SLURM_NTASKS": "1"}, LocalClusterResolver, "srun did not start this process", []),
        ({**TF_CONFIG, **step(2)}, TFConfigClusterResolver, "because it is set", []),
        (
            {**TF_CONFIG, **step(3)},
            TFConfigClusterResolver,
            "because it is set",
            ["2 tasks, but the Slurm step"],
        ),
        ({**TF_CONFIG, **BATCH}, TFConfigClusterResolver, "because it is set", []),
        (
            {**TF_CONFIG, "SLURM_JOB_ID": "x"},
            TFConfigClusterResolver,
            "because it is set",
            ["SLURM_JOB_ID='x'"],
        ),
    ],
)
def test_the_choice_is_one_line_and_a_contradiction_another(environ, kind, info, warnings, caplog):
    with caplog.at_level("INFO", logger="tf_preempt"):
        resolver = auto(dict(environ))
    assert type(resolver) is kind
    by_level = {"INFO": [], "WARNING": []}
    for record in caplog.records:
        by_level[record.levelname].append(record.getMessage())
    assert len(by_level["INFO"]) == 1
    assert info in by_level["INFO"][0]
    assert len(by_level["WARNING"]) == len(warnings)
    assert all(part in line for part, line in zip(warnings, by_level["WARNING"], strict=True))


def test_a_malformed_tf_config_is_not_passed_over():
    with pytest.raises(ClusterConfigError):
        auto({"TF_CONFIG": "[]", **step(2)})


def test_a_wrong_slurm_step_is_not_passed_over():
    with pytest.raises(SlurmError, match="SLURM_PROCID"):
        auto({**step(2), "SLURM_PROCID": "2"})


def test_public_names():
    assert {type(getattr(cluster_resolvers, name)).__name__ for name in cluster_resolvers.__all__} == {
        "ABCMeta",
        "function",
    }
    assert set(cluster_resolvers.__all__) <= set(dir(cluster_resolvers))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        cluster_resolvers.nothing  # noqa: B018
