"""Variables, replica functions and models under a strategy; see keras_distribute_models_expected.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.integration.scripts import keras_distribute_models_expected as given
from tests.integration.scripts.keras_matrix_parts import QUIET, Arrays, Setting

AGGREGATIONS = ("none", "sum", "mean", "only_first_replica")


def parts(setting: Setting, value: Any) -> np.ndarray:
    """What each replica of this process has of a variable or a result; the first axis is the replica."""
    if isinstance(value, keras.Variable):
        value = value.value
    return np.stack([part.numpy() for part in setting.strategy.experimental_local_results(value)])


def replica_id() -> tf.Tensor:
    return tf.convert_to_tensor(tf.distribute.get_replica_context().replica_id_in_sync_group)


def scope_variables(setting: Setting) -> Arrays:
    """Workers start with different numbers, of which all must take the chief's."""
    start = keras.initializers.Constant(1.0 + setting.worker)
    with setting.strategy.scope():
        dense = keras.layers.Dense(2, kernel_initializer=start)
        dense.build((4, 3))
    outside = keras.layers.Dense(2)
    outside.build((4, 3))
    devices = [tf.DeviceSpec.from_string(part.device) for part in dense.kernel.value.values]
    initial = parts(setting, dense.kernel)
    dense.kernel.assign(np.full((3, 2), 5.0))
    return {
        "distributed": [isinstance(one.value, tf.distribute.DistributedValues) for one in dense.weights],
        "outside distributed": isinstance(outside.kernel.value, tf.distribute.DistributedValues),
        "places": [(device.task, device.device_index) for device in devices],
        "initial": initial,
        "assigned": parts(setting, dense.kernel),
    }


def replica_function(setting: Setting) -> Arrays:
    with setting.strategy.scope():
        inputs = keras.Input((4,))
        dense = keras.layers.Dense(2, kernel_initializer=keras.initializers.Constant(0.5))
        model = keras.Model(inputs, dense(inputs))
        dense.bias.assign([0.25, 0.25])
    values = setting.strategy.experimental_distribute_values_from_function(
        lambda context: tf.fill((8, 4), float(context.replica_id_in_sync_group))
    )

    @tf.function
    def replica_fn(data: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return replica_id(), model(data)

    ids, outputs = setting.strategy.run(replica_fn, args=(values,))
    return {"id": parts(setting, ids), "output": parts(setting, outputs)}


def epoch_iterator(setting: Setting) -> Arrays:
    """What every replica gets, written down in an eager ``train_step``."""
    seen: dict[str, list[Any]] = {}
    steps: list[int] = []

    class Recorder(keras.Model):
        def train_step(self, data: Any) -> dict[str, tf.Tensor]:
            replica = int(replica_id())
            arrays = dict(zip(("x", "y", "weight"), data, strict=True))
            seen.setdefault(f"{replica} sizes", []).append(len(arrays["x"]))
            for name, array in arrays.items():
                seen.setdefault(f"{replica} {name}", []).extend(array.numpy().tolist())
            return {"loss": tf.zeros(())}

    with setting.scope():
        inputs = keras.Input((2,))
        model = Recorder(inputs, keras.layers.Dense(1)(inputs))
        model.compile("sgd", "mse", run_eagerly=True)
    number = np.arange(given.NUMBERED_ROWS, dtype=np.float32)
    model.fit(
        np.stack([number, number], axis=1),
        2 * number[:, np.newaxis],
        sample_weight=number + 0.5,
        batch_size=given.NUMBERED_BATCH,
        shuffle=True,
        callbacks=[
            keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: steps.append(batch))
        ],
        **QUIET,
    )
    return {**seen, "steps": steps}


def _line(name: str | None = None, kernel: float = given.KERNEL, **options: Any) -> keras.layers.Dense:
    return keras.layers.Dense(1, kernel_initializer=keras.initializers.Constant(kernel), name=name, **options)


def batch_sizes(setting: Setting) -> Arrays:
    with setting.scope():
        model = keras.Sequential([keras.Input((3,)), _line()])
        model.compile(keras.optimizers.SGD(given.RATE), "mse", metrics=["mae"])
    start = model.get_weights()
    found: Arrays = {}
    for size in given.BATCH_SIZES:
        model.set_weights(start)
        options = {"batch_size": size, **QUIET}
        history = model.fit(given.X, given.Y, epochs=given.EPOCHS, shuffle=False, **options).history
        found |= {f"{size} {name}": values for name, values in history.items()}
        found[f"{size} evaluate"] = model.evaluate(given.X, given.Y, **options)
        found[f"{size} predict"] = model.predict(given.X, **options)
        found |= {f"{size} {one.name}": parts(setting, one) for one in model.weights}
    return found


def declared_batch_size(setting: Setting) -> Arrays:
    """The model says which batch size it wants; each replica gets a part of that."""
    x, y = given.X[: given.EVEN_ROWS], given.Y[: given.EVEN_ROWS]
    with setting.scope():
        model = keras.Sequential([keras.Input((3,), batch_size=given.BATCH), _line()])
        model.compile(keras.optimizers.SGD(given.RATE), "mse")
    options = {"batch_size": given.BATCH, "shuffle": False, "validation_split": 0.2, **QUIET}
    history = model.fit(x, y, **options).history
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(given.BATCH)
    again = model.fit(setting.strategy.experimental_distribute_dataset(data), shuffle=False, **QUIET).history
    return {**history, "again loss": again["loss"], "kernel": parts(setting, model.layers[-1].kernel)}


def _two_outputs(setting: Setting, pack: Callable[[Any, Any], Any], names: tuple[Any, Any]) -> Arrays:
    with setting.scope():
        inputs = keras.Input((3,))
        lines = [_line("left")(inputs), _line("right", -given.KERNEL)(inputs)]
        model = keras.Model(inputs, pack(*lines))
        model.compile(keras.optimizers.SGD(given.RATE), pack("mse", "mse"), metrics=pack(["mae"], ["mae"]))
    x, y = given.X[: given.EVEN_ROWS], given.Y[: given.EVEN_ROWS]
    options = {"batch_size": given.BATCH, **QUIET}
    history = model.fit(x, pack(y, -y), shuffle=False, **options).history
    runs = {
        "fit": {name: values[0] for name, values in history.items()},
        "evaluate": model.evaluate(x, pack(y, -y), return_dict=True, **options),
    }
    found: Arrays = {}
    for run, logs in runs.items():
        found[f"{run} loss"] = logs["loss"]
        found[f"{run} losses"] = [logs["left_loss"], logs["right_loss"]]
        found[f"{run} maes"] = [logs["left_mae"], logs["right_mae"]]
    predicted = model.predict(x, **options)
    return found | {f"predict {name}": predicted[name] for name in names}


def list_outputs(setting: Setting) -> Arrays:
    return _two_outputs(setting, lambda left, right: [left, right], (0, 1))


def dict_outputs(setting: Setting) -> Arrays:
    return _two_outputs(setting, lambda left, right: {"left": left, "right": right}, ("left", "right"))


def regularizer(setting: Setting) -> Arrays:
    x, y = np.ones((given.REGULARIZED_ROWS, 1)), np.zeros((given.REGULARIZED_ROWS, 1))
    with setting.scope():
        penalty = keras.regularizers.L1L2(l1=given.L1, l2=given.L2)
        model = keras.Sequential(
            [keras.Input((1,)), _line(kernel=1.0, use_bias=False, kernel_regularizer=penalty)]
        )
        model.compile(keras.optimizers.SGD(given.RATE), "mse")
    start = model.get_weights()
    found: Arrays = {}
    for size in (given.REGULARIZED_ROWS, 5):
        model.set_weights(start)
        history = model.fit(x, y, batch_size=size, **QUIET).history
        found |= {f"{size} loss": history["loss"][0], f"{size} kernel": parts(setting, model.weights[0])}
    return found


class RowsOfCall(keras.layers.Layer):
    """Writes into a variable per aggregation how many rows its replica got."""

    def build(self, shape: Any) -> None:
        self.rows = {
            name: self.add_weight(shape=(), initializer="zeros", trainable=False, aggregation=name)
            for name in AGGREGATIONS
        }

    def call(self, inputs: Any) -> Any:
        for variable in self.rows.values():
            variable.assign(keras.ops.shape(inputs)[0])
        return inputs


class CountedRows(keras.layers.Layer):
    """Counts rows in variables that each replica has for itself until somebody reads them."""

    def build(self, shape: Any) -> None:
        self.counts = {
            name: keras.Variable(0.0, trainable=False, aggregation=name, synchronization="on_read")
            for name in AGGREGATIONS[1:]
        }

    def call(self, inputs: Any) -> Any:
        for variable in self.counts.values():
            variable.assign_add(tf.cast(keras.ops.shape(inputs)[0], tf.float32))
        return inputs


def _with_line(setting: Setting, layer: Callable[[], keras.layers.Layer]) -> tuple[keras.Model, Any]:
    with setting.scope():
        first = layer()
        model = keras.Sequential([keras.Input((3,)), first, _line()])
        model.compile("sgd", "mse")
    return model, first


def _fit(model: keras.Model, rows: int) -> None:
    model.fit(given.X[:rows], given.Y[:rows], batch_size=given.BATCH, shuffle=False, **QUIET)


def aggregation_in_call(setting: Setting) -> Arrays:
    model, layer = _with_line(setting, RowsOfCall)
    values = setting.strategy.experimental_distribute_values_from_function(
        lambda context: tf.zeros((2 + 3 * context.replica_id_in_sync_group, 3))
    )
    setting.strategy.run(tf.function(model), args=(values,))
    found = {name: parts(setting, variable) for name, variable in layer.rows.items()}
    _fit(model, len(given.X))
    return found | {f"fit {name}": parts(setting, variable) for name, variable in layer.rows.items()}


def aggregation_names(setting: Setting) -> Arrays:
    with setting.strategy.scope():
        variables = [keras.Variable(1.0)]
        variables += [keras.Variable(1.0, aggregation=name) for name in AGGREGATIONS[1:]]
    return {
        "keras": [variable.aggregation for variable in variables],
        "tensorflow": [variable.value.aggregation.name for variable in variables],
    }


def synchronization_on_read(setting: Setting) -> Arrays:
    model, layer = _with_line(setting, CountedRows)
    _fit(model, len(given.X))
    with setting.strategy.scope():
        variables = [keras.Variable(1.0), layer.counts["sum"]]
    return {
        "keras": [variable.synchronization for variable in variables],
        "tensorflow": [variable.value.synchronization.name for variable in variables],
        "own": parts(setting, layer.counts["sum"]),
        **{name: variable.numpy() for name, variable in layer.counts.items()},
    }


def seed_generator(setting: Setting) -> Arrays:
    with setting.strategy.scope():
        generator = keras.random.SeedGenerator(42)
    run = setting.strategy.run

    def draw() -> tf.Tensor:
        return keras.random.uniform((3,), seed=generator)

    states = [parts(setting, run(lambda: tf.identity(generator.state.value)))]
    draws = [parts(setting, run(draw))]
    states.append(parts(setting, generator.state))
    in_function = tf.function(lambda: run(draw))
    draws += [parts(setting, in_function()) for _ in range(2)]
    model, dropout = _with_line(setting, lambda: keras.layers.Dropout(0.5, seed=7))
    _fit(model, 17)
    return {
        "state at first": states[0],
        "state after one": states[1],
        "state after three": parts(setting, generator.state),
        "state of dropout": parts(setting, dropout.seed_generator.state),
        "draws": draws,
        "draws of tensorflow": [tf.random.stateless_uniform((3,), seed=(42, count)) for count in range(3)],
    }


CASES: dict[str, Callable[[Setting], Arrays]] = {
    case.__name__: case
    for case in (
        scope_variables,
        replica_function,
        epoch_iterator,
        batch_sizes,
        declared_batch_size,
        list_outputs,
        dict_outputs,
        regularizer,
        aggregation_in_call,
        aggregation_names,
        synchronization_on_read,
        seed_generator,
    )
}
