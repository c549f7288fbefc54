"""A custom loop with the handler, under `run` and `launch`, ends as if nobody had disturbed it."""

import collections
import concurrent.futures
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).parent / "scripts" / "custom_loop.py"
TOTAL = 20
SAVE_EVERY = 4  # as in the script
TIMEOUT_S = 200


def launch(workers, *arguments):
    return [
        sys.executable,
        "-m",
        "tf_preempt",
        "launch",
        "--workers",
        str(workers),
        "--",
        *program(*arguments),
    ]


def program(*arguments):
    return [sys.executable, str(SCRIPT), *map(str, arguments)]


def supervise(command):
    supervisor = [sys.executable, "-m", "tf_preempt", "run", "--backoff-initial", "0.1", "--", *command]
    return subprocess.run(supervisor, capture_output=True, text=True, timeout=TIMEOUT_S)


def steps_and_losses(result, worker):
    lines = Path(f"{result}.{worker}.jsonl").read_text().splitlines()
    return [tuple(json.loads(line)) for line in lines]


def assert_same_result(one, other):
    with np.load(f"{one}.npz") as first, np.load(f"{other}.npz") as second:
        assert sorted(first.files) == sorted(second.files)
        for name in first.files:
            np.testing.assert_array_equal(first[name], second[name], err_msg=name)


@pytest.mark.parametrize("workers", [1, 2])
def test_interrupted_loop_ends_with_the_weights_of_an_undisturbed_one(tmp_path, workers):
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    last = workers - 1
    signals = [f"5:{last}:SIGTERM", f"13:{last}:SIGKILL", f"{TOTAL - 1}:0:SIGTERM"]

    calm = launch(workers, tmp_path / "calm", undisturbed, TOTAL)
    stormy = launch(workers, tmp_path / "stormy", disturbed, TOTAL, *signals)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for ended in pool.map(supervise, [calm, stormy]):
            assert ended.returncode == 0, ended.stdout + ended.stderr

    assert_same_result(undisturbed, disturbed)
    for worker in range(workers):
        calm_steps = steps_and_losses(undisturbed, worker)
        stormy_steps = steps_and_losses(disturbed, worker)
        assert [step for step, _ in calm_steps] == list(range(TOTAL))
        assert set(stormy_steps) == set(calm_steps), "a step was done with other data or other weights"
        times = collections.Counter(step for step, _ in stormy_steps)
        assert times[5] == times[TOTAL - 1] == 1, "a notice must not repeat a step"
        # A SIGKILL repeats what came after the last commit; the commit of one save may be under way.
        assert sum(times.values()) - TOTAL <= 2 * SAVE_EVERY


def test_directory_of_plain_tensorflow_checkpoints_is_adopted(tmp_path):
    import tensorflow as tf

    variable = tf.Variable(7.0)
    tf.train.CheckpointManager(tf.train.Checkpoint(variable=variable), str(tmp_path), max_to_keep=1).save()
    code = (
        "import sys, tensorflow as tf, tf_preempt\n"
        "variable = tf.Variable(0.0)\n"
        "handler = tf_preempt.PreemptionCheckpointHandler("
        "None, tf.train.Checkpoint(variable=variable), sys.argv[1])\n"
        "print('value', float(variable), list(handler.steps(0)))\n"
        "handler.close()\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert "value 7.0 []" in run.stdout, run.stdout + run.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            "None, 'no checkpoint', sys.argv[1]",
            "ConfigError: checkpoint_or_checkpoint_manager='no checkpoint'",
        ),
        ("None, tf.train.Checkpoint()", "DirectoryNotGivenError: No checkpoint directory"),
        ("None, tf.train.Checkpoint(), sys.argv[1], save_every='epoch'", "ConfigError: save_every='epoch'"),
        ("None, tf.train.Checkpoint(), sys.argv[1], 3", "ConfigError: "),
    ],
)
def test_wrong_arguments_are_named_before_anything_is_written(tmp_path, arguments, expected):
    directory = tmp_path / "checkpoints"
    code = f"import sys, tensorflow as tf, tf_preempt\ntf_preempt.PreemptionCheckpointHandler({arguments})"
    run = subprocess.run(
        [sys.executable, "-c", code, str(directory)], capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert run.returncode == 1
    assert expected in run.stderr
    assert not directory.exists()


def test_iterator_under_another_name_is_warned_of_after_a_resume(tmp_path):
    code = (
        "import logging, sys, tensorflow as tf, tf_preempt\n"
        "variable = tf.Variable(0.0)\n"
        "handler = tf_preempt.PreemptionCheckpointHandler("
        "None, tf.train.Checkpoint(variable=variable), sys.argv[1])\n"
        "iterator = handler.track(iter(tf.data.Dataset.range(10)), sys.argv[2])\n"
        "print('seen', [int(next(iterator)) for _ in range(3)])\n"
        "handler.finish()\n"
    )

    def life(name):
        command = [sys.executable, "-c", code, str(tmp_path / "run"), name]
        run = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
        assert run.returncode == 0, run.stderr
        return run

    first, second, third = life("a"), life("a"), life("b")
    assert "seen [0, 1, 2]" in first.stdout
    assert "seen [3, 4, 5]" in second.stdout
    assert "has no position of a data iterator" not in first.stderr + second.stderr
    assert "seen [0, 1, 2]" in third.stdout
    assert "The checkpoint has no position of a data iterator 'b'" in third.stderr
