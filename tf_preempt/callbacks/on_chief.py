"""Callbacks that write files, given to all workers and run by the chief."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

import keras

from tf_preempt.checkpointing.cluster import check_strategy, cluster_of
from tf_preempt.checkpointing.startup import Cluster
from tf_preempt.errors import ConfigError

_log = logging.getLogger("tf_preempt")

# What they decide (when to stop, the learning rate, the weights) holds for all workers or for none.
_RUN_EVERYWHERE = (
    keras.callbacks.BackupAndRestore,
    keras.callbacks.EarlyStopping,
    keras.callbacks.LearningRateScheduler,
    keras.callbacks.ReduceLROnPlateau,
    keras.callbacks.SwapEMAWeights,
    keras.callbacks.TerminateOnNaN,
)

# By class, the attribute with the path to which it writes.
_WRITERS: dict[type, str] = {
    keras.callbacks.CSVLogger: "filename",
    keras.callbacks.ModelCheckpoint: "filepath",
    keras.callbacks.TensorBoard: "log_dir",
}


class OnChief(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Runs another callback on the chief, and nothing on the other workers.

    Use it for callbacks that write files or print: given to all workers, each would write to the same path.
    With it, all workers run one and the same program text.  Without a cluster it runs the callback always.
    `PreemptionCheckpoint` saves and restores the state of the callback as if it were given by itself.

    The callback must not train, evaluate or predict with the model, nor change it: the other workers do not
    take part.

    Example:
        >>> model.fit(train, epochs=5, callbacks=[
        ...     OnChief(keras.callbacks.CSVLogger("log.csv", append=True)),
        ...     OnChief(keras.callbacks.ModelCheckpoint("best.keras", save_best_only=True)),
        ...     keras.callbacks.EarlyStopping("val_loss"),  # decides: runs on all workers
        ...     PreemptionCheckpoint("runs/7")])

    Args:
        callback: to be run on the chief; its attributes can be read from the wrapper too.
        environ: the environment that is read.

    Raises:
        ConfigError: `callback` is not an object of ``keras.callbacks.Callback``; or it changes the course of
            the training, and so belongs on all workers: ``BackupAndRestore``, ``EarlyStopping``,
            ``LearningRateScheduler``, ``ReduceLROnPlateau``, ``SwapEMAWeights``, ``TerminateOnNaN``, a
            ``CallbackList``, `PreemptionCheckpoint`.  From a hook: it was called before ``set_model``, or
            the callback has set ``stop_training`` while there are other workers.

    Environment:
        TF_CONFIG: read to refuse workers that would each take themselves for the chief.
    """

    def __init__(self, callback: Any, *, environ: Mapping[str, str] = os.environ) -> None:
        super().__init__()
        _check(callback)
        self.callback = callback
        self._environ = environ
        self._cluster: Cluster | None = None

    @property
    def is_running(self) -> bool:
        """Says whether the callback runs on this worker; False before ``set_model``."""
        return self._cluster is not None and self._cluster.is_chief

    def set_model(self, model: Any) -> None:
        """Takes the model, and learns from its strategy whether this worker is the chief.

        Raises:
            UnsupportedStrategyError: ``TF_CONFIG`` has several workers and the model's strategy does not
                make them train together, so that each would be the chief; or it is not one of ours.
        """
        check_strategy(model.distribute_strategy, self._environ)
        self._cluster = cluster_of(model.distribute_strategy)
        super().set_model(model)
        if self.is_running:
            self.callback.set_model(model)
            if self.params is not None:
                self.callback.set_params(self.params)

    def set_params(self, params: Any) -> None:
        """Takes the parameters of ``fit``, ``evaluate`` or ``predict``."""
        super().set_params(params)
        if self.is_running:
            self.callback.set_params(params)

    def __getattr__(self, name: str) -> Any:
        # Asked only for what the wrapper does not have; while it is unpickled or copied, it has nothing yet.
        if name.startswith("__") or "callback" not in vars(self):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.callback, name)

    def _pass_on(self, hook: str, *args: Any, **kwargs: Any) -> None:
        cluster = self._cluster
        if cluster is None:
            raise ConfigError(
                f"{hook} of OnChief({type(self.callback).__name__}) was called before set_model: expected a "
                "model, whose strategy says which worker is the chief.",
                hint="give the callback to fit, evaluate or predict, or call set_model(model) first",
            )
        if not cluster.is_chief:
            return
        stopped = self.model.stop_training
        getattr(self.callback, hook)(*args, **kwargs)
        if cluster.workers > 1 and self.model.stop_training and not stopped:
            raise ConfigError(
                f"{type(self.callback).__name__}, wrapped in OnChief, has set stop_training in {hook} on the "
                f"chief only: of {cluster.workers} workers, the others would wait for the chief's next step.",
                hint="give the callback to all workers without OnChief; logs are the same everywhere",
            )


def _hook(name: str) -> Callable[..., None]:
    def hook(self: OnChief, *args: Any, **kwargs: Any) -> None:
        self._pass_on(name, *args, **kwargs)

    hook.__name__ = name
    hook.__qualname__ = f"OnChief.{name}"
    hook.__doc__ = f"Runs ``{name}`` of the callback, on the chief."
    return hook


# All hooks that this Keras calls: a newer one may have more.
for _name in [name for name in vars(keras.callbacks.Callback) if name.startswith("on_")]:
    setattr(OnChief, _name, _hook(_name))


def _check(callback: Any) -> None:
    # Not at the top: PreemptionCheckpoint knows this wrapper.
    from tf_preempt.callbacks.preemption_checkpoint import PreemptionCheckpoint

    name = type(callback).__name__
    if not isinstance(callback, keras.callbacks.Callback):
        raise ConfigError(
            f"OnChief was given callback={callback!r:.80} ({name}): expected an object of a subclass of "
            "keras.callbacks.Callback.",
            hint="wrap each callback by itself: [OnChief(keras.callbacks.CSVLogger(path)), OnChief(...)]",
        )
    if isinstance(callback, keras.callbacks.CallbackList):
        raise ConfigError(
            "OnChief was given callback=a CallbackList: expected one callback.",
            hint="wrap each callback by itself, and only those that write files",
        )
    if isinstance(callback, (*_RUN_EVERYWHERE, PreemptionCheckpoint)):
        raise ConfigError(
            f"OnChief was given callback={name}, which changes the course of the training: run by the chief "
            "alone, workers would no longer train together.  Expected a callback that only writes or prints.",
            hint=f"give {name} to all workers as it is",
        )


def bare(callback: Any) -> Any:
    """The callback itself, out of its wrappers."""
    while isinstance(callback, OnChief):
        callback = callback.callback
    return callback


def is_idle(callback: Any) -> bool:
    """Says whether this is a wrapper whose callback another worker runs."""
    return isinstance(callback, OnChief) and not callback.is_running


_warned = False


def warn_of_shared_files(callbacks: list[Any], cluster: Cluster) -> None:
    """Warns, once in a process, where this worker and the chief run callbacks that write to one path.

    Args:
        callbacks: of the running `fit`.
        cluster: in which this worker trains.
    """
    global _warned
    writers = [] if cluster.is_chief else [one for one in callbacks if isinstance(one, tuple(_WRITERS))]
    if not writers or _warned:
        return
    _warned = True
    _log.warning(
        "Worker %d of %d, which is not the chief, was given callbacks that write files: %s. Workers that "
        "write to one path at once damage or overwrite each other's files.\n"
        "HINT: wrap them in tf_preempt.callbacks.OnChief(...), on all workers. Where each worker has a path "
        "of its own, which cannot be seen from here, all is well.",
        cluster.worker,
        cluster.workers,
        ", ".join(f"{type(one).__name__}({_path_of(one)!r})" for one in writers),
    )


def _path_of(callback: Any) -> str:
    attribute = next(name for kind, name in _WRITERS.items() if isinstance(callback, kind))
    return str(getattr(callback, attribute))
