from __future__ import annotations

import threading
import types
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.callbacks import lives
from tf_preempt.callbacks import _keras_internals
from tf_preempt.errors import ConfigError, InternalsChangedError

NAMES = ("_enumerate_iterator", "_get_iterator", "_current_iterator", "_steps_seen", "_num_batches")


def in_fit(function: Callable[[Any], Any], data: Any = None, **arguments: Any) -> Any:
    """Calls a function with the model in the ``on_train_begin`` of a running `fit`."""
    found = []

    class Call(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            found.append(function(self.model))

    x = lives.pipeline() if data is None else data
    lives.dense_model().fit(x, verbose=0, shuffle=False, callbacks=[Call()], **arguments)
    return found[0]


def test_locals_of_a_running_fit() -> None:
    found = in_fit(_keras_internals.fit_locals)
    assert {type(callback).__name__ for callback in found.callbacks} == {"Call", "History"}
    assert all(hasattr(found.epoch_iterator, name) for name in NAMES)


def test_fit_of_another_model_is_not_taken() -> None:
    def look_for_another(_model: Any) -> Any:
        with pytest.raises(InternalsChangedError) as raised:
            _keras_internals.fit_locals(lives.dense_model())
        return raised.value

    assert in_fit(look_for_another)


def test_no_running_fit() -> None:
    with pytest.raises(InternalsChangedError, match="epoch_iterator") as raised:
        _keras_internals.fit_locals(lives.dense_model())
    assert keras.__version__ in str(raised.value)
    assert "newer tf_preempt" in str(raised.value.hint)


def test_running_ends_with_fit_and_any_thread_can_tell() -> None:
    here = threading.current_thread()

    def is_running(epoch_iterator: Any) -> list[bool]:
        answers = [_keras_internals.is_running(epoch_iterator, here)]
        asking = threading.Thread(
            target=lambda: answers.append(_keras_internals.is_running(epoch_iterator, here))
        )
        asking.start()
        asking.join()
        return answers

    def look(model: Any) -> Any:
        epoch_iterator = _keras_internals.fit_locals(model).epoch_iterator
        return epoch_iterator, is_running(epoch_iterator)

    epoch_iterator, answers = in_fit(look)
    assert answers == [True, True]
    assert is_running(epoch_iterator) == [False, False]


def test_fit_without_its_callback_list() -> None:
    class Model:
        def fit(self) -> Any:
            epoch_iterator = callbacks = object()
            return _keras_internals.fit_locals(self), epoch_iterator, callbacks

    with pytest.raises(InternalsChangedError, match="callbacks"):
        Model().fit()


@pytest.mark.parametrize("missing", NAMES)
def test_each_name_of_the_epoch_iterator_that_is_gone_is_told(missing: str) -> None:
    present = {name: None for name in NAMES if name != missing}
    with pytest.raises(InternalsChangedError, match=missing):
        _keras_internals.Epochs(types.SimpleNamespace(**present), lambda: iter(()))


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("_initial_epoch", lambda model: _keras_internals.set_initial_epoch(model, 1)),
        ("_symbolic_build", lambda model: _keras_internals.ensure_built(model, None)),
        ("_anything", lambda model: _keras_internals.override(model, "_anything", print)),
    ],
)
def test_each_name_of_the_model_that_is_gone_is_told(name: str, call: Callable[[Any], Any]) -> None:
    with pytest.raises(InternalsChangedError, match=name):
        call(types.SimpleNamespace(_distribute_strategy=None))


def test_keras_gets_its_methods_back() -> None:
    def hook_and_release(model: Any) -> Any:
        epoch_iterator = _keras_internals.fit_locals(model).epoch_iterator
        before = set(vars(epoch_iterator))
        epochs = _keras_internals.Epochs(epoch_iterator, lambda: iter(()))
        hooked = set(vars(epoch_iterator)) - before
        epochs.release()
        return hooked, set(vars(epoch_iterator)) - before

    assert in_fit(hook_and_release) == ({"_get_iterator", "_enumerate_iterator"}, set())


def test_override_of_one_model_only() -> None:
    one, other = lives.dense_model(), lives.dense_model()
    before = _keras_internals.override(one, "_get_metrics_result_or_logs", lambda logs: {"mine": 1})
    assert one._get_metrics_result_or_logs({}) == {"mine": 1}
    assert "mine" not in other._get_metrics_result_or_logs({"loss": 0.0})
    assert "mine" not in before({"loss": 0.0})
    _keras_internals.end_override(one, "_get_metrics_result_or_logs")
    assert "mine" not in one._get_metrics_result_or_logs({"loss": 0.0})


@pytest.mark.parametrize(("shape", "takes"), [((None, 1), False), (None, True)], ids=["known", "unknown"])
def test_build_takes_an_element_only_if_shapes_are_unknown(shape: Any, takes: bool) -> None:
    taken: list[int] = []

    def batches() -> Any:
        for number in range(2):
            taken.append(number)
            yield np.ones((4, 3), "float32"), np.ones((4, 1), "float32")

    data = tf.data.Dataset.from_generator(
        batches, output_signature=(tf.TensorSpec((None, 3), tf.float32), tf.TensorSpec(shape, tf.float32))
    )

    class Enough(Exception):
        """Ends `fit`: Keras itself cannot train on data of unknown rank."""

    def build(model: Any) -> None:
        assert not model.optimizer.built
        _keras_internals.ensure_built(model, _keras_internals.fit_locals(model).epoch_iterator)
        assert model.optimizer.built
        raise Enough

    with pytest.raises(Enough):
        in_fit(build, data)
    assert bool(taken) == takes


class WithoutCall(keras.Model):
    """Two models in one, trained by its own step: there is nothing to call."""


class WithFailingCall(keras.Model):
    """Cannot be called on what the data gives."""

    def call(self, inputs: Any) -> Any:
        raise TypeError(inputs)


@pytest.mark.parametrize(
    ("kind", "said"),
    [(WithoutCall, "has no call() method"), (WithFailingCall, "could not be called")],
)
def test_model_that_cannot_be_built_is_told_what_it_needs(kind: Any, said: str) -> None:
    def build(_model: Any) -> Any:
        model = kind()
        model.compile("sgd", "mse")
        with pytest.raises(ConfigError) as raised:
            _keras_internals.ensure_built(model, _keras_internals.fit_locals(_model).epoch_iterator)
        return raised.value

    error = in_fit(build)
    assert f"{kind.__name__} cannot be created from the shapes of its data: it {said}" in str(error)
    assert "optimizer.build(variables)" in str(error.hint)
    assert isinstance(error.__cause__, RuntimeError)


def test_validation_data_of_a_running_fit_is_iterated_as_keras_does() -> None:
    rows = np.arange(18, dtype=np.float32).reshape(6, 3)
    arguments = {"validation_data": (rows, rows[:, :1]), "validation_batch_size": 4, "validation_steps": 1}
    found = in_fit(_keras_internals.new_eval_epoch_iterator, **arguments)
    assert found.num_batches == 1
    (batch,) = [next(iterator) for _, _, iterator in found._enumerate_iterator()]
    np.testing.assert_array_equal(batch[0], rows[:4])


def test_fit_without_validation_data_has_no_iterator_over_it() -> None:
    assert in_fit(_keras_internals.new_eval_epoch_iterator) is None
