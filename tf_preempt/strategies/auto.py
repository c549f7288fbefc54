"""Which strategy fits the cluster and this machine's devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tf_preempt import errors

if TYPE_CHECKING:
    import tensorflow as tf

_TRAINING_JOBS = ("chief", "worker")


def auto(resolver: Any = None) -> tf.distribute.Strategy:
    """The strategy for the cluster at hand: several workers, several GPUs, or one device.

    Use it in a program that runs unchanged on a laptop, on one machine with GPUs and on many machines.  Call
    it before anything else of TensorFlow.

    Example:
        >>> strategy = tf_preempt.strategies.auto()
        >>> with strategy.scope():
        ...     model = build_model()

    Args:
        resolver: a ``tf.distribute.cluster_resolver.ClusterResolver``; None asks
            ``tf_preempt.cluster_resolvers.auto()``.

    Returns:
        `MultiWorkerMirroredStrategy` of this package if the cluster has more than one worker; else
        `MirroredStrategy` of this package if this machine has more than one GPU, else TensorFlow's default.

    Raises:
        UnsupportedStrategyError: the cluster has parameter servers, or this task does not train.
        ConfigError: TensorFlow was used before a multi-worker strategy could be set up.
        ClusterConfigError: ``TF_CONFIG`` is wrong (from ``cluster_resolvers.auto()``).
        SlurmError: Slurm's variables are wrong (from ``cluster_resolvers.auto()``).
    """
    if resolver is None:
        from tf_preempt import cluster_resolvers

        resolver = cluster_resolvers.auto()
    import tensorflow as tf

    if worker_count(resolver.cluster_spec().as_dict(), resolver.task_type) > 1:
        from tf_preempt.strategies.multi_worker_mirrored import MultiWorkerMirroredStrategy

        return MultiWorkerMirroredStrategy(resolver)
    if len(tf.config.list_physical_devices("GPU")) > 1:
        from tf_preempt.strategies.mirrored import MirroredStrategy

        return MirroredStrategy()
    return tf.distribute.get_strategy()


def worker_count(cluster: Mapping[str, Sequence[str]], task_type: str | None) -> int:
    """How many workers train together.

    Args:
        cluster: addresses of the tasks of each job, as ``ClusterSpec.as_dict()`` gives them; may be empty.
        task_type: the job that this process belongs to; None or empty outside a cluster.

    Raises:
        UnsupportedStrategyError: there are parameter servers, or `task_type` is a job that does not train.
    """
    if cluster.get("ps"):
        raise errors.UnsupportedStrategyError(
            f"the cluster has parameter servers (job 'ps': {len(cluster['ps'])} tasks): expected only "
            "'chief' and 'worker', which train synchronously.",
            hint="remove the job, or use tf.distribute.ParameterServerStrategy without tf_preempt.",
        )
    if cluster and task_type and task_type not in _TRAINING_JOBS:
        raise errors.UnsupportedStrategyError(
            f"this task is {task_type!r}: expected 'chief' or 'worker', the tasks that train together.",
            hint="start this task with its own program, without a multi-worker strategy.",
        )
    return sum(len(cluster.get(job, ())) for job in _TRAINING_JOBS)
