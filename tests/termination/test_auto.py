from __future__ import annotations

import os
import signal
import threading

import pytest

from tf_preempt.errors import ConfigError
from tf_preempt.termination import (
    FunctionWatcher,
    Platform,
    SignalWatcher,
    TerminationConfig,
    detect_platform,
    make_watchers,
)
from tf_preempt.termination.exit_codes import restart_exit_code

_GCE = "Google Compute Engine\n"
_PC = "Standard PC (Q35 + ICH9, 2009)\n"
_ON_AGENT_PLATFORM = {"CLOUD_ML_JOB_ID": "123", "AIP_MODEL_DIR": "gs://b/model/"}
_IN_POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}


@pytest.mark.parametrize(
    ("environ", "product", "platform"),
    [
        ({}, _PC, Platform.LOCAL),
        ({}, "", Platform.LOCAL),
        ({"SLURM_CONF": "/etc/slurm.conf"}, _PC, Platform.LOCAL),
        ({"SLURM_JOB_ID": "7"}, _PC, Platform.SLURM),
        ({"SLURM_JOB_ID": ""}, _PC, Platform.LOCAL),
        ({}, _GCE, Platform.GCE),
        ({"SLURM_JOB_ID": "7"}, _GCE, Platform.SLURM),
        (_IN_POD, _PC, Platform.KUBERNETES),
        (_IN_POD, _GCE, Platform.KUBERNETES),
        ({**_IN_POD, "SLURM_JOB_ID": "7"}, _PC, Platform.SLURM),
        (_ON_AGENT_PLATFORM, _PC, Platform.AGENT_PLATFORM),
        ({**_ON_AGENT_PLATFORM, **_IN_POD}, _GCE, Platform.AGENT_PLATFORM),
        ({"AIP_CHECKPOINT_DIR": "gs://b/checkpoints/"}, _GCE, Platform.AGENT_PLATFORM),
        ({"AIP_CHECKPOINT_DIR": "", "CLOUD_ML_JOB_ID": ""}, _PC, Platform.LOCAL),
        ({"GCE_METADATA_HOST": "127.0.0.1:80"}, _PC, Platform.LOCAL),
    ],
)
def test_platform_from_environment_and_firmware(environ, product, platform):
    assert detect_platform(environ, dmi_product_name=lambda: product) is platform


def test_product_name_is_read_from_a_file(tmp_path):
    path = tmp_path / "product_name"
    path.write_text(_GCE)
    assert detect_platform({}, dmi_product_name=path) is Platform.GCE
    assert detect_platform({}, dmi_product_name=str(path)) is Platform.GCE


def test_machine_without_a_product_name_is_local(tmp_path):
    assert detect_platform({}, dmi_product_name=tmp_path / "missing") is Platform.LOCAL


def test_network_is_not_touched(run_script):
    result = run_script(
        "import sys\n"
        "sys.addaudithook(lambda event, _: event.startswith('socket.') and sys.exit(f'network: {event}'))\n"
        "from tf_preempt.termination import detect_platform\n"
        "print(detect_platform())\n"
    )
    assert result.rc == 0, result.stderr


def test_every_platform_prints_as_its_value_and_has_a_restart_code():
    for platform in Platform:
        assert f"{platform}" == str(platform) == platform.value
        assert restart_exit_code(platform) > 0


@pytest.mark.parametrize("platform", sorted(set(Platform) - {Platform.SLURM}))
@pytest.mark.parametrize(
    ("config", "kinds"),
    [
        (TerminationConfig(), {SignalWatcher}),
        (TerminationConfig(lambda: False), {SignalWatcher, FunctionWatcher}),
        (TerminationConfig(lambda: False, signals=()), {FunctionWatcher}),
        (TerminationConfig(signals=()), set()),
    ],
    ids=["default", "function too", "function only", "nothing"],
)
def test_watchers_are_those_asked_for(platform, config, kinds):
    watchers = make_watchers(config, platform)
    try:
        assert {type(watcher) for watcher in watchers} == kinds
        assert len(watchers) == len(kinds)
    finally:
        for watcher in watchers:
            watcher.close()


def test_watched_signals_are_those_configured():
    (watcher,) = make_watchers(TerminationConfig(signals=("SIGUSR1", "SIGUSR2")), Platform.LOCAL)
    with watcher:
        for number in (signal.SIGUSR2, signal.SIGUSR1):
            os.kill(os.getpid(), number)
        assert watcher.signals == {signal.SIGUSR1, signal.SIGUSR2}


def test_outside_the_main_thread_signals_have_to_be_switched_off():
    caught = []

    def run():
        try:
            make_watchers(TerminationConfig(), Platform.LOCAL)
        except ConfigError as error:
            caught.append(error)
        make_watchers(TerminationConfig(lambda: False, signals=()), Platform.LOCAL)

    thread = threading.Thread(target=run, name="notebook-cell")
    thread.start()
    thread.join(10)
    assert "'notebook-cell'" in str(caught[0])
    assert "signals=()" in caught[0].hint
