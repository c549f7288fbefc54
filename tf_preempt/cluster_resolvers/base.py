"""What all cluster resolvers of this package have in common.

A resolver answers two questions: who is in the cluster, and who am I.  The strategies and TensorFlow itself
ask through ``tf.distribute.cluster_resolver.ClusterResolver``, so that a resolver from here can stand
wherever one of TensorFlow's can.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_preempt.errors import ClusterConfigError

__all__ = ["ClusterResolverBase"]


class ClusterResolverBase(tf.distribute.cluster_resolver.ClusterResolver):  # type: ignore[misc]
    """Base of the resolvers: task, protocol, address of a task, and number of accelerators.

    Subclasses pass what they found to the constructor, so that all attributes are right as soon as a resolver
    is built, and implement ``cluster_spec()``.  An empty cluster stands for a single worker without peers.

    Args:
        task_type: job name of this task; None if it has none.
        task_id: index of this task in its job; None if it has none.
        rpc_layer: protocol between the tasks; None leaves the choice to TensorFlow.
        environment: ``"google"`` inside Google's own environment, otherwise empty.
    """

    def __init__(
        self,
        *,
        task_type: str | None,
        task_id: int | None,
        rpc_layer: str | None = "grpc",
        environment: str = "",
    ) -> None:
        super().__init__()
        self.task_type = task_type
        self.task_id = task_id
        self.rpc_layer = rpc_layer
        self._environment = environment

    @property
    def environment(self) -> str:
        """``"google"`` inside Google's own environment, otherwise empty."""
        return self._environment

    def get_task_info(self) -> tuple[str | None, int | None]:
        """Job name and index of this task, as ``(task_type, task_id)``."""
        return self.task_type, self.task_id

    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        """Returns the string that connects to a task's TensorFlow server.

        Args:
            task_type: job name of the task; None: this task's.
            task_id: index of the task; None: this task's.
            rpc_layer: protocol; None: this resolver's.

        Returns:
            ``protocol://host:port``; empty where the task is a single worker without an address.

        Raises:
            ClusterConfigError: the cluster has no such task.
        """
        task_type = self.task_type if task_type is None else task_type
        task_id = self.task_id if task_id is None else task_id
        jobs: dict[str, Any] = self.cluster_spec().as_dict()
        if not jobs or task_type is None or task_id is None:
            return ""
        addresses = jobs.get(task_type, [])
        if not 0 <= task_id < len(addresses):
            sizes = {name: len(tasks) for name, tasks in jobs.items()}
            raise ClusterConfigError(
                f"The cluster has no task {task_type!r} {task_id!r}; it has these numbers of tasks: {sizes}.",
                hint="Ask for a task that is in cluster_spec().",
            )
        layer = rpc_layer or self.rpc_layer
        return f"{layer}://{addresses[task_id]}" if layer else str(addresses[task_id])

    def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: Any = None,
    ) -> dict[str, int]:
        """Counts the accelerators that TensorFlow may use in this process.

        Unlike TensorFlow's own resolvers this only looks at the physical devices, because listing the logical
        ones initializes the runtime, after which collectives between workers cannot be set up.

        Args:
            task_type: job name of the task that is asked about; workers are taken to be alike.
            task_id: index of that task.
            config_proto: not used; there for TensorFlow's callers.

        Returns:
            Accelerator type to number; empty on a machine without.
        """
        del task_type, task_id, config_proto
        counts = {kind: len(tf.config.get_visible_devices(kind)) for kind in ("GPU", "TPU")}
        return {kind: count for kind, count in counts.items() if count}
