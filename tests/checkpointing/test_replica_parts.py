from __future__ import annotations

import contextlib
import logging
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_preempt.checkpointing.replica_parts import (
    check,
    check_as_many,
    replica_parts,
    restore,
    take,
    untracked_variables,
    variables_in,
    written_by_replicas,
)
from tf_preempt.errors import CheckpointMismatchError
from tf_preempt.strategies import MirroredStrategy

MIB = 2**20


def variable(value: Any, name: str = "moving_mean", **options: Any) -> tf.Variable:
    return tf.Variable(value, name=name, trainable=False, **options)


def values(parts: Any) -> list[Any]:
    return [part.variable.numpy().tolist() for part in parts]


def test_small_parts_come_back_whatever_was_written_since() -> None:
    parts = replica_parts([variable([1.0, 2.0]), variable(3)])
    tensors, checksums = take(parts)
    assert checksums == {}
    for part in parts:
        part.variable.assign(part.variable * 10)
    check(parts, tensors)
    restore(parts, tensors, checksums)
    assert values(parts) == [[1.0, 2.0], 3]


@pytest.mark.parametrize(
    ("size", "name", "kept"),
    [
        (MIB // 4, "moving_mean", True),
        (MIB // 4 + 1, "moving_mean", False),
        (MIB // 4 + 1, "adam/gradient_accumulator", True),
    ],
)
def test_only_small_parts_and_accumulated_gradients_are_kept(size: int, name: str, kept: bool) -> None:
    tensors, checksums = take(replica_parts([variable(np.zeros(size, np.float32), name)]))
    assert (len(tensors), len(checksums)) == ((1, 0) if kept else (0, 1))


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.float16, tf.int64, tf.bool])
def test_a_large_part_that_differs_is_warned_of(dtype: tf.DType, caplog: pytest.LogCaptureFixture) -> None:
    parts = replica_parts([variable(tf.cast(tf.zeros([2 * MIB]), dtype), "frozen")])
    tensors, checksums = take(parts)
    with caplog.at_level(logging.WARNING, "tf_preempt"):
        restore(parts, tensors, checksums)
        assert not caplog.records
        parts[0].variable.assign(tf.cast(tf.ones([2 * MIB]), dtype))
        restore(parts, tensors, checksums)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "'frozen:0' differed between replicas" in caplog.text
    assert "HINT: give the variable an aggregation" in caplog.text


def test_a_variable_of_unknown_shape_is_kept_and_comes_back() -> None:
    parts = replica_parts([variable([1.0, 2.0, 3.0], shape=tf.TensorShape(None))])
    tensors, checksums = take(parts)
    parts[0].variable.assign([9.0])
    check(parts, tensors)
    restore(parts, tensors, checksums)
    assert values(parts) == [[1.0, 2.0, 3.0]]


@pytest.mark.parametrize("others", [[], [[1.0, 2.0, 3.0]], [[[1.0, 2.0]]]])
def test_parts_of_other_variables_are_refused_with_the_cure(others: list[Any]) -> None:
    tensors, _ = take(replica_parts([variable([1.0, 2.0])]))
    with pytest.raises(CheckpointMismatchError, match=r"'replica/0/0' with shape \(2,\)(?s:.)*HINT: "):
        check(replica_parts([variable(other) for other in others]), tensors)


def test_other_tensors_of_a_worker_s_part_are_nobody_s_business_here() -> None:
    check([], {"metric/0/0": tf.zeros([3])})


def test_seeds_of_keras_layers_are_kept_for_the_checkpoint_does_not_have_them() -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dropout(0.5)])
    checkpoint = tf.train.Checkpoint(model=model, again=model.layers[-1])
    assert [one.path.rpartition("/")[2] for one in untracked_variables(checkpoint)] == [
        "seed_generator_state"
    ]
    parts = replica_parts(untracked_variables(checkpoint), kept_nowhere_else=True)
    tensors, checksums = take(parts)
    before = values(parts)
    model(tf.ones((1, 3)), training=True)
    assert values(parts) != before
    check(parts, tensors)
    restore(parts, tensors, checksums)
    assert values(parts) == before


def test_a_checkpoint_without_keras_has_nothing_untracked() -> None:
    assert untracked_variables(tf.train.Checkpoint(one=variable(1.0))) == []


def test_variables_of_keras_and_of_tensorflow_in_a_checkpoint_are_found() -> None:
    metric, plain = keras.metrics.Mean(), tf.Variable(1.0)
    checkpoint = tf.train.Checkpoint(metric=list(metric.variables), plain=plain, number=tf.train.Checkpoint())
    found = variables_in(checkpoint)
    assert {id(one) for one in found} == {id(one) for one in (*metric.variables, plain)}
    assert len(found) == 3


WRITTEN_BY_REPLICAS = """
import keras, tensorflow as tf
from tf_preempt.checkpointing.replica_parts import written_by_replicas
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
def paths(devices):
    with tf.distribute.MirroredStrategy(devices).scope():
        layers = [keras.layers.Input((3,)), keras.layers.BatchNormalization(name="bn"), keras.layers.Dense(1)]
        model = keras.Sequential(layers)
        optimizer = keras.optimizers.Adam(gradient_accumulation_steps=2)
        optimizer.build(model.trainable_variables[:1])
        own, shared = tf.Variable(1.0, trainable=False), tf.Variable(1.0)
        metric = keras.metrics.Mean()
    holds = {"model": model, "optimizer": optimizer, "own": own, "shared": shared}
    checkpoint = tf.train.Checkpoint(metrics=list(metric.variables), **holds)
    found = written_by_replicas(checkpoint)
    return sorted("own" if one is own else one.path.split("/")[-1] for one in found)
print(paths(["CPU:0", "CPU:1"]), paths(["CPU:0"]))
"""


def test_what_replicas_write_by_themselves_is_found_in_keras_models(run_script: Any) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2", "TF_CONFIG": None}
    ended = run_script(WRITTEN_BY_REPLICAS, env=environ, timeout=120)
    expected = ["moving_mean", "moving_variance", "own", "sequential_bn_gamma_gradient_accumulator"]
    assert ended.stdout.strip() == f"{expected} []", ended.stderr[-4000:]


def _states(scope: Any) -> tf.train.Checkpoint:
    with scope:
        own = tf.Variable([1.0, 2.0], trainable=False)
    return tf.train.Checkpoint(outside=tf.Variable(0, trainable=False), own=own)


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_same_variables_are_found_for_any_number_of_replicas_of_a_strategy(replicas: int) -> None:
    strategy = MirroredStrategy([f"cpu:{number}" for number in range(replicas)])
    checkpoint = _states(strategy.scope())
    found = written_by_replicas(checkpoint, also_by_one=True)
    assert [one.shape.as_list() for one in found] == [[2]]
    names = [part.name for part in replica_parts(found)]
    assert names == [f"replica/0/{replica}" for replica in range(replicas)]


def test_more_variables_without_a_strategy_than_workers_had_are_refused_with_the_cure() -> None:
    checkpoint = _states(contextlib.nullcontext())
    parts = replica_parts(written_by_replicas(checkpoint, also_by_one=True))
    saved = {"replica/0/0": tf.constant([1.0, 2.0]), "replica/0/1": tf.constant([1.0, 2.0])}
    with pytest.raises(CheckpointMismatchError, match=r"(?s)had 1 variable.*there are 2.*HINT: make the var"):
        check_as_many(parts, saved)
    check_as_many(parts, [])  # one replica had written: the checkpoint has it all


def test_a_variable_of_which_only_a_checksum_was_kept_counts() -> None:
    large = tf.Variable(tf.ones([MIB]), trainable=False)
    parts = replica_parts([variable([1.0, 2.0]), large])
    tensors, checksums = take(parts)
    assert len(tensors) == len(checksums) == 1
    check_as_many(parts, [*tensors, *checksums])
    with pytest.raises(CheckpointMismatchError, match="had 1 variable"):
        check_as_many(parts, tensors)
