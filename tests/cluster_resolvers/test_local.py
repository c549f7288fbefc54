"""Workers on this machine."""

import pytest

from tf_preempt.cluster_resolvers import LocalClusterResolver
from tf_preempt.errors import ClusterConfigError


def test_a_single_worker_has_no_cluster():
    alone = LocalClusterResolver()
    assert alone.cluster_spec().as_dict() == {}
    assert alone.get_task_info() == ("worker", 0)
    assert alone.master() == ""


def test_a_single_worker_can_have_a_port():
    assert LocalClusterResolver(ports=[15001]).cluster_spec().as_dict() == {"worker": ["127.0.0.1:15001"]}


def test_several_workers_on_loopback():
    third = LocalClusterResolver(workers=3, index=2, ports=(7, 8, 9))
    assert third.cluster_spec().as_dict() == {"worker": ["127.0.0.1:7", "127.0.0.1:8", "127.0.0.1:9"]}
    assert third.get_task_info() == ("worker", 2)
    assert third.master() == "grpc://127.0.0.1:9"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"workers": 0}, "workers=0: expected at least 1"),
        ({"workers": 2, "index": 2, "ports": [1, 2]}, "index=2 with workers=2: expected 0 to 1"),
        ({"index": -1}, "index=-1"),
        ({"workers": 2}, "workers=2 without ports"),
        ({"workers": 2, "ports": [1]}, r"ports=\[1\]: expected 2 different"),
        ({"workers": 2, "ports": [1, 1]}, r"ports=\[1, 1\]: expected 2 different"),
        ({"workers": 2, "ports": [0, 1]}, "0 is no TCP port"),
        ({"workers": 2, "ports": [65536, 1]}, "65536 is no TCP port"),
    ],
)
def test_wrong_arguments_are_named(arguments, words):
    with pytest.raises(ClusterConfigError, match=words) as caught:
        LocalClusterResolver(**arguments)
    assert "HINT:" in str(caught.value)
