from __future__ import annotations

import faulthandler
import os
import select
import signal
import threading
import time

import pytest

from tf_preempt import _slurm_control
from tf_preempt.errors import ConfigError, SlurmError
from tf_preempt.termination import (
    FunctionWatcher,
    Platform,
    SignalWatcher,
    SlurmOptions,
    TerminationConfig,
    auto,
    detect_platform,
    make_watchers,
)
from tf_preempt.termination.exit_codes import restart_exit_code
from tf_preempt.termination.slurm_time_limit import TimeLimitWatcher

_GCE = "Google Compute Engine\n"
_PC = "Standard PC (Q35 + ICH9, 2009)\n"
_ON_AGENT_PLATFORM = {"CLOUD_ML_JOB_ID": "123", "AIP_MODEL_DIR": "gs://b/model/"}
_IN_POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
_IN_STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}


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


@pytest.fixture
def watch_on_slurm(monkeypatch):
    """Makes the watchers of a Slurm job whose controller is nowhere, and closes them."""
    monkeypatch.setattr(_slurm_control, "_USUAL_PLACES", "")
    watchers = []

    def make(*, environ=_IN_STEP, slurm=None, signals=None, **options):
        config = TerminationConfig(signals=signals, slurm=slurm or SlurmOptions())
        watchers.extend(make_watchers(config, Platform.SLURM, environ=environ, **options))
        return watchers

    yield make
    for watcher in watchers:
        watcher.close()


def watched_signals(watchers):
    names = [
        {number.name for number in watcher.signals}
        for watcher in watchers
        if isinstance(watcher, SignalWatcher)
    ]
    assert len(names) <= 1
    return names[0] if names else set()


def watches_limit(watchers):
    return any(isinstance(watcher, TimeLimitWatcher) for watcher in watchers)


@pytest.fixture
def own_handler():
    """Gives a signal a handler of the program's own, and takes it back."""
    before = {}

    def install(name, handler):
        number = signal.Signals[name]
        before[number] = signal.signal(number, handler)
        return handler

    yield install
    for number, handler in before.items():
        signal.signal(number, handler)


def test_in_a_slurm_job_the_usual_signals_and_the_time_limit_are_watched(watch_on_slurm, caplog):
    caplog.set_level("INFO")
    watchers = watch_on_slurm()
    assert watched_signals(watchers) == {"SIGTERM", "SIGUSR1", "SIGUSR2"}
    assert watches_limit(watchers)
    assert (
        "Platform slurm; sources of termination notices: SIGTERM, SIGUSR1, SIGUSR2, the job's time limit."
        in caplog.messages
    )


@pytest.mark.parametrize("handler", [lambda number, frame: None, signal.SIG_IGN], ids=["function", "ignored"])
def test_a_signal_that_the_program_handles_itself_is_left_alone(watch_on_slurm, own_handler, handler):
    own_handler("SIGUSR1", handler)
    assert watched_signals(watch_on_slurm()) == {"SIGTERM", "SIGUSR2"}
    assert signal.getsignal(signal.SIGUSR1) is handler


def test_a_handler_of_c_code_counts_as_the_programs_own(watch_on_slurm, tmp_path):
    with (tmp_path / "stacks").open("w", encoding="utf-8") as file:
        faulthandler.register(signal.SIGUSR2, file=file)
        try:
            assert watched_signals(watch_on_slurm()) == {"SIGTERM", "SIGUSR1"}
            signal.raise_signal(signal.SIGUSR2)
        finally:
            faulthandler.unregister(signal.SIGUSR2)
    assert "test_a_handler_of_c_code" in (tmp_path / "stacks").read_text(encoding="utf-8")


def test_a_signal_that_is_named_is_watched_all_the_same(watch_on_slurm, own_handler):
    own_handler("SIGUSR1", lambda number, frame: None)
    assert watched_signals(watch_on_slurm(signals=("SIGUSR1",))) == {"SIGUSR1"}


def test_a_handler_for_sigterm_does_not_keep_it_from_being_watched(watch_on_slurm, own_handler):
    own_handler("SIGTERM", lambda number, frame: None)
    assert "SIGTERM" in watched_signals(watch_on_slurm())


def test_signals_may_be_switched_off_and_the_time_limit_stays(watch_on_slurm):
    watchers = watch_on_slurm(signals=())
    assert watched_signals(watchers) == set()
    assert watches_limit(watchers)


@pytest.mark.parametrize(
    ("options", "is_chief", "expected"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"time_limit_lead_s": 300.0}, True, True),
        ({"time_limit_lead_s": 300.0}, False, False),
        ({"time_limit_lead_s": 0}, True, False),
        ({"requeue": "never"}, True, True),
    ],
)
def test_the_time_limit_is_watched_by_the_chief_alone(watch_on_slurm, options, is_chief, expected):
    watchers = watch_on_slurm(slurm=SlurmOptions(**options), is_chief=is_chief)
    assert watches_limit(watchers) is expected
    assert watched_signals(watchers) == {"SIGTERM", "SIGUSR1", "SIGUSR2"}


@pytest.mark.parametrize(
    ("lead_s", "save_s", "left_s"),
    [(300.0, None, 290.0), (None, None, 50.0), (None, 60.0, 230.0)],
    ids=["lead", "default", "saves"],
)
def test_the_time_limits_notice_comes_as_early_as_asked_for(watch_on_slurm, lead_s, save_s, left_s):
    watchers = watch_on_slurm(
        environ={**_IN_STEP, "SLURM_JOB_END_TIME": str(int(time.time() + left_s))},
        slurm=SlurmOptions(time_limit_lead_s=lead_s),
        save_seconds=lambda: save_s,
    )
    (watcher,) = (watcher for watcher in watchers if isinstance(watcher, TimeLimitWatcher))
    assert select.select([watcher.fileno()], [], [], 10)[0], "no notice within 10 s"
    assert left_s - 30.0 < watcher.poll().remaining_s() <= left_s


@pytest.mark.parametrize("platform", sorted(set(Platform) - {Platform.SLURM}))
def test_elsewhere_slurms_signals_and_its_time_limit_are_not_watched(platform):
    watchers = make_watchers(TerminationConfig(), platform, environ=_IN_STEP)
    try:
        assert watched_signals(watchers) == {"SIGTERM"}
        assert not watches_limit(watchers)
    finally:
        for watcher in watchers:
            watcher.close()


@pytest.mark.parametrize(
    ("environ", "words"),
    [({}, "SLURM_JOB_ID is not set"), ({**_IN_STEP, "SLURM_RESTART_COUNT": "x"}, "SLURM_RESTART_COUNT='x'")],
)
def test_a_wrong_variable_of_slurm_is_refused_before_anything_is_caught(watch_on_slurm, environ, words):
    with pytest.raises(SlurmError, match=words):
        watch_on_slurm(environ=environ)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_watchers_that_are_still_open_do_not_count_as_handlers_of_the_program(watch_on_slurm):
    watch_on_slurm()
    watchers = watch_on_slurm()
    first, second = (watcher for watcher in watchers if isinstance(watcher, SignalWatcher))
    assert (
        {number.name for number in second.signals}
        == {number.name for number in first.signals}
        == {"SIGTERM", "SIGUSR1", "SIGUSR2"}
    )


def test_watchers_over_a_handler_of_the_program_do_not_hide_it(watch_on_slurm, own_handler):
    own_handler("SIGUSR1", lambda *_: None)
    (watcher,) = make_watchers(TerminationConfig(signals=("SIGUSR1",)), Platform.LOCAL)
    with watcher:
        assert watched_signals(watch_on_slurm()) == {"SIGTERM", "SIGUSR2"}


@pytest.mark.parametrize(
    ("status", "caught"),
    [
        ("Name:\tx\nSigCgt:\t0000000000000a00\nSigIgn:\tffff\n", {signal.SIGUSR1, signal.SIGUSR2}),
        ("SigCgt:\t0000000000000000\n", set()),
        ("SigCgt:\t4000000000000000\n", {63}),
        ("SigCgt:\n", set()),
        ("SigCgt:\tnothing\n", set()),
        ("Name:\tx\n", set()),
    ],
)
def test_caught_signals_are_read_from_the_kernels_word(tmp_path, status, caught):
    path = tmp_path / "status"
    path.write_text(status, encoding="ascii")
    assert auto._caught_signals(path) == caught


def test_without_the_kernels_word_no_other_handlers_are_known(tmp_path):
    assert auto._caught_signals(tmp_path / "missing") == set()
