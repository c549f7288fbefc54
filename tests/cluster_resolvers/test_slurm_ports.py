"""The ports of a step's tasks, without TensorFlow."""

import pytest

from tf_preempt._slurm import SlurmJob
from tf_preempt.cluster_resolvers._slurm_layout import addresses, place_ranks
from tf_preempt.cluster_resolvers._slurm_ports import DERIVED_PORTS, FIRST_DERIVED_PORT, choose_ports
from tf_preempt.errors import ConfigError, SlurmError


def step(counts, **more):
    known = {"job_id": 5, "step_id": 0, "procid": 0, "ntasks": sum(counts)}
    nodes = tuple(f"n{index}" for index in range(len(counts)))
    return SlurmJob(**{**known, "nodes": nodes, "tasks_per_node": tuple(counts), **more})


def local_ranks(job):
    return [placement.local_rank for placement in place_ranks(job)]


def test_derived_ports_count_by_global_rank_so_that_nodes_can_share_a_host():
    ports = [address.split(":")[1] for address in addresses(step((2, 2, 2)))]
    assert len(set(ports)) == 6


# Job 1395's first port is the last but one.
@pytest.mark.parametrize("job_id", [1, 2, 127, 1395, 16_383, 16_384, 4_000_000_001])
def test_derived_ports_stay_below_the_range_for_clients(job_id):
    job = step((64,), job_id=job_id, step_id=3)
    assert all(FIRST_DERIVED_PORT <= port < 32_768 for port in choose_ports(job, local_ranks(job)))


def test_jobs_with_neighbouring_numbers_do_not_share_a_port():
    ports = [
        set(choose_ports(job, local_ranks(job))) for job in (step((64,), job_id=i) for i in range(1, 101))
    ]
    assert sum(map(len, ports)) == len(set().union(*ports)) == 6_400


def test_steps_of_one_job_do_not_share_a_port():
    steps = [step((32,), step_id=number) for number in range(8)]
    ports = [set(choose_ports(job, local_ranks(job))) for job in steps]
    assert len(set().union(*ports)) == 8 * 32


def test_a_requeued_job_comes_back_to_its_ports():
    assert addresses(step((2, 2))) == addresses(step((2, 2), restart_count=4))


def test_more_tasks_than_ports_are_refused():
    job = step((1,) * (DERIVED_PORTS + 1))
    with pytest.raises(SlurmError, match="16385 tasks are more than"):
        choose_ports(job, local_ranks(job))


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
    assert choose_ports(job, local_ranks(job)) == ports


def test_a_port_base_wins_over_reserved_ports():
    job = step((2, 1), resv_ports=(12_000, 12_001))
    assert choose_ports(job, local_ranks(job), 8888) == [8888, 8889, 8888]


def test_reserved_ports_are_passed_over_where_each_component_has_its_own():
    job = step((1, 1), group_nodes=(1, 1), resv_ports=(12_000, 12_001))
    assert choose_ports(job, local_ranks(job)) == choose_ports(step((1, 1)), [0, 0])


def test_too_few_reserved_ports_are_refused():
    with pytest.raises(SlurmError, match="has 1 ports, but up to 2 tasks") as caught:
        addresses(step((2, 1), resv_ports=(12_000,)))
    assert "--resv-ports=2" in caught.value.hint
