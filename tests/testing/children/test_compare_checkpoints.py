import json

import numpy as np
import pytest
import tensorflow as tf

from tf_preempt.checkpointing.iterator_state import take_position
from tf_preempt.checkpointing.manifest import FileRecord, Manifest
from tf_preempt.checkpointing.worker_part import WorkerPart, part_name, write_part
from tf_preempt.testing.children import compare_checkpoints


class Saved:
    """A directory with checkpoints as tf_preempt makes them."""

    def __init__(self, path):
        path.mkdir()
        self.path = str(path)

    def save(self, number, values, *, step=10, fit=0, parts=None, resume=None):
        """Parts: of each worker, its tensors and its values."""
        prefix = f"ckpt-{number}"
        layer = tf.Module()
        for name, value in values.items():
            setattr(layer, name, tf.Variable(value, name=name))
        checkpoint = tf.train.Checkpoint(model=layer)
        checkpoint.save_counter.assign(number)
        checkpoint.write(f"{self.path}/{prefix}")
        names = []
        for worker, (tensors, others) in enumerate(parts or [({}, {})]):
            name = part_name(prefix, worker, len(parts or [0]))
            names += [
                one.name for one in write_part(self.path, name, WorkerPart(tensors=tensors, values=others))
            ]
        manifest = Manifest(
            prefix=prefix,
            number=number,
            step=step,
            incarnation=0,
            resume={"fit": fit, **(resume or {})},
            workers=len(parts or [0]),
            reason="",
            written="",
            seconds=0.0,
            versions={},
            files=[FileRecord.of(self.path, name) for name in names],
        )
        with open(f"{self.path}/{manifest.name}", "wb") as file:
            file.write(manifest.to_bytes())
        return self


@pytest.fixture
def two(tmp_path):
    return Saved(tmp_path / "one"), Saved(tmp_path / "other")


def compare(one, other, *, fit=0, prefixes=("ckpt-1", "ckpt-1"), workers=1):
    request = {
        "pairs": [{"fit": fit, "prefixes": list(prefixes), "workers": workers}],
        "directories": [one.path, other.path],
        "kept": [one.path, other.path],
    }
    return compare_checkpoints.compare(json.loads(json.dumps(request)))


def test_same_values_are_identical_however_many_checkpoints_were_made(two):
    one, other = two
    one.save(1, {"kernel": [1.0, 2.0]})
    other.save(3, {"kernel": [1.0, 2.0]})
    answer = compare(one, other, prefixes=("ckpt-1", "ckpt-3"))
    assert answer["differences"] == []
    assert answer["compared"]["weights"] == 1
    assert answer["steps"] == [{"fit": 0, "step": 10, "identical": True}]


def test_variable_that_differs_is_called_by_its_own_name(two):
    one, other = two
    one.save(1, {"kernel": [1.0, 2.0], "bias": 0.5})
    other.save(1, {"kernel": [1.0, 2.5], "bias": 0.5})
    (difference,) = compare(one, other)["differences"]
    assert (difference["name"], difference["group"]) == ("kernel", "weights")
    assert (difference["differing"], difference["elements"], difference["max_abs"]) == (1, 2, 0.5)


def test_optimizer_of_a_custom_loop_is_told_from_weights(two):
    import keras

    for saved, rate in zip(two, (0.1, 0.2), strict=True):
        saved.save(1, {})
        weight, rule = keras.Variable(1.0, name="w"), keras.optimizers.SGD(rate, momentum=0.5)
        rule.build([weight])
        tf.train.Checkpoint(rule=rule).write(f"{saved.path}/ckpt-1")
    answer = compare(*two)
    (difference,) = answer["differences"]
    assert (difference["name"].rpartition("/")[2], difference["group"]) == ("learning_rate", "optimizer")
    assert answer["compared"]["weights"] == 1


def test_variable_that_only_one_has(two):
    one, other = two
    one.save(1, {"kernel": 1.0, "more": 2.0})
    other.save(1, {"kernel": 1.0})
    (difference,) = compare(one, other)["differences"]
    assert (difference["name"], difference["note"]) == ("more", "only the first training has it")


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("metric/0/0", "metrics"),
        ("sync_on_read/0/0", "metrics"),
        ("replica/0/0", "weights"),
        ("untracked/0/0", "seeds"),
        ("generator/layer/0", "seeds"),
        ("callback/0/1", "callbacks"),
        ("else/0", "other state"),
    ],
)
def test_part_of_a_worker_that_differs_is_named_with_the_worker(name, group, two):
    same = ({name: np.float32(1)}, {})
    two[0].save(1, {"kernel": 1.0}, parts=[same, same])
    two[1].save(1, {"kernel": 1.0}, parts=[same, ({name: np.float32(2)}, {})])
    answer = compare(*two, workers=2)
    (difference,) = answer["differences"]
    assert (difference["name"], difference["group"]) == (f"worker 1: {name}", group)
    assert answer["compared"][group] >= 2


def test_positions_in_data_are_counted_and_not_compared(two):
    position = take_position(iter(tf.data.Dataset.range(3)), "train_data")
    for saved in two:
        saved.save(1, {"kernel": 1.0}, parts=[(position, {})])
    answer = compare(*two)
    assert (answer["not_compared"], answer["differences"]) == (len(position), [])


def test_iterator_in_a_checkpoint_is_counted_and_not_compared(two):
    for saved in two:
        saved.save(1, {})
        iterator = iter(tf.data.Dataset.range(3))
        tf.train.Checkpoint(iterator=iterator).write(f"{saved.path}/ckpt-1")
    assert compare(*two)["not_compared"] == 1


def test_random_states_of_the_processes_are_told_and_are_no_difference(two):
    for saved, state in zip(two, (1, 2), strict=True):
        saved.save(1, {"kernel": 1.0}, parts=[({}, {"random": {"python": 5, "numpy": state}})])
    answer = compare(*two)
    assert (answer["random"], answer["differences"]) == (["numpy"], [])


def test_history_and_place_are_compared(two):
    for saved, loss, phase in zip(two, (0.25, 0.5), ("finished", "train"), strict=True):
        resume = {"phase": phase, "history": {"loss": [1.0, loss]}, "train": {"taken": loss}}
        saved.save(1, {"kernel": 1.0}, resume=resume)
    found = {one["name"]: (one["group"], one["note"]) for one in compare(*two)["differences"]}
    assert found == {
        "history.loss": ("history", "from position 1 on"),
        "phase": ("place", "'finished' and 'train'"),
    }


def test_number_of_steps_is_compared(two):
    for saved, step in zip(two, (10, 12), strict=True):
        saved.save(1, {"kernel": 1.0}, step=step)
    (difference,) = compare(*two)["differences"]
    assert (difference["name"], difference["max_abs"]) == ("steps in all", 2.0)


def test_later_training_of_the_program_is_named(two):
    for saved, value in zip(two, (1.0, 2.0), strict=True):
        saved.save(1, {"kernel": value}, fit=1)
    (difference,) = compare(*two, fit=1)["differences"]
    assert difference["name"] == "fit 1: kernel"


def test_steps_that_both_have_saved_tell_where_they_part(two):
    one, other = two
    for number, step, value in ((1, 5, 1.0), (2, 10, 2.0), (3, 15, 3.0)):
        one.save(number, {"kernel": value}, step=step)
    for number, step, value in ((1, 5, 1.0), (2, 7, 0.0), (3, 10, 9.0), (4, 10, 2.0), (5, 15, 4.0)):
        other.save(number, {"kernel": value}, step=step)
    assert compare(one, other, prefixes=("ckpt-3", "ckpt-5"))["steps"] == [
        {"fit": 0, "step": 5, "identical": True},
        {"fit": 0, "step": 10, "identical": True},
        {"fit": 0, "step": 15, "identical": False},
    ]


def test_variables_of_one_name_are_told_apart(two):
    for saved, value in zip(two, (1.0, 2.0), strict=True):
        layers = [tf.Variable(0.0, name="w"), tf.Variable(value, name="w")]
        saved.save(1, {})
        tf.train.Checkpoint(layers=layers).write(f"{saved.path}/ckpt-1")
    (difference,) = compare(*two)["differences"]
    assert difference["name"] == "w (layers/1)"


def test_program_reads_and_writes_files(two, tmp_path):
    for saved in two:
        saved.save(1, {"kernel": 1.0})
    request = {"pairs": [], "directories": [], "kept": [saved.path for saved in two]}
    (tmp_path / "request").write_text(json.dumps(request))
    compare_checkpoints.main([str(tmp_path / "request"), str(tmp_path / "answer")])
    assert json.loads((tmp_path / "answer").read_text())["steps"][0]["identical"] is True
