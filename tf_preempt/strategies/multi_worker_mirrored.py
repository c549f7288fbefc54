"""Synchronous training on several workers, for Keras 3 and for runs that are interrupted."""

from __future__ import annotations

import math
import os
import weakref
from typing import Any

import tensorflow as tf

from tf_preempt import errors
from tf_preempt.strategies import _tf_internals
from tf_preempt.strategies.auto import worker_count
from tf_preempt.strategies.base import StrategyMixin
from tf_preempt.termination import standby

_ours: weakref.WeakSet[MultiWorkerMirroredStrategy] = weakref.WeakSet()

# How TensorFlow says that this process cannot join a cluster any more.
_RUNTIME_RUNS = "must be configured at program startup"
_IN_ANOTHER_CLUSTER = "Collective ops are already configured"

# Half as long again may pass before the chief is missed; and where the network is cut, TensorFlow's end of a
# process waits for a heartbeat's answer as long once more (with 8 s, 17 s in all were seen): 15 s in all.
_PEER_TIMEOUT_S = 6.0
_SHORTEST_PEER_TIMEOUT_S = 1.0


class MultiWorkerMirroredStrategy(
    StrategyMixin,
    tf.distribute.MultiWorkerMirroredStrategy,  # type: ignore[misc]
):
    """``tf.distribute.MultiWorkerMirroredStrategy`` that works with Keras 3's ``fit`` and can be resumed.

    Use it in place of TensorFlow's class, with the same arguments: ``model.fit``, ``evaluate`` and
    ``predict`` run on several workers, and the position in a distributed data set can be saved with a
    checkpoint.  Construct it before anything else of TensorFlow runs: joining the cluster is part of the
    construction, and it waits for the other workers.

    Example:
        >>> resolver = tf_preempt.cluster_resolvers.auto()
        >>> strategy = tf_preempt.strategies.MultiWorkerMirroredStrategy(resolver)
        >>> with strategy.scope():
        ...     model = build_model()
        ...     model.compile("adam", "mse")
        >>> model.fit(dataset, epochs=5)

    Args:
        cluster_resolver: a ``tf.distribute.cluster_resolver.ClusterResolver``; None reads ``TF_CONFIG``, and
            without it trains on this machine alone.
        communication_options: ``tf.distribute.experimental.CommunicationOptions``.
        peer_timeout_s: seconds, from 1, after which a worker that sends no sign of life is taken for lost;
            half as long again may pass where that is the chief.  The same on all workers.  One whose process
            has died may be missed at once.  Not used where the program has configured TensorFlow's
            coordination service itself.

    Raises:
        UnsupportedStrategyError: the cluster has parameter servers.
        ConfigError: an argument has a value that it cannot have; or the strategy is constructed too late,
            after TensorFlow has set up its devices.
        ValueError: the cluster is described wrongly (TensorFlow's own error).

    Environment:
        TF_CONFIG: read if no resolver is given.
        SLURM_JOB_ID and more: in a preempted Slurm job that does not train yet, SIGTERM has the job requeued.
    """

    def __init__(
        self,
        cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver | None = None,
        communication_options: tf.distribute.experimental.CommunicationOptions | None = None,
        *,
        peer_timeout_s: float = _PEER_TIMEOUT_S,
    ) -> None:
        _check_argument("cluster_resolver", cluster_resolver, tf.distribute.cluster_resolver.ClusterResolver)
        _check_argument(
            "communication_options", communication_options, tf.distribute.experimental.CommunicationOptions
        )
        _check_peer_timeout(peer_timeout_s)
        if cluster_resolver is not None and cluster_resolver.cluster_spec().as_dict().get("ps"):
            worker_count(cluster_resolver.cluster_spec().as_dict(), cluster_resolver.task_type)
        try:
            with _tf_internals.heartbeat_timeout(peer_timeout_s):
                super().__init__(cluster_resolver, communication_options)
        except (RuntimeError, ValueError) as error:
            if _RUNTIME_RUNS in str(error):
                raise _too_late("after TensorFlow had set up its devices") from error
            if _IN_ANOTHER_CLUSTER in str(error):
                raise _too_late(
                    "in a process that is already set up for another cluster, or for none"
                ) from error
            raise
        _ours.add(self)
        standby.begin_before_training(os.environ)  # TensorFlow has taken SIGTERM in joining the cluster


def _too_late(when: str) -> errors.ConfigError:
    return errors.ConfigError(
        f"MultiWorkerMirroredStrategy was constructed {when}: expected no tensor, data set, model, other "
        "strategy or list of logical devices before it.",
        hint="construct it right after `import tensorflow`, before anything else, and once per process.",
    )


def _check_argument(name: str, value: Any, expected: type) -> None:
    if value is not None and not isinstance(value, expected):
        raise errors.ConfigError(
            f"{name}={value!r} ({type(value).__name__}): expected a {expected.__name__} or None.",
            hint="resolvers are in tf_preempt.cluster_resolvers and tf.distribute.cluster_resolver."
            if name == "cluster_resolver"
            else "give a tf.distribute.experimental.CommunicationOptions.",
        )


def _check_peer_timeout(value: object) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (is_number and _SHORTEST_PEER_TIMEOUT_S <= value < math.inf):  # type: ignore[operator]
        raise errors.ConfigError(
            f"peer_timeout_s={value!r}: expected a number of seconds, {_SHORTEST_PEER_TIMEOUT_S:g} or more.",
            hint=f"leave it out for {_PEER_TIMEOUT_S:g} s; give more where machines stand still for a while.",
        )


def stock_strategy_suspected() -> bool:
    """Says whether this process joined a cluster through a strategy that is not this package's.

    TensorFlow keeps no list of strategies: collectives between processes that no strategy of ours, alive now,
    can have set up must come from ``tf.distribute.MultiWorkerMirroredStrategy`` itself.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    return _tf_internals.collectives_configured() and not _ours
