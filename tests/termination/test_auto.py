from __future__ import annotations

import faulthandler
import os
import queue
import select
import signal
import threading
import time

import pytest

from tests.termination.metadata_cases import notice_of
from tf_preempt import _slurm_control
from tf_preempt.errors import ConfigError, SlurmError
from tf_preempt.termination import (
    AwsWatcher,
    AzureWatcher,
    FunctionWatcher,
    GceMaintenanceWatcher,
    GcePreemptionWatcher,
    GceUpcomingMaintenanceWatcher,
    Platform,
    SignalWatcher,
    SlurmOptions,
    TerminationConfig,
    TerminationMonitor,
    auto,
    detect_platform,
    make_watchers,
)
from tf_preempt.termination.cloud import Firmware
from tf_preempt.termination.exit_codes import restart_exit_code
from tf_preempt.termination.grace import GraceSignalWatcher
from tf_preempt.termination.slurm_time_limit import TimeLimitWatcher
from tf_preempt.termination.watcher import LentWatcher
from tf_preempt.testing import FakeMetadataServer

_GCE = "Google Compute Engine\n"
_PC = "Standard PC (Q35 + ICH9, 2009)\n"
_ON_AGENT_PLATFORM = {"CLOUD_ML_JOB_ID": "123", "AIP_MODEL_DIR": "gs://b/model/"}
_IN_POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
_IN_STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
_CLOUDS = {
    "gce": {GceMaintenanceWatcher, GcePreemptionWatcher, GceUpcomingMaintenanceWatcher},
    "aws": {AwsWatcher},
    "azure": {AzureWatcher},
}


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
        ({"TF_PREEMPT_CLOUD": "gce"}, _PC, Platform.GCE),
        ({"TF_PREEMPT_CLOUD": "aws"}, _PC, Platform.AWS),
        ({"TF_PREEMPT_CLOUD": "azure"}, _GCE, Platform.AZURE),
        ({"TF_PREEMPT_CLOUD": "none"}, _GCE, Platform.LOCAL),
        ({"TF_PREEMPT_CLOUD": "aws", "SLURM_JOB_ID": "7"}, _GCE, Platform.SLURM),
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


@pytest.mark.parametrize(
    ("firmware", "platform"),
    [
        (Firmware(sys_vendor="Amazon EC2"), Platform.AWS),
        (Firmware(chassis_asset_tag="7783-7084-3265-9085-8269-3286-77"), Platform.AZURE),
        (Firmware(product_name="Google Compute Engine"), Platform.GCE),
        (Firmware(), Platform.LOCAL),
    ],
)
def test_platform_from_the_whole_firmware(firmware, platform):
    assert detect_platform({}, firmware=firmware) is platform


_NO_NETWORK = """
import sys
def refuse(event, _):
    if event.startswith("socket."):
        print("network:", event)
        sys.stdout.flush()
        raise SystemExit(3)
sys.addaudithook(refuse)
import time
from tf_preempt.termination import TerminationConfig, detect_platform, make_watchers
"""


def test_network_is_not_touched(run_script):
    result = run_script(_NO_NETWORK + "print(detect_platform())\n")
    assert result.rc == 0, result.stdout + result.stderr


def test_where_nothing_suggests_a_cloud_its_watchers_cost_no_network_no_thread_and_little_time(run_script):
    result = run_script(
        _NO_NETWORK
        + "import threading\n"
        + "from tf_preempt.termination.cloud import Firmware\n"
        + "began = time.monotonic()\n"
        + "platform = detect_platform({}, firmware=Firmware())\n"
        + "config = TerminationConfig(signals=())\n"
        + "watchers = make_watchers(config, platform, environ={}, firmware=Firmware())\n"
        + "assert time.monotonic() - began < 0.5\n"
        + "assert threading.active_count() == 1\n"
        + "assert not {'http.client', 'tensorflow'} & set(sys.modules), sys.modules\n"
        + "print(platform, len(watchers))\n"
    )
    assert (result.rc, result.stdout) == (0, "local 0\n"), result.stdout + result.stderr


def test_the_hook_of_these_tests_sees_a_socket(run_script):
    result = run_script(_NO_NETWORK + "import socket\nsocket.socket()\n")
    assert (result.rc, result.stdout) == (3, "network: socket.__new__\n")


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
    watchers = make_watchers(config, platform, environ={}, firmware=Firmware())
    try:
        assert {type(watcher) for watcher in watchers} == kinds
        assert len(watchers) == len(kinds)
    finally:
        for watcher in watchers:
            watcher.close()


def test_watched_signals_are_those_configured():
    (watcher,) = make_watchers(
        TerminationConfig(signals=("SIGUSR1", "SIGUSR2")), Platform.LOCAL, environ={}, firmware=Firmware()
    )
    with watcher:
        for number in (signal.SIGUSR2, signal.SIGUSR1):
            os.kill(os.getpid(), number)
        assert watcher.signals == {signal.SIGUSR1, signal.SIGUSR2}


@pytest.mark.parametrize(
    ("signals", "watched"),
    [
        (None, {"SIGTERM", "SIGINT"}),
        ((), {"SIGINT"}),
        (("SIGUSR1", "SIGINT"), {"SIGUSR1", "SIGINT"}),
    ],
)
def test_ctrl_c_is_watched_where_it_is_to_save(signals, watched):
    config = TerminationConfig(signals=signals, save_on_interrupt=True)
    (watcher,) = make_watchers(config, Platform.LOCAL, environ={}, firmware=Firmware())
    with watcher:
        assert {number.name for number in watcher.signals} == watched


def test_outside_the_main_thread_signals_have_to_be_switched_off():
    caught = []

    def run():
        try:
            make_watchers(TerminationConfig(), Platform.LOCAL, environ={})
        except ConfigError as error:
            caught.append(error)
        make_watchers(TerminationConfig(lambda: False, signals=()), Platform.LOCAL, environ={})

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
        watchers.extend(
            make_watchers(config, Platform.SLURM, environ=environ, firmware=Firmware(), **options)
        )
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
    watchers = make_watchers(TerminationConfig(), platform, environ=_IN_STEP, firmware=Firmware())
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
    (watcher,) = make_watchers(
        TerminationConfig(signals=("SIGUSR1",)), Platform.LOCAL, environ={}, firmware=Firmware()
    )
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


@pytest.fixture
def watch_on_cloud(monkeypatch):
    """Makes the watchers of a cloud whose metadata server is on this machine, and closes them."""
    monkeypatch.setattr(_slurm_control, "_USUAL_PLACES", "")
    watchers = []
    with FakeMetadataServer() as server:
        environ = {}
        for cloud in _CLOUDS:
            environ |= server.environ(cloud)
        del environ["TF_PREEMPT_CLOUD"]

        def make(platform, firmware, *, config=None, **variables):
            watchers.extend(
                make_watchers(
                    config or TerminationConfig(),
                    platform,
                    environ={**environ, **_IN_STEP, **variables},
                    firmware=firmware,
                )
            )
            return {type(watcher) for watcher in watchers} - {SignalWatcher, TimeLimitWatcher}

        make.server, make.watchers = server, watchers
        yield make
        for watcher in watchers:
            watcher.close()


_FIRMWARES = {
    "gce": Firmware(product_name="Google Compute Engine"),
    "aws": Firmware(sys_vendor="Amazon EC2"),
    "azure": Firmware(chassis_asset_tag="7783-7084-3265-9085-8269-3286-77"),
}


@pytest.mark.parametrize("cloud", _CLOUDS)
@pytest.mark.parametrize("platform", sorted(set(Platform) - {Platform.AGENT_PLATFORM}))
def test_the_machine_decides_whose_server_is_asked_and_not_who_started_the_program(
    watch_on_cloud, cloud, platform
):
    assert watch_on_cloud(platform, _FIRMWARES[cloud]) == _CLOUDS[cloud]


@pytest.mark.parametrize("cloud", _CLOUDS)
def test_agent_platform_sees_to_its_machines_itself(watch_on_cloud, cloud):
    assert watch_on_cloud(Platform.AGENT_PLATFORM, _FIRMWARES[cloud]) == set()
    assert watch_on_cloud.server.asked() == 0


@pytest.mark.parametrize("cloud", _CLOUDS)
def test_a_cloud_may_be_named_or_excluded(watch_on_cloud, cloud):
    assert watch_on_cloud(Platform.LOCAL, _FIRMWARES[cloud], TF_PREEMPT_CLOUD="none") == set()
    assert watch_on_cloud(Platform.LOCAL, Firmware(), TF_PREEMPT_CLOUD=cloud) == _CLOUDS[cloud]


@pytest.mark.parametrize(("value", "kinds"), [("true", set()), ("True", set()), ("false", {AwsWatcher})])
def test_amazons_server_is_not_asked_where_its_own_libraries_must_not(watch_on_cloud, value, kinds):
    assert watch_on_cloud(Platform.AWS, _FIRMWARES["aws"], AWS_EC2_METADATA_DISABLED=value) == kinds


@pytest.mark.parametrize(
    ("cloud", "path", "happen", "source"),
    [
        ("gce", "maintenance-event", lambda server: server.gce.maintain(), "gce-maintenance"),
        ("gce", "preempted", lambda server: server.gce.preempt(), "gce-preempted"),
        ("gce", "upcoming", lambda server: server.gce.appoint(in_s=60), "gce-upcoming-maintenance"),
        ("aws", "instance-action", lambda server: server.aws.interrupt(), "aws-spot"),
        ("azure", "scheduledevents", lambda server: server.azure.schedule(), "azure-scheduled-event"),
    ],
)
def test_what_a_cloud_says_reaches_the_monitor(watch_on_cloud, cloud, path, happen, source):
    watch_on_cloud(Platform.SLURM, _FIRMWARES[cloud])
    watch_on_cloud.server.wait_until_asked(path)  # the first answer is no news
    notices = queue.Queue()
    happen(watch_on_cloud.server)
    with TerminationMonitor(watch_on_cloud.watchers, notices.put):
        assert notices.get(timeout=30).source == source


def test_a_wrong_address_is_refused_and_nothing_stays_caught(watch_on_cloud):
    with pytest.raises(ConfigError, match="GCE_METADATA_HOST='x y'"):
        watch_on_cloud(Platform.GCE, _FIRMWARES["gce"], GCE_METADATA_HOST="x y")
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_watcher_of_the_platforms_class_stands_in_the_place_of_the_platforms(watch_on_cloud):
    class Mine(GcePreemptionWatcher):
        pass

    environ = watch_on_cloud.server.environ("gce") | watch_on_cloud.server.environ("aws")
    with Mine(environ=environ) as mine, AwsWatcher(environ=environ) as of_another_cloud:
        config = TerminationConfig(watchers=[mine, of_another_cloud])
        kinds = watch_on_cloud(Platform.GCE, _FIRMWARES["gce"], config=config)
    assert kinds == {GceMaintenanceWatcher, GceUpcomingMaintenanceWatcher, LentWatcher}


def test_watchers_of_the_user_come_on_top_and_stay_open(caplog):
    caplog.set_level("INFO")

    class Mine(FunctionWatcher):
        closed = False

        def close(self):
            self.closed = True

    mine = Mine(lambda: True)
    config = TerminationConfig(signals=(), watchers=[mine])
    (watcher,) = make_watchers(config, Platform.LOCAL, environ={}, firmware=Firmware())
    assert isinstance(watcher, LentWatcher)
    with watcher:
        assert watcher.poll() is not None
    assert not mine.closed
    assert "Platform local; sources of termination notices: Mine." in caplog.messages


def test_the_grace_after_sigterm_is_its_deadline_on_every_platform():
    (watcher,) = make_watchers(
        TerminationConfig(), Platform.KUBERNETES, environ={"TF_PREEMPT_GRACE_S": "25"}, firmware=Firmware()
    )
    with watcher:
        assert isinstance(watcher, GraceSignalWatcher)
        signal.raise_signal(signal.SIGTERM)
        assert 0 < notice_of(watcher).remaining_s() <= 25
