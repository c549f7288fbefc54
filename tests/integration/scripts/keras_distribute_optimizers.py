"""Keras's optimizers in replica functions; see keras_distribute_optimizers_expected.py."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tf_keras

from tests.integration.scripts import keras_distribute_optimizers_expected as given
from tests.integration.scripts.keras_distribute_models import parts, replica_id
from tests.integration.scripts.keras_matrix_parts import Arrays, Setting

SGD = functools.partial(keras.optimizers.SGD, given.RATE)
EMA = functools.partial(SGD, use_ema=True, ema_momentum=given.AVERAGED)
ACCUMULATION = functools.partial(SGD, gradient_accumulation_steps=given.ACCUMULATED)

OPTIMIZERS: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
    "plain": SGD,
    "momentum": lambda: SGD(momentum=given.MOMENTUM),
    "nesterov": lambda: SGD(momentum=given.MOMENTUM, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(given.RATE, *given.BETAS),
    "weight_decay": lambda: SGD(weight_decay=given.DECAY),
    "clipnorm": lambda: SGD(clipnorm=given.NORM),
    "global_clipnorm": lambda: SGD(global_clipnorm=given.NORM),
    "clipvalue": lambda: SGD(clipvalue=given.LARGEST),
    "ema": EMA,
    "ema_overwrite": lambda: EMA(ema_overwrite_frequency=given.OVERWRITE_EVERY),
    "accumulation": ACCUMULATION,
    "accumulation_clipnorm": lambda: ACCUMULATION(clipnorm=given.NORM),
    "loss_scale_factor": lambda: SGD(loss_scale_factor=given.SCALE),
    "loss_scale_optimizer": lambda: keras.optimizers.LossScaleOptimizer(
        SGD(), initial_scale=given.SCALE, dynamic_growth_steps=given.GROWTH_STEPS
    ),
}


def variables_of(setting: Setting) -> list[keras.Variable]:
    with setting.strategy.scope():
        return [
            keras.Variable(start, name=name) for name, start in zip(given.NAMES, given.START, strict=True)
        ]


class Steps(keras.Model):
    """A model whose training step applies gradients that depend on nothing but the replica and the step."""

    def __init__(self, variables: list[keras.Variable]) -> None:
        super().__init__()
        self.trained = variables

    def train_step(self, data: tf.Tensor) -> None:
        gradients = given.gradients_of(tf.cast(replica_id(), tf.float32), data)
        scaled = [self.optimizer.scale_loss(gradient) for gradient in gradients]
        self.optimizer.apply_gradients(zip(scaled, self.trained, strict=True))


def trained(
    setting: Setting, optimizer: keras.optimizers.Optimizer, variables: list[keras.Variable], way: str
) -> Arrays:
    """Applies scaled gradients step by step; gives all variables after each step."""
    with setting.strategy.scope():
        model = Steps(variables)
        model.compile(optimizer)

    def step_fn(step: tf.Tensor) -> None:
        setting.strategy.run(model.train_step, args=(step,))

    if way == "function":
        # In a function, variables cannot be made when they are needed.
        with setting.strategy.scope():
            optimizer.build(variables)
        step_fn = tf.function(step_fn)
    scales = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    record: dict[str, list[Any]] = {}
    for step in given.OVERFLOWING if scales else given.STEPS:
        step_fn(tf.constant(step, tf.float32))
        for name, value in _state(setting, optimizer, variables).items():
            record.setdefault(name, []).append(value)
    return {name: np.stack(values) for name, values in record.items()}


def _state(
    setting: Setting, optimizer: keras.optimizers.Optimizer, variables: Sequence[keras.Variable]
) -> Arrays:
    found = {f"{one.name} weights": parts(setting, one) for one in variables}
    found["iterations"] = keras.ops.convert_to_numpy(optimizer.iterations)
    for one in optimizer.variables:
        owner, _, kind = one.name.partition("_")
        if owner in given.NAMES:
            found[f"{owner} {kind}"] = parts(setting, one)
        elif one.name in ("dynamic_scale", "step_counter"):
            found[one.name] = one.numpy()
    return found


def _case(name: str, way: str) -> Callable[[Setting], Arrays]:
    def case(setting: Setting) -> Arrays:
        variables = variables_of(setting)
        with setting.strategy.scope():
            optimizer = OPTIMIZERS[name]()
        return trained(setting, optimizer, variables, way)

    return case


def from_config(setting: Setting) -> Arrays:
    variables = variables_of(setting)
    with setting.strategy.scope():
        first = SGD(momentum=given.MOMENTUM, nesterov=True, weight_decay=given.DECAY)
        second = keras.optimizers.deserialize(keras.optimizers.serialize(first))
    same = first.get_config() == second.get_config()
    return {"same": same, **trained(setting, second, variables, "function")}


def excluded_from_decay(setting: Setting) -> Arrays:
    """Of two variables, the second is excluded: by its name, and by itself."""
    found: Arrays = {}
    for way in ("by name", "by variable"):
        variables = variables_of(setting)
        with setting.strategy.scope():
            optimizer = SGD(weight_decay=given.DECAY)
        if way == "by name":
            optimizer.exclude_from_weight_decay(var_names=[given.NAMES[1]])
        else:
            optimizer.exclude_from_weight_decay(var_list=[variables[1]])
        pairs = [(tf.zeros_like(variable), variable) for variable in variables]
        setting.strategy.run(optimizer.apply_gradients, args=(pairs,))
        found |= {f"{one.name} {way}": parts(setting, one) for one in variables}
    return found


def variable_of_tensorflow(setting: Setting) -> Arrays:
    found: Arrays = {}
    for name, make in {"keras": keras.optimizers.SGD, "tf_keras": tf_keras.optimizers.SGD}.items():
        with setting.strategy.scope():
            variable = tf.Variable(given.START[0])
            optimizer = make(learning_rate=given.RATE, momentum=given.MOMENTUM)
        found[name] = _one_step(setting, optimizer, variable)
    return found


def _one_step(setting: Setting, optimizer: Any, variable: tf.Variable) -> np.ndarray:
    def replica_fn() -> None:
        gradients = given.gradients_of(tf.cast(replica_id(), tf.float32), 0.0)
        optimizer.apply_gradients([(gradients[0], variable)])

    setting.strategy.run(replica_fn)
    return parts(setting, variable)


def average_at_the_end(setting: Setting) -> Arrays:
    variables = variables_of(setting)
    with setting.strategy.scope():
        optimizer = EMA()
    trained(setting, optimizer, variables, "function")
    with setting.strategy.scope():
        optimizer.finalize_variable_values(variables)
    return {f"{one.name} weights": parts(setting, one) for one in variables}


def scaled_loss(setting: Setting) -> Arrays:
    with setting.strategy.scope():
        return {
            "factor": SGD(loss_scale_factor=given.SCALE).scale_loss(3.0),
            "without": SGD().scale_loss(3.0),
        }


def stateless_apply(setting: Setting) -> Arrays:
    """Asks for what Keras does not offer with variables of TensorFlow."""
    variables = variables_of(setting)
    with setting.strategy.scope():
        optimizer = SGD()
        optimizer.build(variables)
    try:
        optimizer.stateless_apply(optimizer.variables, list(given.GRADIENTS), variables)
    except ValueError as error:
        return {"refused": "not supported" in str(error)}
    return {"refused": False}


CASES: dict[str, Callable[[Setting], Arrays]] = {
    **{f"{name}_{way}": _case(name, way) for name in OPTIMIZERS for way in given.WAYS},
    **{
        case.__name__: case
        for case in (
            from_config,
            excluded_from_decay,
            variable_of_tensorflow,
            average_at_the_end,
            scaled_loss,
            stateless_apply,
        )
    },
}
