from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

from tf_preempt import errors
from tf_preempt.strategies import _tf_internals


def pipeline() -> tf.data.Dataset:
    return tf.data.Dataset.range(20).shuffle(7, seed=2).map(lambda x: x * x).batch(3).prefetch(2)


def rest_of(iterator: Any) -> list[list[int]]:
    return [batch.numpy().tolist() for batch in iterator]


@pytest.mark.parametrize("step", range(8))
def test_iterator_goes_on_from_each_saved_position(step: int) -> None:
    iterator = iter(pipeline())
    for _ in range(step):
        next(iterator, None)
    (owned,) = _tf_internals.owned_iterators(iterator)
    state = _tf_internals.serialize_iterator(owned)
    expected = rest_of(iterator)
    assert len(expected) == max(7 - step, 0)

    other = iter(pipeline())
    next(other)
    _tf_internals.deserialize_iterator(*_tf_internals.owned_iterators(other), state)
    assert rest_of(other) == expected


def test_position_is_restored_in_place() -> None:
    iterator = iter(pipeline())
    state = _tf_internals.serialize_iterator(*_tf_internals.owned_iterators(iterator))
    all_of_it = rest_of(iterator)
    _tf_internals.deserialize_iterator(*_tf_internals.owned_iterators(iterator), state)
    assert rest_of(iterator) == all_of_it


def test_position_of_a_python_generator_is_refused() -> None:
    dataset = tf.data.Dataset.from_generator(
        lambda: iter(range(3)), output_signature=tf.TensorSpec((), tf.int64)
    )
    (owned,) = _tf_internals.owned_iterators(iter(dataset))
    with pytest.raises(tf.errors.FailedPreconditionError):
        _tf_internals.serialize_iterator(owned)


def test_position_of_a_stateful_map_is_refused() -> None:
    dataset = tf.data.Dataset.range(4).map(lambda x: tf.random.uniform(()))
    (owned,) = _tf_internals.owned_iterators(iter(dataset))
    with pytest.raises(tf.errors.FailedPreconditionError):
        _tf_internals.serialize_iterator(owned)


@pytest.mark.parametrize("iterator", [iter([1]), tf.data.Dataset.range(2).as_numpy_iterator(), None])
def test_other_iterators_are_refused_with_the_cure(iterator: Any) -> None:
    with pytest.raises(
        errors.UnsupportedStrategyError, match=f"{type(iterator).__name__}.*(?s:.)HINT: distr"
    ):
        _tf_internals.owned_iterators(iterator)


def test_local_values_of_a_plain_variable_is_itself() -> None:
    variable = tf.Variable(1.0)
    assert _tf_internals.local_values(variable)[0] is variable
    assert not _tf_internals.is_sync_on_read(variable)


def test_local_values_of_a_keras_variable_are_tf_variables() -> None:
    variable = keras.Variable(3.0)
    (part,) = _tf_internals.local_values(variable)
    part.assign(4.0)
    assert float(variable) == 4.0
    assert not _tf_internals.is_sync_on_read(variable)


def test_plain_variable_with_on_read_is_read_without_reduction() -> None:
    variable = tf.Variable(
        1.0, synchronization=tf.VariableSynchronization.ON_READ, aggregation=tf.VariableAggregation.SUM
    )
    assert not _tf_internals.is_sync_on_read(variable)


def test_keras_metric_under_a_strategy_is_sync_on_read() -> None:
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        metric = keras.metrics.Mean()
    assert [_tf_internals.is_sync_on_read(variable) for variable in metric.variables] == [True, True]
    for variable in metric.variables:
        (part,) = _tf_internals.local_values(variable)
        part.assign(6.0)
    assert [float(variable.value.read_value()) for variable in metric.variables] == [6.0, 6.0]


def test_keras_variable_without_value_is_refused() -> None:
    with keras.StatelessScope():
        variable = keras.Variable(lambda shape, dtype: keras.ops.zeros(shape, dtype), shape=(2,))
        with pytest.raises(errors.ConfigError, match="no value yet"):
            _tf_internals.local_values(variable)


def test_no_collectives_outside_a_cluster() -> None:
    assert not _tf_internals.collectives_configured()


@pytest.mark.parametrize("timeout_s", [float("nan"), float("inf")])
def test_endless_waits_are_refused(timeout_s: float) -> None:
    with pytest.raises(ValueError, match="timeout_s"):
        _tf_internals.coordination_get("key", timeout_s)


@pytest.mark.parametrize(("timeout_s", "expected_ms"), [(-1.0, 1), (0.0, 1), (0.0001, 1), (1.5, 1500)])
def test_a_wait_is_never_endless(monkeypatch: pytest.MonkeyPatch, timeout_s: float, expected_ms: int) -> None:
    asked: list[int] = []
    context = types.SimpleNamespace(get_config_key_value=lambda key, ms: asked.append(ms) or "value")
    monkeypatch.setattr(_tf_internals.coordination, "_context", lambda: context)
    assert _tf_internals.coordination_get("key", timeout_s) == "value"
    assert asked == [expected_ms]


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (_tf_internals.collectives_configured, "_collective_ops_server_def"),
        (lambda: _tf_internals.coordination_set("key", "value"), "set_config_key_value"),
        (lambda: _tf_internals.coordination_get("key", 1.0), "get_config_key_value"),
        (lambda: _tf_internals.serialize_iterator(object()), "_iterator_resource"),
        (lambda: _tf_internals.local_values(object()), "_value"),
        (lambda: _tf_internals.dataset_inputs(object()), "_inputs"),
        (lambda: list(_tf_internals.dataset_function_ops(object())), "_functions"),
    ],
)
def test_a_name_that_is_gone_is_named_with_the_version(
    monkeypatch: pytest.MonkeyPatch, call: Callable[[], Any], name: str
) -> None:
    monkeypatch.setattr(_tf_internals.coordination, "_context", object)
    with pytest.raises(errors.InternalsChangedError, match=name) as caught:
        call()
    assert tf.version.VERSION in str(caught.value)


def test_a_module_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow.python.eager.context", None)
    monkeypatch.setattr(
        _tf_internals.coordination, "private_module", _tf_internals.access.private_module.__wrapped__
    )
    with pytest.raises(errors.InternalsChangedError, match=r"tensorflow\.python\.eager\.context"):
        _tf_internals.collectives_configured()


def test_walk_visits_each_source_once() -> None:
    source = tf.data.Dataset.range(4)
    found = list(_tf_internals.walk_dataset(tf.data.Dataset.zip((source.map(lambda x: x), source)).batch(2)))
    assert len(found) == 4
    assert sum(one is source for one in found) == 1


@pytest.mark.parametrize("worker", [0, 1])
def test_keys_of_the_coordination_service(two_workers: Any, worker: int) -> None:
    found = two_workers.saved[worker]["coordination"]
    assert found["collectives"] == {"before": False, "after": True}
    assert found["got"] == ["from 0", "from 1"]
    assert found["again"] == "AlreadyExistsError"
    assert found["late"] == "key 'test/never' was not written within 0.001 s"


def test_parts_on_one_worker_are_set_without_the_other(two_workers: Any) -> None:
    found = [results["variables"] for results in two_workers.saved]
    assert [one["sync on read"] for one in found] == [[True, False]] * 2
    assert [one["alone"] for one in found] == [None, [10.0, 2.0]]
    assert [one["together"] for one in found] == [11.0, 11.0]


def test_parts_of_two_replicas_in_one_process(without_cluster: dict[str, Any]) -> None:
    found = without_cluster["two replicas"]
    assert found["is sync on read"] is True
    assert (found["parts"], found["sum"]) == ([1.0, 2.0], 3.0)
