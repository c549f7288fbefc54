"""What is known of the shortest notice before any has come."""

from __future__ import annotations

import pytest

from tf_preempt.errors import ConfigError
from tf_preempt.termination import Platform
from tf_preempt.termination.cloud import Cloud
from tf_preempt.termination.shortest_notice import shortest_notice


@pytest.mark.parametrize(
    ("platform", "cloud", "environ", "grace_period", "seconds", "origin"),
    [
        (Platform.GCE, Cloud.GCE, {}, None, 30.0, "what Compute Engine gives a Spot VM"),
        (Platform.AWS, Cloud.AWS, {}, None, 120.0, "what EC2 gives a Spot instance"),
        (Platform.AZURE, Cloud.AZURE, {}, None, 30.0, "what Azure gives a Spot VM"),
        (Platform.SLURM, Cloud.AWS, {}, None, 120.0, "what EC2 gives a Spot instance"),
        (Platform.KUBERNETES, None, {}, None, 30.0, "what a pod has unless"),
        (Platform.KUBERNETES, Cloud.AWS, {}, None, 30.0, "what a pod has unless"),
        (Platform.KUBERNETES, None, {"TF_PREEMPT_GRACE_S": "600"}, None, 600.0, "TF_PREEMPT_GRACE_S"),
        (Platform.KUBERNETES, Cloud.AWS, {"TF_PREEMPT_GRACE_S": "600"}, None, 120.0, "what EC2 gives"),
        (Platform.LOCAL, None, {"TF_PREEMPT_GRACE_S": "7"}, None, 7.0, "TF_PREEMPT_GRACE_S"),
        (Platform.LOCAL, None, {}, 90, 90.0, "grace_period"),
        (Platform.AWS, Cloud.AWS, {}, 90, 90.0, "grace_period"),
        (Platform.AWS, Cloud.AWS, {}, 900, 120.0, "what EC2 gives"),
    ],
)
def test_the_shortest_counts_with_its_origin(platform, cloud, environ, grace_period, seconds, origin):
    notice = shortest_notice(platform, cloud, environ, grace_period=grace_period)
    assert notice.seconds == seconds
    assert notice.origin.startswith(origin)
    assert "save_every" in notice.cure


@pytest.mark.parametrize(
    ("platform", "cloud", "grace_period"),
    [
        (Platform.LOCAL, None, None),
        (Platform.LOCAL, None, 0),
        (Platform.SLURM, None, None),
        (Platform.AGENT_PLATFORM, Cloud.GCE, None),
    ],
)
def test_where_nobody_tells_nothing_is_known(platform, cloud, grace_period):
    assert shortest_notice(platform, cloud, {}, grace_period=grace_period) is None


def test_every_cloud_is_known():
    assert all(shortest_notice(Platform(cloud.value), cloud, {}) for cloud in Cloud)


def test_a_wrong_variable_is_refused():
    with pytest.raises(ConfigError, match="TF_PREEMPT_GRACE_S"):
        shortest_notice(Platform.LOCAL, None, {"TF_PREEMPT_GRACE_S": "soon"})
