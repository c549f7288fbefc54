"""What importing the package costs and offers."""

from __future__ import annotations

import importlib
import os
import statistics
import subprocess
import sys
import time

import pytest

import tf_preempt

_WITHOUT_TENSORFLOW = [
    "tf_preempt",
    "tf_preempt.errors",
    "tf_preempt.termination",
    "tf_preempt.termination.exit_codes",
    "tf_preempt.launch",
    "tf_preempt.goodput",
    "tf_preempt.testing.resume_equivalence",
    "tf_preempt.checkpointing.manifest",
    "tf_preempt.checkpointing.rounds",
    "tf_preempt.checkpointing.agreement",
    "tf_preempt.checkpointing.cadence",
    "tf_preempt.cli.main",
]
_COMMANDS = {
    "module": [sys.executable, "-m", "tf_preempt"],
    "script": [os.path.join(os.path.dirname(sys.executable), "tf-preempt")],
}
_START_LIMIT_S = 0.3


@pytest.mark.parametrize("name", tf_preempt.__all__)
def test_public_name_resolves_and_is_listed(name):
    assert getattr(tf_preempt, name) is not None
    assert name in dir(tf_preempt)


def test_names_load_when_first_used(run_script):
    result = run_script(
        "import sys\n"
        "import tf_preempt\n"
        "assert not [name for name in sys.modules if name.startswith('tf_preempt.termination')]\n"
        "assert tf_preempt.TerminationConfig.__module__ == 'tf_preempt.termination.config'\n"
        "assert tf_preempt.termination is sys.modules['tf_preempt.termination']\n"
    )
    assert result.rc == 0, result.stderr


def test_unknown_name_is_an_attribute_error_that_names_it():
    with pytest.raises(AttributeError, match="no attribute 'PreemptionHandler'"):
        tf_preempt.PreemptionHandler  # noqa: B018


@pytest.mark.parametrize(
    "package", ["callbacks", "cluster_resolvers", "errors", "strategies", "termination", "testing"]
)
def test_public_packages_say_what_is_public(package):
    module = importlib.import_module(f"tf_preempt.{package}")
    assert len(set(module.__all__)) == len(module.__all__)
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


@pytest.mark.parametrize("module", _WITHOUT_TENSORFLOW)
def test_runs_without_tensorflow(module, run_script):
    result = run_script(
        "import importlib, sys\n"
        "importlib.import_module(sys.argv[1])\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "print(sorted(loaded & {'tensorflow', 'keras', 'matplotlib', 'requests', 'rich'}))\n",
        module,
    )
    assert (result.rc, result.stdout) == (0, "[]\n"), result.stderr


def test_import_sets_no_environment_variable_and_starts_no_thread(run_script):
    result = run_script(
        "import os, signal, sys, threading\n"
        "environ = dict(os.environ)\n"
        "import logging, tf_preempt.termination, tf_preempt.errors\n"
        "assert dict(os.environ) == environ\n"
        "assert threading.active_count() == 1\n"
        "assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL\n"
        "assert not logging.getLogger('tf_preempt').handlers\n"
    )
    assert result.rc == 0, result.stderr


@pytest.mark.parametrize("command", _COMMANDS)
def test_help_comes_in_under_300_ms(command, tmp_path):
    environ = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(tf_preempt.__file__))}
    seconds = []
    for _ in range(6):
        start = time.monotonic()
        done = subprocess.run(
            [*_COMMANDS[command], "--help"],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=60,
        )
        seconds.append(time.monotonic() - start)
        assert done.returncode == 0, done.stderr
        assert "demo" in done.stdout
    # The first run may have to write bytecode, as after an installation.
    assert statistics.median(seconds[1:]) < _START_LIMIT_S, seconds


@pytest.mark.parametrize("command", _COMMANDS)
def test_help_does_not_import_tensorflow(command, tmp_path):
    environ = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(tf_preempt.__file__))}
    environ["PYTHONPROFILEIMPORTTIME"] = "1"
    done = subprocess.run(
        [*_COMMANDS[command], "--help"], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr[-2000:]
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "tf_preempt.cli.main" in imported
    assert not {name for name in imported if name.partition(".")[0] in {"tensorflow", "keras"}}
