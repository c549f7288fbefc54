"""The cluster that the environment variable ``TF_CONFIG`` describes."""

from __future__ import annotations

import os
from collections.abc import Mapping

import tensorflow as tf

from tf_preempt.cluster_resolvers._tf_config_parser import TFConfig, checked_task, parse_tf_config
from tf_preempt.cluster_resolvers.base import ClusterResolverBase

__all__ = ["TFConfigClusterResolver"]


class TFConfigClusterResolver(ClusterResolverBase):
    """Resolves the cluster from ``TF_CONFIG``, strictly.

    Use it under ``tf-preempt launch``, on Kubernetes (TFJob), on Google's managed training, and wherever
    else the variable is set.  Unlike TensorFlow's resolver of the same name it refuses a malformed value at
    once, and knows its task in a cluster of one even where ``TF_CONFIG`` does not name it.

    Example:
        >>> value = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}'
        >>> TFConfigClusterResolver(environ={"TF_CONFIG": value}).get_task_info()
        ('worker', 1)

    Args:
        task_type: job name of this task, instead of the one in the variable.
        task_id: index of this task, instead of the one in the variable.
        rpc_layer: protocol, instead of the one in the variable; TensorFlow chooses if neither names one.
        environment: ``"google"`` inside Google's own environment.
        environ: environment variables.

    Raises:
        ClusterConfigError: ``TF_CONFIG`` is malformed or names a task that it does not have (the message says
            which key), or `task_type` and `task_id` do.

    Environment:
        TF_CONFIG: JSON object with ``cluster`` and ``task``; unset, empty or ``{}`` for a single worker,
            whose cluster is empty and whose task is ``(None, None)``.
    """

    def __init__(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
        environment: str | None = None,
        *,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._environ = environ
        config = self._config()
        if config.cluster and (task_type is not None or task_id is not None):
            task_type, task_id = checked_task(
                config.task_type if task_type is None else task_type,
                config.task_id if task_id is None else task_id,
                config.cluster,
                origin={"type": "The argument task_type", "index": "The argument task_id"},
            )
        super().__init__(
            task_type=config.task_type if task_type is None else task_type,
            task_id=config.task_id if task_id is None else task_id,
            rpc_layer=rpc_layer or config.rpc_layer,
            environment=environment or "",
        )

    def _config(self) -> TFConfig:
        return parse_tf_config(self._environ.get("TF_CONFIG"))

    def cluster_spec(self) -> tf.train.ClusterSpec:
        """The cluster as ``TF_CONFIG`` describes it now; empty for a single worker.

        Raises:
            ClusterConfigError: the variable was changed since, to a malformed value.
        """
        return tf.train.ClusterSpec({job: list(tasks) for job, tasks in self._config().cluster.items()})

    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        """Returns the string that connects to a task's TensorFlow server.

        Args:
            task_type: job name of the task; None: this task's.
            task_id: index of the task; None: this task's.
            rpc_layer: protocol; None: this resolver's.

        Returns:
            ``session_master`` of ``TF_CONFIG`` if it is there; empty for a cluster of at most one task, and
            for an evaluator outside the cluster; else ``protocol://host:port``.

        Raises:
            ClusterConfigError: the cluster has no such task.
        """
        config = self._config()
        if config.session_master is not None:
            return config.session_master
        asked = self.task_type if task_type is None else task_type
        outside = asked == "evaluator" and asked not in config.cluster
        if outside or sum(map(len, config.cluster.values())) <= 1:
            return ""
        return super().master(task_type, task_id, rpc_layer)
