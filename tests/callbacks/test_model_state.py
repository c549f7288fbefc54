from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.callbacks import lives
from tf_preempt.callbacks import model_state
from tf_preempt.errors import CheckpointMismatchError


def trained(seed: int, **arguments: Any) -> keras.Model:
    keras.utils.set_random_seed(seed)
    model = lives.dense_model(metrics=["mae"], **arguments)
    model.fit(lives.pipeline(), verbose=0, shuffle=False)
    return model


def test_all_variables_but_metrics_are_saved_once() -> None:
    model = trained(1)
    saved = model_state.saved_variables(model)
    paths = [variable.path for variable in saved]
    assert len({id(variable) for variable in saved}) == len(saved)
    assert any("kernel" in path for path in paths)
    assert any("iteration" in path for path in paths)
    assert any("learning_rate" in path for path in paths)
    assert any("seed_generator_state" in path for path in paths)
    assert not {id(variable) for variable in saved} & {id(variable) for variable in model.metrics_variables}


def test_model_without_optimizer() -> None:
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    assert [variable.path for variable in model_state.saved_variables(model)] == [
        variable.path for variable in model.variables
    ]


def test_checkpoint_brings_back_every_saved_variable(tmp_path: Path) -> None:
    one, other = trained(1), trained(2)
    path = model_state.make_checkpoint(one).write(str(tmp_path / "ckpt"))
    model_state.make_checkpoint(other).read(path).assert_existing_objects_matched()
    pairs = list(zip(*map(model_state.saved_variables, (one, other)), strict=True))
    for saved, restored in pairs:
        assert saved.numpy().tobytes() == restored.numpy().tobytes(), saved.path


def test_checkpoint_is_read_by_tensorflow(tmp_path: Path) -> None:
    model = trained(1)
    path = model_state.make_checkpoint(model).write(str(tmp_path / "ckpt"))
    reader = tf.train.load_checkpoint(path)
    arrays = [reader.get_tensor(name) for name in reader.get_variable_to_shape_map()]
    (kernel,) = [variable for variable in model.variables if variable.path.endswith("kernel")]
    assert any(isinstance(array, np.ndarray) and np.array_equal(array, kernel.numpy()) for array in arrays)


def test_metric_parts_come_back() -> None:
    one, other = trained(1), trained(2)
    parts = model_state.metric_parts(one)
    assert len(parts) == len(one.metrics_variables) > 2
    model_state.check_metric_parts(other, parts)
    model_state.set_metric_parts(other, parts)
    for saved, restored in zip(one.metrics_variables, other.metrics_variables, strict=True):
        assert saved.numpy().tobytes() == restored.numpy().tobytes()


def test_metric_parts_are_values_and_not_the_variables() -> None:
    model = trained(1)
    parts = model_state.metric_parts(model)
    before = {name: np.array(part) for name, part in parts.items()}
    model.reset_metrics()
    assert any(np.any(value) for value in before.values())
    assert all(np.array_equal(parts[name], value) for name, value in before.items())


@pytest.mark.parametrize("change", ["missing", "more", "shape"])
def test_parts_of_other_metrics_are_refused(change: str) -> None:
    model = trained(1)
    parts = model_state.metric_parts(model)
    if change == "missing":
        del parts["metric/0/0"]
    else:
        parts["metric/0/0" if change == "shape" else "metric/99/0"] = tf.zeros([2])
    with pytest.raises(CheckpointMismatchError, match="metric variables") as raised:
        model_state.check_metric_parts(model, parts)
    assert raised.value.hint


def test_scalars_are_rate_and_iterations_with_their_values() -> None:
    model = trained(1, optimizer=keras.optimizers.SGD(0.25))
    scalars = {variable.name: value for variable, value in model_state.scalar_values(model)}
    assert scalars == {"iteration": lives.STEPS, "learning_rate": 0.25}
