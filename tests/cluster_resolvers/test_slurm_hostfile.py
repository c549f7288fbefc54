"""The host file of a step with arbitrary distribution, without TensorFlow."""

import pytest

from tf_preempt._slurm import SlurmJob
from tf_preempt.cluster_resolvers._slurm_hostfile import parse_hostfile, with_hostfile
from tf_preempt.errors import SlurmError


def step(**more):
    known = {"job_id": 5, "step_id": 0, "procid": 0, "ntasks": 3, "nodes": ("n9", "n11"), "nodename": "n9"}
    return SlurmJob(**{**known, "distribution": "arbitrary", **more})


# What srun 22.05.8 was seen to make of them.
@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("n11\nn9\nn11\n", ("n11", "n9", "n11")),
        ("# c\nn11 # x\nn9\nn11\n", ("n11", "n9", "n11")),
        ("n11*2\nn9\n", ("n11", "n11", "n9")),
        ("n11,n9\nn11", ("n11", "n9", "n11")),
        ("n11\nn9\nn10\nn12\n", ("n11", "n9", "n10")),
        ("n11*9999999\n", ("n11", "n11", "n11")),
    ],
)
def test_reads_a_host_file_as_srun_does(text, nodes):
    assert parse_hostfile(text, "hosts", 3) == nodes


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("n[9-10]\nn9\n", r"Line 1 of SLURM_HOSTFILE='hosts' has 'n\[9-10\]'"),
        ("n9\nn11 n9\n", "Line 2 of SLURM_HOSTFILE='hosts' has 'n11 n9'"),
        ("n9*x\n", r"has 'n9\*x'; expected a node's name, or name\*N"),
        ("n11\nn9\n", "names the nodes of 2 ranks, but the step has 3"),
        ("", "names the nodes of 0 ranks"),
    ],
)
def test_refuses_what_srun_would_not_have_taken(text, words):
    with pytest.raises(SlurmError, match=words) as caught:
        parse_hostfile(text, "hosts", 3)
    assert caught.value.hint


def test_adds_the_ranks_nodes(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("n11\nn9\nn11\n", encoding="utf-8")
    assert with_hostfile(step(hostfile=str(path))).rank_nodes == ("n11", "n9", "n11")


@pytest.mark.parametrize(
    "more",
    [
        {"hostfile": None},
        {"distribution": "block"},
        {"nodes": ("n9",)},
        {"group_distributions": ("block", "cyclic")},
    ],
)
def test_reads_no_file_where_none_is_needed(more):
    job = step(**{"hostfile": "/nowhere/hosts", **more})
    assert with_hostfile(job) is job


def test_a_file_that_this_node_does_not_see_is_an_error_that_names_both():
    with pytest.raises(SlurmError, match="SLURM_HOSTFILE='/nowhere/hosts' cannot be read on n9") as caught:
        with_hostfile(step(hostfile="/nowhere/hosts"))
    assert "all nodes see it" in caught.value.hint
