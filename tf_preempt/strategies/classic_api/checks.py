"""What the methods of TensorFlow 1.15 refuse, and what to write in its place."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_preempt import errors
from tf_preempt.strategies import _tf_internals
from tf_preempt.strategies.classic_api.iterator import INPUT_FN_HINT


@_tf_internals.let_errors_through
def check_not_in_session_graph(name: str) -> None:
    """Refuses the graph of a TensorFlow 1 session.

    Args:
        name: of the method that was called.

    Raises:
        ConfigError: operations go into such a graph now.
    """
    if not tf.compat.v1.executing_eagerly_outside_functions():
        raise errors.ConfigError(
            f"strategy.{name} was called in the graph of a TensorFlow 1 session: expected eager mode or a "
            "tf.function.",
            hint="leave out tf.compat.v1.disable_eager_execution, disable_v2_behavior and "
            "tf.Graph().as_default().",
        )


@_tf_internals.let_errors_through
def check_data_set(dataset: Any) -> None:
    """Refuses what `make_dataset_iterator` cannot divide because it is no data set.

    Raises:
        ConfigError: `dataset` is no ``tf.data.Dataset``.
    """
    if not isinstance(dataset, tf.data.Dataset):
        raise errors.ConfigError(
            f"dataset={dataset!r} ({type(dataset).__name__}): expected a tf.data.Dataset.",
            hint="use make_input_fn_iterator for a function that makes data sets.",
        )


@_tf_internals.let_errors_through
def check_input_fn(input_fn: Any, replication_mode: Any) -> None:
    """Refuses what `make_input_fn_iterator` cannot call or replicate.

    Raises:
        ConfigError: `input_fn` cannot be called; `replication_mode` is not ``PER_WORKER``.
    """
    if replication_mode != tf.distribute.InputReplicationMode.PER_WORKER:
        raise errors.ConfigError(
            f"replication_mode={replication_mode!r}: expected tf.distribute.InputReplicationMode.PER_WORKER.",
            hint="strategy.distribute_datasets_from_function takes another mode in its options.",
        )
    if not callable(input_fn):
        raise errors.ConfigError(
            f"input_fn={input_fn!r} ({type(input_fn).__name__}): expected a function of a "
            "tf.distribute.InputContext.",
            hint="for a data set of global batches, use make_dataset_iterator.",
        )


@_tf_internals.let_errors_through
def check_no_session(session: Any) -> None:
    """Refuses a session.

    Raises:
        ConfigError: `session` is not None.
    """
    if session is not None:
        raise errors.ConfigError(
            f"session={session!r}: expected None, because in TensorFlow 2 no session copies arrays.",
            hint="leave it out.",
        )


@_tf_internals.let_errors_through
def check_config(config_proto: Any) -> None:
    """Refuses what is no configuration of a session.

    Raises:
        ConfigError: `config_proto` is no ``tf.compat.v1.ConfigProto``.
    """
    if not isinstance(config_proto, tf.compat.v1.ConfigProto):
        raise errors.ConfigError(
            f"config_proto={config_proto!r} ({type(config_proto).__name__}): expected a "
            "tf.compat.v1.ConfigProto.",
            hint="give tf.compat.v1.ConfigProto().",
        )


@_tf_internals.let_errors_through
def check_distributed(strategy: Any, iterator: Any) -> None:
    """Refuses an iterator that has no part for each replica.

    Raises:
        ConfigError: `iterator` is no distributed iterator, and there are several replicas; or no iterator.
    """
    if isinstance(iterator, tf.distribute.DistributedIterator):
        return
    # With one replica in all, a plain iterator is as good.
    if isinstance(iterator, tf.data.Iterator) and strategy.num_replicas_in_sync == 1:
        return
    raise errors.ConfigError(
        f"input_iterator={iterator!r} ({type(iterator).__name__}): expected an iterator over distributed "
        "input, which has a part for each replica.",
        hint="make it with strategy.make_dataset_iterator(dataset).",
    )


def cannot_divide(error: ValueError) -> errors.ConfigError:
    """The error for a data set that cannot be divided, with what to use in its place.

    Args:
        error: of the strategy, which says why.
    """
    message = str(error)
    own_hint = getattr(error, "hint", None)
    if own_hint:
        message = message.removesuffix(f"\nHINT: {own_hint}")
    return errors.ConfigError(
        f"the data set cannot be divided over the replicas: {message}",
        hint=f"{own_hint.rstrip('.')}; or {INPUT_FN_HINT}" if own_hint else INPUT_FN_HINT,
    )
