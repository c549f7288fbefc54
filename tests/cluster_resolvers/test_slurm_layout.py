"""Ranks to nodes to addresses, without TensorFlow."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_preempt._slurm import SlurmJob
from tf_preempt.cluster_resolvers._slurm_layout import (
    addresses,
    check_own_placement,
    place_ranks,
    task_node,
)
from tf_preempt.errors import SlurmError


def step(counts, *, nodes=None, **more):
    nodes = nodes or [f"n{index}" for index in range(len(counts))]
    known = {"job_id": 5, "step_id": 0, "procid": 0, "ntasks": sum(counts)}
    return SlurmJob(**{**known, "nodes": tuple(nodes), "tasks_per_node": tuple(counts), **more})


def node_indices(job):
    return [placement.node_index for placement in place_ranks(job)]


# Seen under Slurm 22.05.8: srun -N3 -n7 -m plane=2, -n8 -m plane=3, -n5 -m plane=4 on 3, 1 and 1 cores, ...
@pytest.mark.parametrize(
    ("counts", "distribution", "plane_size", "nodes_of_ranks"),
    [
        ((2, 2), "block", None, [0, 0, 1, 1]),
        ((2, 2), "", None, [0, 0, 1, 1]),
        ((3, 1, 1), "block", None, [0, 0, 0, 1, 2]),
        ((2, 2), "cyclic", None, [0, 1, 0, 1]),
        ((3, 1, 1), "cyclic", None, [0, 1, 2, 0, 0]),
        ((4, 2, 1), "cyclic", None, [0, 1, 2, 0, 1, 0, 0]),
        ((4, 2, 1), "plane", 2, [0, 0, 1, 1, 2, 0, 0]),
        ((4, 3, 1), "plane", 3, [0, 0, 0, 1, 1, 1, 2, 0]),
        ((3, 1, 1), "plane", 4, [0, 0, 0, 1, 2]),
        ((3,), "arbitrary", None, [0, 0, 0]),
        ((2,), "plane", None, [0, 0]),
    ],
)
def test_lays_ranks_over_nodes(counts, distribution, plane_size, nodes_of_ranks):
    job = step(counts, distribution=distribution, plane_size=plane_size)
    assert node_indices(job) == nodes_of_ranks


def test_block_follows_the_list_and_not_the_alphabet():
    job = step((1, 1, 1), nodes=["n9", "n10", "a1"])
    assert [placement.node for placement in place_ranks(job)] == ["n9", "n10", "a1"]


@given(
    counts=st.lists(st.integers(1, 6), min_size=1, max_size=6),
    distribution=st.sampled_from(["block", "cyclic", "plane"]),
    plane_size=st.integers(1, 7),
)
def test_every_layout_fills_each_node_in_order(counts, distribution, plane_size):
    placements = place_ranks(step(counts, distribution=distribution, plane_size=plane_size))
    for index, count in enumerate(counts):
        here = [placement.local_rank for placement in placements if placement.node_index == index]
        assert here == list(range(count))


@pytest.mark.parametrize("distribution", ["plane", "spread"])
def test_a_distribution_that_cannot_be_computed_is_refused(distribution):
    with pytest.raises(SlurmError, match=f"SLURM_DISTRIBUTION='{distribution}' on 2 nodes") as caught:
        place_ranks(step((1, 2), distribution=distribution))
    assert "srun --distribution=block" in caught.value.hint


# Seen under Slurm 22.05.8: srun --het-group=0,1; srun -m block : -m cyclic; -m cyclic : -m block; ...
@pytest.mark.parametrize(
    ("counts", "groups", "distribution", "nodes_of_ranks"),
    [
        ((1, 2, 2), (1, 2), "block", [0, 1, 1, 2, 2]),
        ((2, 2, 1, 1), (2, 2), "cyclic", [0, 0, 1, 1, 2, 3]),
        ((2, 2, 1), (2, 1), "cyclic", [0, 0, 1, 1, 2]),
        ((1, 1, 2, 2), (2, 2), "cyclic", [0, 1, 2, 3, 2, 3]),
        ((2, 2, 2, 2), (2, 2), "cyclic", [0, 1, 0, 1, 2, 3, 2, 3]),
        ((2, 2, 2, 2), (2, 2), "block", [0, 0, 1, 1, 2, 2, 3, 3]),
        ((3, 1, 3, 1), (2, 2), "", [0, 0, 0, 1, 2, 2, 2, 3]),
    ],
)
def test_ranks_of_a_components_tasks_count_on(counts, groups, distribution, nodes_of_ranks):
    assert node_indices(step(counts, group_nodes=groups, distribution=distribution)) == nodes_of_ranks


def test_a_component_that_is_laid_out_otherwise_than_it_seems_is_noticed_by_its_tasks():
    # srun -n4 -m cyclic : -n4 -m block, of which only the last one's distribution is told.
    job = step((2, 2, 2, 2), group_nodes=(2, 2), distribution="block", nodeid=0, localid=0, gtids=(0, 2))
    with pytest.raises(SlurmError, match=r"SLURM_GTIDS=0,1, but Slurm says SLURM_GTIDS=0,2"):
        addresses(job)


def test_arbitrary_distribution_follows_the_ranks_nodes():
    job = step((1, 1, 2), distribution="arbitrary", rank_nodes=("n2", "n0", "n2", "n1"), hostfile="hosts")
    assert [(place.node, place.node_index, place.local_rank) for place in place_ranks(job)] == [
        ("n2", 2, 0),
        ("n0", 0, 0),
        ("n2", 2, 1),
        ("n1", 1, 0),
    ]


@pytest.mark.parametrize("listed", [("n0", "n0", "n1"), ("n0", "n1", "x9")])
def test_a_host_file_that_differs_from_what_was_started_is_refused(listed):
    job = step((1, 2), distribution="arbitrary", rank_nodes=listed, hostfile="hosts")
    with pytest.raises(SlurmError, match=r"SLURM_HOSTFILE='hosts' has .* but Slurm started \[1, 2\] there"):
        place_ranks(job)


def test_arbitrary_distribution_without_a_host_file_is_refused():
    with pytest.raises(SlurmError, match="SLURM_HOSTFILE is not set") as caught:
        place_ranks(step((1, 2), distribution="arbitrary"))
    assert "SLURM_HOSTFILE=FILE srun" in caught.value.hint


def test_the_fullest_node_is_looked_for_in_the_tasks_own_component():
    job = step((4, 2, 1), group_nodes=(1, 2), distribution="block")
    nodes = [task_node(job, place) for place in place_ranks(job)]
    assert [(node.local_rank, node.tasks_here, node.most_tasks) for node in nodes] == [
        *[(rank, 4, 4) for rank in range(4)],
        (0, 2, 2),
        (1, 2, 2),
        (0, 1, 2),
    ]


def test_unknown_tasks_per_node_are_refused():
    job = SlurmJob(job_id=5, step_id=0, procid=0, ntasks=3, nodes=("a", "b"))
    with pytest.raises(SlurmError, match="SLURM_STEP_TASKS_PER_NODE is not set"):
        addresses(job)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"nodeid": 1}, ["SLURM_NODEID=0", "SLURM_NODEID=1"]),
        ({"nodename": "other"}, ["SLURMD_NODENAME=n0", "SLURMD_NODENAME=other"]),
        ({"localid": 0}, ["SLURM_LOCALID=1", "SLURM_LOCALID=0"]),
        ({"gtids": (0, 2)}, ["SLURM_GTIDS=0,1", "SLURM_GTIDS=0,2"]),
    ],
)
def test_a_contradiction_about_the_own_rank_shows_both_sides(told, words):
    job = step((2, 2), procid=1, **told)
    with pytest.raises(SlurmError) as caught:
        check_own_placement(job, place_ranks(job))
    assert [word for word in words if word not in str(caught.value)] == []
    assert "HINT:" in str(caught.value)


def test_rank_0_also_notices_a_layout_that_differs_only_for_others():
    cyclic = step((2, 2), procid=0, nodeid=0, localid=0, nodename="n0", gtids=(0, 2))
    with pytest.raises(SlurmError, match="SLURM_GTIDS=0,2"):
        addresses(cyclic)


def test_what_slurm_says_in_agreement_is_accepted():
    job = step((2, 2), procid=3, nodeid=1, localid=1, nodename="n1", gtids=(3, 2), distribution="block")
    assert addresses(job, 9000) == ["n0:9000", "n0:9001", "n1:9000", "n1:9001"]


def test_the_layout_is_computed_without_tensorflow():
    code = (
        "import sys, tf_preempt.cluster_resolvers\n"
        "from tf_preempt.cluster_resolvers import _slurm_gpus, _slurm_layout, _tf_config_parser\n"
        "assert callable(tf_preempt.cluster_resolvers.auto)\n"
        "sys.exit('tensorflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
