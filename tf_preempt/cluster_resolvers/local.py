"""One worker alone, or several on this machine's loopback address."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tf_preempt.cluster_resolvers.base import ClusterResolverBase
from tf_preempt.errors import ClusterConfigError

__all__ = ["LocalClusterResolver"]

_LOOPBACK = "127.0.0.1"


class LocalClusterResolver(ClusterResolverBase):
    """Resolves a cluster on this machine.

    Use it for a single worker (the default), or for several on one machine when the program that starts them
    has chosen the ports.  ``tf-preempt launch`` does both without it, through ``TF_CONFIG``.

    Example:
        >>> LocalClusterResolver(workers=2, index=1, ports=[15001, 15002]).master()
        'grpc://127.0.0.1:15002'

    Args:
        workers: number of workers.
        index: which of them this process is.
        ports: TCP port of each worker, the same list in all of them.  None only for a single worker, which
            then has no address.
        rpc_layer: protocol between the workers.

    Raises:
        ClusterConfigError: `workers` is not a positive number, `index` is not below it, or `ports` are not
            one different port between 1 and 65535 for each worker.
    """

    def __init__(
        self,
        workers: int = 1,
        index: int = 0,
        ports: Sequence[int] | None = None,
        *,
        rpc_layer: str | None = "grpc",
    ) -> None:
        if workers < 1:
            raise ClusterConfigError(
                f"workers={workers}: expected at least 1.", hint="A single worker is workers=1."
            )
        if not 0 <= index < workers:
            raise ClusterConfigError(
                f"index={index} with workers={workers}: expected 0 to {workers - 1}.",
                hint="Give each process its own index, counted from 0.",
            )
        self._addresses = [f"{_LOOPBACK}:{port}" for port in _checked_ports(ports, workers)]
        super().__init__(task_type="worker", task_id=index, rpc_layer=rpc_layer)

    def cluster_spec(self) -> tf.train.ClusterSpec:
        """The workers' addresses; empty for a single worker without a port."""
        return tf.train.ClusterSpec({"worker": self._addresses} if self._addresses else {})


def _checked_ports(ports: Sequence[int] | None, workers: int) -> Sequence[int]:
    if ports is None and workers == 1:
        return []
    if ports is None:
        raise ClusterConfigError(
            f"workers={workers} without ports: the workers cannot find each other.",
            hint=f"Pass the same {workers} free ports to each worker, or use `tf-preempt launch`.",
        )
    if len(ports) != workers or len(set(ports)) != workers:
        raise ClusterConfigError(
            f"ports={list(ports)}: expected {workers} different ports, one for each worker.",
            hint="Pass the same list to each worker.",
        )
    for port in ports:
        if not 1 <= port <= 65_535:
            raise ClusterConfigError(
                f"ports={list(ports)}: {port} is no TCP port; expected 1 to 65535.",
                hint="Port 0 (any free port) does not work: each worker has to know the others' ports.",
            )
    return ports
