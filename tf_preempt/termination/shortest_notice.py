"""How long the shortest notice of a platform is, as far as anybody tells before one comes.

A save that takes longer is not committed on notice, and who trains wants to know that before.

References (seen 2026-11):
    https://cloud.google.com/compute/docs/instances/preemptible (30 s)
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html (two minutes)
    https://learn.microsoft.com/en-us/azure/virtual-machines/linux/scheduled-events (Preempt: 30 s)
    https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-termination (30 s by default)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from tf_preempt.termination.auto import Platform
from tf_preempt.termination.cloud import Cloud
from tf_preempt.termination.grace import GRACE_FILE_VARIABLE, GRACE_VARIABLE, grace_s_of

__all__ = ["ShortestNotice", "shortest_notice"]

_SPOT_S = {Cloud.GCE: 30.0, Cloud.AWS: 120.0, Cloud.AZURE: 30.0}
_SPOT_ORIGINS = {
    Cloud.GCE: "what Compute Engine gives a Spot VM",
    Cloud.AWS: "what EC2 gives a Spot instance",
    Cloud.AZURE: "what Azure gives a Spot VM",
}
_POD_S = 30.0
_CURE = "save less, or to a faster directory; a short save_every keeps small what is lost"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShortestNotice:
    """The shortest notice that is to be expected.

    Args:
        seconds: from the notice to the end.
        origin: who says so.
        cure: what helps where a save takes longer.
    """

    seconds: float
    origin: str
    cure: str


def shortest_notice(
    platform: Platform, cloud: Cloud | None, environ: Mapping[str, str], *, grace_period: float | None = None
) -> ShortestNotice | None:
    """Says how long the shortest notice is; of Slurm ``tf-preempt doctor`` knows more.

    Args:
        platform: what has started the program.
        cloud: whose machine this is.
        environ: the environment variables.
        grace_period: what the user says, in seconds.

    Returns:
        None where nobody says anything.

    Environment:
        TF_PREEMPT_GRACE_S, TF_PREEMPT_GRACE_FILE: see `grace_s_of`.

    Raises:
        ConfigError: see `grace_s_of`.
    """
    candidates = _candidates(platform, cloud, environ, grace_period)
    return min(candidates, key=lambda notice: notice.seconds, default=None)


def _candidates(
    platform: Platform, cloud: Cloud | None, environ: Mapping[str, str], grace_period: float | None
) -> Iterator[ShortestNotice]:
    if grace_period:
        yield ShortestNotice(seconds=grace_period, origin="grace_period", cure=_CURE)
    grace_s = grace_s_of(environ)
    if grace_s is not None:
        yield ShortestNotice(
            seconds=grace_s,
            origin=f"{GRACE_VARIABLE} or {GRACE_FILE_VARIABLE}",
            cure=f"raise terminationGracePeriodSeconds, and what the variable says; or {_CURE}",
        )
    elif platform is Platform.KUBERNETES:
        yield ShortestNotice(
            seconds=_POD_S,
            origin="what a pod has unless its terminationGracePeriodSeconds says otherwise",
            cure=f"raise that, and write it to {GRACE_VARIABLE}; or {_CURE}",
        )
    if cloud is not None and platform is not Platform.AGENT_PLATFORM:
        yield ShortestNotice(
            seconds=_SPOT_S[cloud],
            origin=_SPOT_ORIGINS[cloud],
            cure=f"a machine that is not Spot has longer; or {_CURE}",
        )
