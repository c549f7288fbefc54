"""Every private name of Keras that this package touches, tried on Keras 3.10 to 3.15.

Keras 3 has no public way to begin an epoch in its middle, to see the data iterator of `fit`, or to continue
the logs of an epoch.  What is used:

* local variables of ``Model.fit``: `epoch_iterator`, `callbacks`, and those that hold the validation data;
  found by walking up the stack from ``on_train_begin`` and ``on_train_end``;
* ``EpochIterator._enumerate_iterator``, ``_get_iterator``, ``_current_iterator``, ``_steps_seen``,
  ``_num_batches``, ``data_adapter``, ``steps_per_epoch``, ``steps_per_execution``;
* attributes of ``ModelCheckpoint``, ``TensorBoard`` and ``SwapEMAWeights``, named below;
* ``Model._initial_epoch``, ``_eval_epoch_iterator``, ``_get_metrics_result_or_logs``, ``_symbolic_build``,
  ``_distribute_strategy``;
* what ``Model.train_function`` has in its closure.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import keras

from tf_preempt.errors import ConfigError, InternalsChangedError

Step = tuple[int, int, Any]

MODEL_CHECKPOINT_COUNTERS = ("_batches_seen_since_last_saving", "_last_batch_seen")
"""Attributes in which ``keras.callbacks.ModelCheckpoint`` counts towards its next save."""

TENSORBOARD_COUNTERS = ("_global_train_batch", "_global_test_batch")
"""Attributes of ``keras.callbacks.TensorBoard``: the x axes of what it writes for each batch."""

AVERAGES_IN_MODEL = "_ema_weights_in_model"
"""Attribute of ``keras.callbacks.SwapEMAWeights``: the model has the averages, the optimizer the weights."""

_NAMES_OF_VALIDATION = ("val_x", "val_y", "val_sample_weight", "validation_batch_size", "validation_steps")

_EPOCH_ITERATOR_NAMES = (
    "_enumerate_iterator",
    "_get_iterator",
    "_current_iterator",
    "_steps_seen",
    "_num_batches",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitLocals:
    """What is taken from a running ``Model.fit``."""

    epoch_iterator: Any
    callbacks: list[Any]


def fit_locals(model: Any) -> FitLocals:
    """Finds the running `fit` of a model on the stack.

    Raises:
        InternalsChangedError: there is none that looks as it does in the supported versions.
    """
    names = _names_in_fit(model)
    callbacks = getattr(names.get("callbacks"), "callbacks", None)
    if callbacks is None:
        raise _changed("the local variable `callbacks` of Model.fit")
    return FitLocals(epoch_iterator=names["epoch_iterator"], callbacks=list(callbacks))


def _names_in_fit(model: Any) -> dict[str, Any]:
    """The local variables of the running `fit` of a model."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        names = frame.f_locals
        if frame.f_code.co_name == "fit" and names.get("self") is model and "epoch_iterator" in names:
            return names
        frame = frame.f_back
    raise _changed("the local variable `epoch_iterator` of Model.fit")


def new_eval_epoch_iterator(model: Any) -> Any:
    """An epoch iterator over the validation data of the running `fit`, as Keras makes it for the first one.

    Returns:
        None if there is no validation data.

    Raises:
        InternalsChangedError: `fit` does not look as it does in the supported versions.
    """
    names = _names_in_fit(model)
    if names.get("validation_data") is None:
        return None
    missing = [name for name in _NAMES_OF_VALIDATION if name not in names]
    if missing:
        raise _changed(f"local variables {missing} of Model.fit")
    return type(names["epoch_iterator"])(
        x=names["val_x"],
        y=names["val_y"],
        sample_weight=names["val_sample_weight"],
        batch_size=names["validation_batch_size"] or names["batch_size"],
        steps_per_epoch=names["validation_steps"],
        shuffle=False,
        distribute_strategy=model.distribute_strategy,
        steps_per_execution=model.steps_per_execution,
    )


def is_running(epoch_iterator: Any, thread: threading.Thread) -> bool:
    """Says whether a thread is inside the `fit` to which an epoch iterator belongs; any thread may ask."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        if frame.f_code.co_name == "fit" and frame.f_locals.get("epoch_iterator") is epoch_iterator:
            return True
        frame = frame.f_back
    return False


def _changed(name: str) -> InternalsChangedError:
    return InternalsChangedError(
        f"Keras {keras.__version__} has no {name} any more, which exact resume needs.",
        hint="use a Keras version from 3.10 to 3.15, or a newer tf_preempt",
    )


def flush_tensorboard(callback: Any) -> None:
    """Lets what a ``keras.callbacks.TensorBoard`` has written reach its files."""
    writers = getattr(callback, "_writers", None)
    if writers is None:
        raise _changed("`_writers` of its TensorBoard callback")
    for writer in writers.values():
        writer.flush()


class Epochs:
    """Keras's epoch iterator, with its enumeration of steps under our control.

    Args:
        epoch_iterator: Keras's own.
        enumerate_steps: replaces its generator of steps; may call `original` or `resumed` of this object.
    """

    def __init__(self, epoch_iterator: Any, enumerate_steps: Callable[[], Iterator[Step]]) -> None:
        for name in _EPOCH_ITERATOR_NAMES:
            if not hasattr(epoch_iterator, name):
                raise _changed(f"`{name}` of its EpochIterator")
        self._epochs = epoch_iterator
        self._original = epoch_iterator._enumerate_iterator
        self._get_iterator = epoch_iterator._get_iterator
        self.creations = 0
        epoch_iterator._get_iterator = self._count_creation
        epoch_iterator._enumerate_iterator = enumerate_steps

    def _count_creation(self) -> Any:
        self.creations += 1
        return self._get_iterator()

    def release(self) -> None:
        """Gives Keras its own methods back."""
        for name in ("_get_iterator", "_enumerate_iterator"):
            vars(self._epochs).pop(name, None)

    @property
    def dataset(self) -> Any:
        """The data set that is iterated, distributed or not."""
        return self._get_iterator()

    @property
    def steps_per_execution(self) -> int:
        """Steps in one call of the train function."""
        return int(self._epochs.steps_per_execution)

    @property
    def goes_on(self) -> bool:
        """Whether an epoch begins with the iterator of the one before, where that is left."""
        return self._epochs.steps_per_epoch is not None

    @property
    def iterator(self) -> Any:
        """The iterator that Keras keeps between steps; None between epochs of unknown length."""
        return self._epochs._current_iterator

    @property
    def counters(self) -> tuple[int, int | None]:
        """How many steps the kept iterator has given, and how many an epoch has, if that is known."""
        return self._epochs._steps_seen, self._epochs._num_batches

    @counters.setter
    def counters(self, counters: tuple[int, int | None]) -> None:
        self._epochs._steps_seen, self._epochs._num_batches = counters

    def create_iterator(self) -> Any:
        """A new iterator; each creation advances the seeds of shuffles."""
        return iter(self._count_creation())

    def keep(self, iterator: Any) -> None:
        """Makes an iterator the one that Keras goes on with."""
        self._epochs._current_iterator = iterator

    def original(self) -> Iterator[Step]:
        """Keras's own steps of a whole epoch."""
        steps: Iterator[Step] = self._original()
        return steps

    def begin_epoch(self) -> None:
        """Lets the data adapter begin an epoch: a PyDataset starts its threads."""
        self._epochs.data_adapter.on_epoch_begin()

    def resumed(self, first_step: int, iterator: Any) -> Iterator[Step]:
        """The steps of an epoch from `first_step` on, as Keras would have given them.

        The caller has called `begin_epoch` and set `counters`.
        """
        epochs, stride = self._epochs, self.steps_per_execution
        steps = epochs.steps_per_epoch or epochs._num_batches or -1
        if steps > 0:
            epochs._current_iterator = iterator
            for step in range(first_step, steps, stride):
                if epochs._num_batches and epochs._steps_seen >= epochs._num_batches:
                    break
                epochs._steps_seen += stride
                yield step, step + stride - 1, epochs._current_iterator
            if epochs._num_batches and epochs._steps_seen >= epochs._num_batches:
                epochs._current_iterator = self.create_iterator()
                epochs._steps_seen = 0
        else:
            step = first_step
            while True:
                epochs._steps_seen = step + stride
                yield step, step + stride - 1, iterator
                step += stride
        epochs.data_adapter.on_epoch_end()


def eval_epoch_iterator(model: Any) -> Any:
    """The epoch iterator of `fit`'s validation, or None outside of it."""
    return getattr(model, "_eval_epoch_iterator", None)


def draws_before_validation(model: Any) -> bool:
    """Whether `evaluate` takes an element of the validation data before ``on_test_begin``.

    Under a strategy Keras takes one for its symbolic build, at every call: of a new iterator, or with
    `validation_steps` of the one that the validation before has left.  Then it makes a new one.
    """
    return model._distribute_strategy is not None


def set_initial_epoch(model: Any, epoch: int | None) -> None:
    """Sets the epoch at which the running `fit` begins; None lets later calls begin where they are told."""
    if not hasattr(model, "_initial_epoch"):
        raise _changed("`Model._initial_epoch`")
    vars(model)["_initial_epoch"] = epoch


def ensure_built(model: Any, epoch_iterator: Any) -> None:
    """Creates all variables of model, optimizer and metrics; takes an element only if its shapes are unknown.

    Under a strategy Keras has done it before ``on_train_begin``; without one it would wait for the first
    step, and then there would be nothing yet to restore into.

    Raises:
        InternalsChangedError: Keras has no way any more to build a model from the shapes of its data.
        ConfigError: the model cannot be built in this way: it has no ``call()``, or that fails.
    """
    if model._distribute_strategy is not None:
        return
    if not hasattr(model, "_symbolic_build"):
        raise _changed("`Model._symbolic_build`")
    dataset = epoch_iterator._get_iterator()
    spec = dataset.element_spec
    if any(leaf.shape.rank is None for leaf in keras.tree.flatten(spec)):
        spec = next(iter(dataset))  # shapes are known only from an element
    try:
        model._symbolic_build(data_batch=spec)
    except RuntimeError as error:
        raise _not_built(model) from error


def _not_built(model: Any) -> ConfigError:
    name = type(model).__name__
    if type(model).call is keras.Model.call:
        what, cure = "has no call() method", "call() that uses all of its layers and models once"
    else:
        what, cure = "could not be called on them", "call() that takes the inputs of the data"
    return ConfigError(
        f"The variables of the model {name} cannot be created from the shapes of its data: it {what}. Exact "
        "resume has to restore all variables before the first step, and expects a model that can be built.",
        hint=f"give {name} a {cure}; build its other models in __init__ (keras.Input), and optimizers of its "
        "own in compile(): optimizer.build(variables)",
    )


def functions_of_step(function: Callable[..., Any]) -> list[Any]:
    """A model's ``train_function`` and what it calls, among it the ``tf.function`` with the traced step."""
    inside = inspect.getclosurevars(function).nonlocals if inspect.isfunction(function) else {}
    return [function, *inside.values()]


def stop_fit(model: Any) -> Callable[[], None]:
    """Lets the running `fit` of a model end without more than ``on_train_end``.

    Keras itself goes on with a validation, with ``on_epoch_end`` and with the logs of what the epoch has so
    far, so that callbacks would take it for a whole one.

    Returns:
        Undoes it; to be called when `fit` is over.

    Raises:
        InternalsChangedError: `fit` does not look as it does in the supported versions.
    """
    callbacks = _names_in_fit(model)["callbacks"]
    silenced = {"on_epoch_end": lambda *_: None, "on_test_end": lambda *_: None}
    vars(callbacks).update(silenced)
    override(model, "_should_eval", lambda *_: False)
    override(model, "_get_metrics_result_or_logs", lambda _: {})
    model.stop_training = True

    def undo() -> None:
        for name in silenced:
            vars(callbacks).pop(name, None)
        end_override(model, "_should_eval")
        end_override(model, "_get_metrics_result_or_logs")

    return undo


def override(model: Any, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces a method on one model only; returns what was there."""
    if not hasattr(model, name):
        raise _changed(f"`Model.{name}`")
    before: Callable[..., Any] = getattr(model, name)
    vars(model)[name] = function
    return before


def end_override(model: Any, name: str) -> None:
    """Undoes `override` of a method of the class."""
    vars(model).pop(name, None)
