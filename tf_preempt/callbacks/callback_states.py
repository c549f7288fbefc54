"""The state of the other callbacks: Keras's own by name, others by `get_state` and `set_state`.

Several of Keras's callbacks reset themselves in ``on_train_begin``, so state is put back just before the
first resumed step, wherever our callback stands in the list.  A callback in `OnChief` counts as itself on the
chief; on other workers, where it does not run, it has no state.
"""

from __future__ import annotations

import logging
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_preempt.callbacks import _keras_internals as keras_internals
from tf_preempt.callbacks import csv_rows, logs, on_chief, own_code
from tf_preempt.callbacks.appearances import appearances
from tf_preempt.callbacks.resume_point import Phase
from tf_preempt.errors import CheckpointWriteError

_log = logging.getLogger("tf_preempt")

_KERAS: dict[type, tuple[str, ...]] = {
    keras.callbacks.CSVLogger: ("keys",),
    keras.callbacks.EarlyStopping: ("wait", "stopped_epoch", "best", "best_epoch"),
    keras.callbacks.ReduceLROnPlateau: ("wait", "cooldown_counter", "best"),
    keras.callbacks.ModelCheckpoint: (
        "best",
        "epochs_since_last_save",
        *keras_internals.MODEL_CHECKPOINT_COUNTERS,
    ),
    keras.callbacks.SwapEMAWeights: (keras_internals.AVERAGES_IN_MODEL,),
    keras.callbacks.TensorBoard: keras_internals.TENSORBOARD_COUNTERS,
}
_NOT_OURS_TO_SAVE = (keras.callbacks.History, keras.callbacks.ProgbarLogger)
_ROWS = "callback_rows/"  # and the callback's place: what its CSV file held


class CallbackStates:
    """Takes and restores the state of a list of callbacks.

    Args:
        callbacks: all of the running `fit`, in order.
        ignore: the one that does not count: our own.
    """

    def __init__(self, callbacks: list[Any], *, ignore: Any) -> None:
        counted = [
            callback
            for callback in callbacks
            if callback is not ignore and not isinstance(on_chief.bare(callback), _NOT_OURS_TO_SAVE)
        ]
        self._callbacks = [on_chief.bare(callback) for callback in counted]
        self._idle = [on_chief.is_idle(callback) for callback in counted]
        self._at_begin = [_appearances(callback) for callback in self._callbacks]
        self._warned: set[int] = set()

    @property
    def callbacks(self) -> list[Any]:
        """Those that count; one in `OnChief` as itself."""
        return list(self._callbacks)

    def take(self) -> tuple[list[Any], dict[str, Any]]:
        """The states, as JSON values and as tensors."""
        values: list[Any] = []
        tensors: dict[str, Any] = {}
        for index, callback in enumerate(self._callbacks):
            if self._idle[index]:
                values.append([type(callback).__name__, None])
                continue
            values.append([type(callback).__name__, self._state_of(index, callback)])
            for number, weight in enumerate(getattr(callback, "best_weights", None) or []):
                tensors[f"callback/{index}/{number}"] = np.asarray(weight)
            if isinstance(callback, keras.callbacks.CSVLogger):
                tensors |= self._rows_of(index, callback)
            if isinstance(callback, keras.callbacks.TensorBoard):
                keras_internals.flush_tensorboard(callback)  # its counters say that this was written
        return values, tensors

    def begin_again(self) -> None:
        """Prepares callbacks for a resume: they may be the objects of a `fit` that was interrupted."""
        for callback in self._callbacks:
            if isinstance(callback, keras.callbacks.SwapEMAWeights):
                # In beginning the epoch it would exchange the weights that were just restored.
                setattr(callback, keras_internals.AVERAGES_IN_MODEL, False)

    def begin_afresh(self) -> None:
        """Warns of what an earlier life has left, of which there is no checkpoint."""
        for index, callback in enumerate(self._callbacks):
            if isinstance(callback, keras.callbacks.CSVLogger) and not self._idle[index]:
                csv_rows.warn_of_rows_of_a_lost_life(callback)

    def restore(
        self, values: list[Any], tensors: dict[str, Any], *, phase: Phase = "train", go_on: bool = True
    ) -> None:
        """Puts back what `take` gave, to callbacks of the same class at the same place.

        Args:
            values: from `take`.
            tensors: from `take`, possibly among others.
            phase: in which they were taken.
            go_on: training goes on; else it was complete, and callbacks have only their end before them.
        """
        for index, callback in enumerate(self._callbacks):
            name, state = values[index] if index < len(values) else ("none", None)
            if name != type(callback).__name__:
                _log.warning(
                    "Callback %d is a %s, in the checkpoint it was %s: it begins afresh.",
                    index,
                    type(callback).__name__,
                    name,
                )
                continue
            if self._idle[index]:
                continue
            if isinstance(callback, keras.callbacks.CSVLogger):
                _put_rows_back(callback, tensors.get(f"{_ROWS}{index}"), go_on=go_on)
            if isinstance(callback, keras.callbacks.SwapEMAWeights) and phase != "validate":
                continue  # after a whole fit the model keeps the averages: there is nothing to exchange
            _put(callback, state)
            weights = _numbered(tensors, f"callback/{index}/")
            if weights:
                callback.best_weights = weights

    def _state_of(self, index: int, callback: Any) -> Any:
        names = _known_names(callback)
        state: dict[str, Any] = {}
        if names is not None:
            state["attributes"] = {name: getattr(callback, name) for name in names if hasattr(callback, name)}
        if has_protocol(callback):
            state |= self._state_by_protocol(index, callback)
        else:
            self._warn_if_changed(index, callback)
        return state or None

    def _state_by_protocol(self, index: int, callback: Any) -> dict[str, Any]:
        """What the callback gives, if JSON can hold it: one that it cannot must not cost the whole save."""
        try:
            return {"state": logs.encode(callback.get_state())}
        except CheckpointWriteError as error:
            if index not in self._warned:
                self._warned.add(index)
                _log.warning(
                    "The state of the callback %s is not saved; after a resume it begins afresh: %s",
                    type(callback).__name__,
                    error,
                )
            return {}

    def _rows_of(self, index: int, logger: Any) -> dict[str, Any]:
        """The rows that a CSVLogger has written; a file that is out of reach must not cost the whole save."""
        try:
            rows = csv_rows.take_rows(logger)
        except (OSError, tf.errors.OpError) as error:
            if index not in self._warned:
                self._warned.add(index)
                _log.warning(
                    "The rows of CSVLogger(%r) are not saved, for its file cannot be read (%s): after a "
                    "resume it is not what it would have been. HINT: use a file that this worker can read",
                    logger.filename,
                    error,
                )
            return {}
        return {} if rows is None else {f"{_ROWS}{index}": np.array(rows, dtype=object)}

    def _warn_if_changed(self, index: int, callback: Any) -> None:
        before, now = self._at_begin[index], _appearances(callback)
        changed = sorted(name for name in now if before.get(name) != now[name])
        if changed and index not in self._warned:
            self._warned.add(index)
            _log.warning(
                "The callback %s keeps state that is not saved (%s): after a resume it begins afresh. "
                "HINT: give it get_state(), which returns JSON values, and set_state(state).",
                type(callback).__name__,
                ", ".join(changed),
            )


def _put_rows_back(logger: Any, rows: Any, *, go_on: bool) -> None:
    if rows is not None:
        csv_rows.put_rows(logger, rows.numpy(), go_on=go_on)
    elif not logger.append:
        _log.warning(
            "CSVLogger(%r, append=False) begins its file anew, for the checkpoint has no rows of it: those "
            "of the epochs before are gone. HINT: use a file that this worker can read",
            logger.filename,
        )


def has_protocol(callback: Any) -> bool:
    """Says whether a callback saves what it keeps by `get_state` and `set_state`."""
    return callable(getattr(callback, "get_state", None)) and callable(getattr(callback, "set_state", None))


def _known_names(callback: Any) -> tuple[str, ...] | None:
    """The attributes in which Keras's own callbacks, and classes derived from them, keep their state."""
    return next((names for kind, names in _KERAS.items() if isinstance(callback, kind)), None)


def _appearances(callback: Any) -> dict[str, Any]:
    """What may be state of a callback and is not known: of a class derived from Keras's, what it adds."""
    if has_protocol(callback):
        return {}
    known = _known_names(callback) is not None
    return appearances(callback, leave_out=own_code.names_in_keras(callback) if known else ())


def _put(callback: Any, state: Any) -> None:
    if state is None:
        return
    for name, value in state.get("attributes", {}).items():
        setattr(callback, name, value)
    if "state" in state:
        callback.set_state(state["state"])


def _numbered(tensors: dict[str, Any], prefix: str) -> list[Any]:
    found = {
        int(name.removeprefix(prefix)): tensor for name, tensor in tensors.items() if name.startswith(prefix)
    }
    return [found[number].numpy() for number in sorted(found)]
