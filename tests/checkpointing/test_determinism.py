from __future__ import annotations

import logging

import pytest

from tf_preempt.checkpointing import determinism
from tf_preempt.strategies import _tf_internals


@pytest.mark.parametrize(("is_on", "warnings"), [(False, 1), (True, 0)])
def test_op_determinism_is_warned_of_once_where_it_is_off(
    is_on: bool, warnings: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(determinism, "_warned", False)
    monkeypatch.setattr(_tf_internals, "op_determinism_is_on", lambda: is_on)
    for _ in range(3):
        determinism.warn_if_ops_may_differ()
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * warnings
    for message in caplog.messages:
        assert "Op determinism is off" in message
        assert "HINT: " in message
        assert "tf.config.experimental.enable_op_determinism()" in message
        assert "set_random_seed" in message


PROGRAM = """
import sys, tensorflow as tf, tf_preempt
if sys.argv[1] == "on":
    tf.config.experimental.enable_op_determinism()
checkpoint = tf.train.Checkpoint(variable=tf.Variable(0.0))
for life in range(2):
    handler = tf_preempt.PreemptionCheckpointHandler(None, checkpoint, sys.argv[2], verbose=int(sys.argv[3]))
    handler.finish()
"""


@pytest.mark.parametrize(
    ("word", "environ", "warnings"),
    [("off", {}, 1), ("on", {}, 0), ("off", {"TF_DETERMINISTIC_OPS": "1"}, 0)],
)
def test_a_program_is_warned_once_unless_it_or_the_environment_turns_determinism_on(
    word: str, environ: dict[str, str], warnings: int, tmp_path, run_script
) -> None:
    ended = run_script(PROGRAM, word, str(tmp_path / "run"), "1", env=environ)
    assert ended.rc == 0, ended.stderr
    assert ended.stderr.count("Op determinism is off") == warnings


@pytest.mark.parametrize(("verbose", "printed"), [("1", 1), ("0", 0)])
def test_a_program_without_logging_prints_what_was_restored(
    verbose: str, printed: int, tmp_path, run_script
) -> None:
    ended = run_script(PROGRAM, "on", str(tmp_path / "run"), verbose)
    assert ended.rc == 0, ended.stderr
    assert ended.stdout.count(f"tf_preempt: Restored step 0 from {tmp_path / 'run'}/ckpt-1.\n") == printed
    assert "Restored" not in ended.stderr
