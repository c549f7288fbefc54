"""Who takes part in a training, seen from its strategy or its cluster resolver."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tf_preempt._slurm import tasks_in_step
from tf_preempt.checkpointing.startup import Cluster
from tf_preempt.errors import UnsupportedStrategyError
from tf_preempt.strategies.multi_worker_mirrored import MultiWorkerMirroredStrategy, stock_strategy_suspected

_log = logging.getLogger("tf_preempt")

_USE_OURS = (
    "use tf_preempt.strategies.MultiWorkerMirroredStrategy(resolver) in place of "
    "tf.distribute.MultiWorkerMirroredStrategy"
)


def cluster_of(strategy: Any) -> Cluster:
    """The cluster in which a strategy trains: one worker, unless it is a multi-worker strategy."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return Cluster()
    return cluster_of_resolver(strategy.cluster_resolver)


def cluster_of_resolver(resolver: Any) -> Cluster:
    """The cluster that a resolver describes; None and an empty one mean one worker.

    Raises:
        UnsupportedStrategyError: the cluster has parameter servers, or this task does not train.
    """
    if resolver is None:
        return Cluster()
    spec = resolver.cluster_spec().as_dict()
    if "ps" in spec:
        raise UnsupportedStrategyError(
            "The cluster has parameter servers (job 'ps'): training with them is not synchronous, so there "
            "is no step that all workers share.",
            hint="use a cluster of jobs 'chief' and 'worker'",
        )
    chiefs, workers = len(spec.get("chief", [])), len(spec.get("worker", []))
    if chiefs + workers <= 1:
        return Cluster()
    kind, index = resolver.task_type, int(resolver.task_id or 0)
    if kind not in ("chief", "worker"):
        raise UnsupportedStrategyError(
            f"This task is {kind!r} {index}, which does not take part in training.",
            hint="use the handler in tasks of type 'chief' and 'worker' only",
        )
    return Cluster(worker=index if kind == "chief" else chiefs + index, workers=chiefs + workers)


def check_stock_strategy() -> None:
    """Refuses TensorFlow's own multi-worker strategy, on which Keras 3 cannot train.

    Raises:
        UnsupportedStrategyError: one was made in this process.
    """
    if stock_strategy_suspected():
        raise UnsupportedStrategyError(
            "This process trains under tf.distribute.MultiWorkerMirroredStrategy: Keras 3 fails in fit "
            "there, and the positions of its data iterators cannot be saved.",
            hint=_USE_OURS,
        )


def check_strategy(strategy: Any, environ: Mapping[str, str] = os.environ) -> None:
    """Refuses a strategy under which workers would not train together.

    Raises:
        UnsupportedStrategyError: TensorFlow's own multi-worker strategy; or ``TF_CONFIG`` has several workers
            and the strategy does not make them train together, so that each would write the same files.
    """
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        if not isinstance(strategy, MultiWorkerMirroredStrategy):
            raise UnsupportedStrategyError(
                "The model was built under tf.distribute.MultiWorkerMirroredStrategy.", hint=_USE_OURS
            )
        return
    check_not_alone_of_several(Cluster(), "the model's strategy", type(strategy).__name__, environ)


def check_not_alone_of_several(
    cluster: Cluster, what: str, value: Any, environ: Mapping[str, str] = os.environ
) -> None:
    """Refuses several workers that each take themselves for the only one: all would write the same files.

    Args:
        cluster: in which this process takes itself to be.
        what: from where that is known.
        value: what was found there.
        environ: where ``TF_CONFIG`` says how many there are; of a Slurm step with several tasks is warned.

    Raises:
        UnsupportedStrategyError: ``TF_CONFIG`` has several, and `cluster` has one.
    """
    workers = _workers_in(environ.get("TF_CONFIG", ""))
    if cluster.workers == 1 and workers > 1:
        raise UnsupportedStrategyError(
            f"TF_CONFIG describes {workers} workers, but by {what} ({value}) this one is alone: each worker "
            "would train by itself and write to the same directory.",
            hint="pass tf_preempt.cluster_resolvers.auto() to tf_preempt.strategies."
            "MultiWorkerMirroredStrategy and to the handler, and build the model in the strategy's scope",
        )
    tasks = tasks_in_step(environ)
    if cluster.workers == 1 and tasks > 1 and not workers:
        # No error: tasks of one step may train different things.
        _log.warning(
            "This Slurm step has %d tasks, but by %s (%s) this one trains alone; tasks that share a "
            "checkpoint directory destroy each other's checkpoints. HINT: give each task a directory of its "
            "own, or pass tf_preempt.cluster_resolvers.auto() to "
            "tf_preempt.strategies.MultiWorkerMirroredStrategy and to the handler, and build the model in "
            "the strategy's scope.",
            tasks,
            what,
            value,
        )


def _workers_in(tf_config: str) -> int:
    """Number of training tasks in a TF_CONFIG; 0 if it says nothing that can be read."""
    try:
        cluster = json.loads(tf_config)["cluster"]
        return sum(len(cluster.get(job, [])) for job in ("chief", "worker"))
    except (ValueError, TypeError, KeyError, AttributeError):
        return 0
