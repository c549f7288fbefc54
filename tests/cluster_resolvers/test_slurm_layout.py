"""Ranks to nodes to addresses, without TensorFlow."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_preempt._slurm import SlurmJob
from tf_preempt.cluster_resolvers._slurm_layout import (
    DERIVED_PORTS,
    FIRST_DERIVED_PORT,
    addresses,
    check_own_placement,
    choose_ports,
    place_ranks,
)
from tf_preempt.errors import ConfigError, SlurmError


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


@pytest.mark.parametrize("distribution", ["arbitrary", "plane", "spread"])
def test_a_distribution_that_cannot_be_computed_is_refused(distribution):
    with pytest.raises(SlurmError, match=f"SLURM_DISTRIBUTION='{distribution}' on 2 nodes") as caught:
        place_ranks(step((1, 2), distribution=distribution))
    assert "srun --distribution=block" in caught.value.hint


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


def test_derived_ports_count_by_global_rank_so_that_nodes_can_share_a_host():
    ports = [address.split(":")[1] for address in addresses(step((2, 2, 2)))]
    assert len(set(ports)) == 6


# Job 1395's first port is the last but one.
@pytest.mark.parametrize("job_id", [1, 2, 127, 1395, 16_383, 16_384, 4_000_000_001])
def test_derived_ports_stay_below_the_range_for_clients(job_id):
    job = step((64,), job_id=job_id, step_id=3)
    assert all(FIRST_DERIVED_PORT <= port < 32_768 for port in choose_ports(job, place_ranks(job)))


def test_jobs_with_neighbouring_numbers_do_not_share_a_port():
    ports = [
        set(choose_ports(job, place_ranks(job))) for job in (step((64,), job_id=i) for i in range(1, 101))
    ]
    assert sum(map(len, ports)) == len(set().union(*ports)) == 6_400


def test_steps_of_one_job_do_not_share_a_port():
    steps = [step((32,), step_id=number) for number in range(8)]
    ports = [set(choose_ports(job, place_ranks(job))) for job in steps]
    assert len(set().union(*ports)) == 8 * 32


def test_a_requeued_job_comes_back_to_its_ports():
    assert addresses(step((2, 2))) == addresses(step((2, 2), restart_count=4))


def test_more_tasks_than_ports_are_refused():
    job = step((1,) * (DERIVED_PORTS + 1))
    with pytest.raises(SlurmError, match="16385 tasks are more than"):
        choose_ports(job, place_ranks(job))


def test_port_base_is_obeyed():
    assert addresses(step((2, 1)), 8888) == ["n0:8888", "n0:8889", "n1:8888"]


@pytest.mark.parametrize("port_base", [0, -1, 65_535, 70_000])
def test_a_port_base_without_room_is_refused(port_base):
    with pytest.raises(ConfigError, match=f"port_base={port_base}, with up to 2 tasks.*expected 1 to 65534"):
        addresses(step((2, 1)), port_base)


@pytest.mark.parametrize(
    ("reserved", "ports"),
    [((12_000, 12_001), [12_000, 12_001, 12_000]), ((7, 8, 9, 10), [7, 8, 9])],
)
def test_reserved_ports_come_before_derived_ones(reserved, ports):
    job = step((2, 1), resv_ports=reserved)
    assert choose_ports(job, place_ranks(job)) == ports


def test_a_port_base_wins_over_reserved_ports():
    job = step((2, 1), resv_ports=(12_000, 12_001))
    assert choose_ports(job, place_ranks(job), 8888) == [8888, 8889, 8888]


def test_too_few_reserved_ports_are_refused():
    with pytest.raises(SlurmError, match="has 1 ports, but up to 2 tasks") as caught:
        addresses(step((2, 1), resv_ports=(12_000,)))
    assert "--resv-ports=2" in caught.value.hint


def test_the_layout_is_computed_without_tensorflow():
    code = (
        "import sys, tf_preempt.cluster_resolvers\n"
        "from tf_preempt.cluster_resolvers import _slurm_gpus, _slurm_layout, _tf_config_parser\n"
        "assert callable(tf_preempt.cluster_resolvers.auto)\n"
        "sys.exit('tensorflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
