"""The one module that touches private names of TensorFlow.

Tried on TensorFlow 2.18.1 with Keras 3.10.0, and on TensorFlow 2.21.0 with Keras 3.15.1.  A name that is gone
raises `InternalsChangedError` where it is used, with the name and the installed version, instead of an
``AttributeError`` deep inside a training run.

Private names used:

* ``tensorflow.python.eager.context``: key-value calls of the coordination service, state of the collectives.
  Only the key-value calls: barriers and task states hold the GIL while they wait.
* ``tensorflow.python.distribute``: ``input_lib.DistributedDataset`` (the public way refuses the options that
  give a saveable iterator), the iterators inside a ``DistributedIterator``, ``DistributedValues.values``.
* ``tensorflow.python.framework.config``: whether op determinism is on; the public module can only turn it on.
* ``tf.data``: an iterator's resource, a data set's inputs, functions, file names and seeds.
* Keras 3: ``Variable._value``, the ``tf.Variable`` behind a Keras variable.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator, Sequence
from typing import Any, cast

import tensorflow as tf

from tf_preempt import errors

# tf.data.experimental.ExternalStatePolicy.FAIL as the number that the op takes.
_FAIL_ON_EXTERNAL_STATE = 2
_SHORTEST_WAIT_MS = 1  # 0 would mean "wait for ever" to TensorFlow


def _gone(name: str) -> errors.InternalsChangedError:
    return errors.InternalsChangedError(
        f"TensorFlow {tf.version.VERSION} has no {name}, a private name that this package needs.",
        hint="install a TensorFlow that this release was tried on (2.18 to 2.21), or a newer tf_preempt.",
    )


def _attribute(owner: Any, name: str, owner_name: str) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError:
        raise _gone(f"{owner_name}.{name}") from None


def _private_module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise _gone(name) from None


def _context() -> Any:
    """This process's eager context; creating the Python object initialises no device."""
    module = _private_module("tensorflow.python.eager.context")
    return _attribute(module, "context", "tensorflow.python.eager.context")()


# ---------------------------------------------------------------------------------- coordination service


def coordination_set(key: str, value: str) -> None:
    """Writes a key that does not exist yet; has no time-out, so call it from a thread nobody waits for.

    Args:
        key: path-like name, ``/`` between its parts.
        value: any text.

    Raises:
        tf.errors.AlreadyExistsError: somebody wrote this key before.
        tf.errors.UnavailableError: the chief, which holds the keys, is gone.
        InternalsChangedError: TensorFlow's private names have changed.
    """
    _attribute(_context(), "set_config_key_value", "Context")(key, value)


def coordination_get(key: str, timeout_s: float) -> str:
    """Waits for a key and returns its value; releases the GIL while it waits.

    Args:
        key: the name given to `coordination_set`.
        timeout_s: how long to wait, in seconds; at least a millisecond is waited, whatever is given.

    Raises:
        TimeoutError: the key was not written in time.
        ValueError: `timeout_s` is not a finite number.
        tf.errors.UnavailableError: the chief, which holds the keys, is gone.
        InternalsChangedError: TensorFlow's private names have changed.
    """
    if not math.isfinite(timeout_s):
        raise ValueError(f"timeout_s={timeout_s!r}: expected a finite number of seconds.")
    timeout_ms = max(_SHORTEST_WAIT_MS, math.ceil(timeout_s * 1000))
    get = _attribute(_context(), "get_config_key_value", "Context")
    try:
        return str(get(key, timeout_ms))
    except tf.errors.DeadlineExceededError:
        raise TimeoutError(f"key {key!r} was not written within {timeout_ms / 1000:g} s") from None


def collectives_configured() -> bool:
    """Says whether a multi-worker strategy, of any class, has set up collectives between processes.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    return _attribute(_context(), "_collective_ops_server_def", "Context") is not None


# ------------------------------------------------------------------------------------------------ iterators


def owned_iterators(iterator: Any) -> list[Any]:
    """The iterators of this worker whose state can be saved and set.

    Args:
        iterator: a ``tf.data.Iterator``, or what ``iter`` gives for a distributed data set.

    Raises:
        UnsupportedStrategyError: the iterator has no state that can be saved: it is TensorFlow's prefetching
            iterator over several devices, or no iterator of ``tf.data`` at all.
        InternalsChangedError: TensorFlow's private names have changed.
    """
    if isinstance(iterator, tf.distribute.DistributedIterator):
        workers = _attribute(iterator, "_iterators", "DistributedIterator")
        found = [_attribute(worker, "_iterator", "DistributedIterator._iterators[i]") for worker in workers]
    else:
        found = [iterator]
    for one in found:
        if not isinstance(one, tf.data.Iterator):
            raise errors.UnsupportedStrategyError(
                f"the position of a {type(one).__name__} (in a {type(iterator).__name__}) cannot be saved: "
                "expected a tf.data.Iterator, one per worker.",
                hint="distribute the tf.data.Dataset with strategy.experimental_distribute_dataset of a "
                "tf_preempt.strategies strategy with one replica per worker, without `options`.",
            )
    return found


def serialize_iterator(owned: Any) -> tf.Tensor:
    """The state of one iterator.

    Args:
        owned: one of `owned_iterators`.

    Returns:
        A vector of variants; ``tf.io.serialize_tensor`` turns each element into bytes.

    Raises:
        tf.errors.FailedPreconditionError: the pipeline holds state outside the iterator (a Python generator,
            a stateful random op), so its position alone would not bring it back.
        InternalsChangedError: TensorFlow's private names have changed.
    """
    resource = _attribute(owned, "_iterator_resource", "OwnedIterator")
    with tf.device(resource.device):
        return tf.raw_ops.SerializeIterator(
            resource_handle=resource, external_state_policy=_FAIL_ON_EXTERNAL_STATE
        )


def deserialize_iterator(owned: Any, variant: tf.Tensor) -> None:
    """Sets the state of an iterator over an equal data set, in place.

    Args:
        owned: one of `owned_iterators`.
        variant: what `serialize_iterator` gave.

    Raises:
        tf.errors.OpError: the state is of another pipeline.
        InternalsChangedError: TensorFlow's private names have changed.
    """
    resource = _attribute(owned, "_iterator_resource", "OwnedIterator")
    with tf.device(resource.device):
        tf.raw_ops.DeserializeIterator(resource_handle=resource, serialized=variant)


# ------------------------------------------------------------------------------------------------ variables


def _tf_variable(variable: Any) -> Any:
    """The ``tf.Variable`` behind a Keras 3 variable; any other variable itself."""
    if isinstance(variable, tf.Variable):
        return variable
    behind = _attribute(variable, "_value", type(variable).__name__)
    if behind is None:
        raise errors.ConfigError(
            f"variable {variable.path!r} has no value yet.", hint="build the model before its state is used."
        )
    return behind


def local_values(variable: Any) -> list[Any]:
    """The component variables that live on this worker, in the order of its replicas.

    Reading and assigning them runs no collective, also where reading `variable` itself would (sync-on-read
    variables: Keras metrics).

    Args:
        variable: a ``tf.Variable``, distributed or not, or a Keras variable.

    Returns:
        ``tf.Variable`` objects; for a variable that is not distributed, itself.

    Raises:
        ConfigError: a Keras variable that is not built yet.
        InternalsChangedError: private names of TensorFlow or Keras have changed.
    """
    behind = _tf_variable(variable)
    if isinstance(behind, tf.distribute.DistributedValues):
        return list(_attribute(behind, "values", type(behind).__name__))
    return [behind]


def is_sync_on_read(variable: Any) -> bool:
    """Says whether reading `variable` outside a replica runs a reduction over all replicas.

    Args:
        variable: a ``tf.Variable``, distributed or not, or a Keras variable.

    Raises:
        ConfigError: a Keras variable that is not built yet.
        InternalsChangedError: private names of TensorFlow or Keras have changed.
    """
    behind = _tf_variable(variable)
    return (
        isinstance(behind, tf.distribute.DistributedValues)
        and behind.synchronization == tf.VariableSynchronization.ON_READ
    )


def per_replica_values(value: Any) -> Sequence[Any]:
    """This worker's components of a distributed value, in the order of its replicas.

    Args:
        value: a ``tf.distribute.DistributedValues``; anything else is its own only component.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    if isinstance(value, tf.distribute.DistributedValues):
        return cast("Sequence[Any]", _attribute(value, "values", type(value).__name__))
    return (value,)


# ------------------------------------------------------------------------------------------------ data sets


def distributed_dataset(strategy: Any, dataset: tf.data.Dataset, options: tf.distribute.InputOptions) -> Any:
    """What ``strategy.experimental_distribute_dataset(dataset, options)`` gives, with any options.

    The public method refuses ``PER_REPLICA`` for a data set, though the class behind it serves it: shards and
    batches are cut before the options have a say.

    Args:
        strategy: a multi-worker mirrored strategy.
        dataset: batched by the global batch size.
        options: passed on to the iterators.

    Raises:
        ValueError: `dataset` is not batched (TensorFlow's own error).
        InternalsChangedError: TensorFlow's private names have changed.
    """
    input_lib = _private_module("tensorflow.python.distribute.input_lib")
    extended = strategy.extended
    input_workers = _attribute(extended, "_input_workers_with_options", "StrategyExtended")
    input_context = _attribute(extended, "_make_input_context", "StrategyExtended")
    return _attribute(input_lib, "DistributedDataset", "input_lib")(
        input_workers(options),
        strategy,
        dataset,
        num_replicas_in_sync=strategy.num_replicas_in_sync,
        input_context=input_context(),
        options=options,
    )


def dataset_inputs(dataset: tf.data.Dataset) -> list[tf.data.Dataset]:
    """The data sets that one data set reads from directly.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    return list(_attribute(dataset, "_inputs", "Dataset")())


def walk_dataset(dataset: tf.data.Dataset) -> Iterator[tf.data.Dataset]:
    """`dataset` and everything that it reads from, each once; not what its functions build inside.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    waiting, seen = [dataset], set()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        names = dataset_file_names(one)
        waiting += dataset_inputs(one) + ([] if names is None else [names])


def dataset_function_ops(dataset: tf.data.Dataset) -> Iterator[tf.Operation]:
    """The ops inside the functions of one data set (of ``map``, ``interleave``, …), nested ones too.

    Looks at the graphs in place: as GraphDefs, arrays that they captured would be copied each time.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    for wrapper in _attribute(dataset, "_functions", "Dataset")():
        function = _attribute(wrapper, "function", "StructuredFunctionWrapper")
        yield from _ops_in(_attribute(function, "graph", "ConcreteFunction"))


def _ops_in(graph: Any) -> Iterator[tf.Operation]:
    yield from graph.get_operations()
    for function in _attribute(graph, "_functions", "FuncGraph").values():
        yield from _ops_in(_attribute(function, "graph", "AtomicFunction"))


def dataset_file_names(dataset: tf.data.Dataset) -> tf.data.Dataset | None:
    """The data set of file names that a reader (``TFRecordDataset``, …) was given; else None."""
    names = getattr(dataset, "_filenames", None)
    return names if isinstance(names, tf.data.Dataset) else None


def is_unseeded(dataset: tf.data.Dataset) -> bool:
    """Says whether this very data set orders elements in a way that differs between processes.

    A shuffle, a random source, or a function that shuffles a tensor of indices, as Keras does for arrays.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    seeds = [getattr(dataset, name, None) for name in ("_seed", "_seed2")]
    if all(isinstance(seed, tf.Tensor) and int(seed) == 0 for seed in seeds):
        return True
    shuffles = [op for op in dataset_function_ops(dataset) if op.type == "RandomShuffle"]
    return any(op.get_attr("seed") == 0 and op.get_attr("seed2") == 0 for op in shuffles)


def reshuffles(dataset: tf.data.Dataset) -> list[tf.data.Dataset]:
    """The shuffles of a pipeline that order each iteration anew; not those that its functions build.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    return [one for one in walk_dataset(dataset) if getattr(one, "_reshuffle_each_iteration", False)]


def undistributed(dataset: Any) -> tf.data.Dataset | None:
    """The data set that was distributed; a plain one itself; None if there was none (a function gave it)."""
    if isinstance(dataset, tf.data.Dataset):
        return dataset
    found = getattr(dataset, "_original_dataset", None)
    return found if isinstance(found, tf.data.Dataset) else None


def manager_settings(manager: Any) -> tuple[str, int | None]:
    """The `checkpoint_name` and `max_to_keep` with which a ``tf.train.CheckpointManager`` was made.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    prefix = _attribute(manager, "_checkpoint_prefix", "CheckpointManager")
    limit = _attribute(manager, "_max_to_keep", "CheckpointManager")
    return str(prefix).rpartition("/")[2], None if limit is None else int(limit)


def shuffles_in_state(variants: tf.Tensor) -> int:
    """How many shuffles that order each iteration anew have their seeds in an iterator's state.

    Each writes two keys into it, both of which end in the same words.
    """
    content = b"".join(tf.io.serialize_tensor(variant).numpy() for variant in tf.unstack(variants))
    return content.count(b"num_random_samples") // 2


def op_determinism_is_on() -> bool:
    """Says whether ops give the same bits each time: TensorFlow has a public way to turn it on only.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    name = "tensorflow.python.framework.config"
    return bool(_attribute(_private_module(name), "is_op_determinism_enabled", name)())
