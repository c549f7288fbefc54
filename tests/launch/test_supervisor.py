import dataclasses
import json
import logging
import os
import signal
import sys
import threading
import time

import psutil
import pytest

from tf_preempt.errors import ConfigError, LaunchError
from tf_preempt.launch import tree_watch
from tf_preempt.launch.process_tree import ProcessTree
from tf_preempt.launch.restart_policy import RestartPolicy
from tf_preempt.launch.supervisor import Supervisor

QUICK = RestartPolicy(backoff_initial_s=0.01, backoff_max_s=0.02)

# Counts its lives in a file; the functions say what it can do in them.
PROGRAM = """
import json, os, signal, sys, time

def lives():
    with open("lives", "a+") as file:
        file.write("x")
        file.seek(0)
        return len(file.read())

def say(**status):
    path = os.environ["TF_PREEMPT_STATUS_FILE"]
    with open(path, "w") as file:
        json.dump({"format": 1, "incarnation": life - 1, **status}, file)

life = lives()
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Makes a supervisor of PROGRAM with something behind it, run in `tmp_path`."""
    monkeypatch.chdir(tmp_path)

    def make(source, policy=QUICK, **options):
        return Supervisor([sys.executable, "-c", PROGRAM + source], policy, **options)

    return make


@pytest.fixture
def lives(tmp_path):
    def count():
        path = tmp_path / "lives"
        return len(path.read_text()) if path.exists() else 0

    return count


@pytest.fixture
def when(tmp_path):
    """Does something in another thread as soon as a file is there."""
    threads = []

    def when(name, action):
        def wait_and_act():
            end = time.monotonic() + 30
            while not (tmp_path / name).exists() and time.monotonic() < end:
                threading.Event().wait(0.01)
            action()

        threads.append(threading.Thread(target=wait_and_act))
        threads[-1].start()

    yield when
    for thread in threads:
        thread.join(30)


def kill_self(signum):
    return lambda: os.kill(os.getpid(), signum)


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("", 0),
        ("sys.exit(1)", 1),
        ("raise ValueError", 1),
        ("os.kill(os.getpid(), 11)", 139),
        ("sys.exit(130)", 130),
    ],
)
def test_program_that_does_not_ask_for_a_restart_is_run_once(program, lives, source, code):
    assert program(source).run() == code
    assert lives() == 1


@pytest.mark.parametrize("end", ["sys.exit(42)", "sys.exit(143)", "sys.exit(134)", "os.kill(os.getpid(), 9)"])
def test_preempted_program_is_run_until_it_finishes(program, lives, end):
    assert program(f"if life < 4: {end}").run() == 0
    assert lives() == 4


def test_program_is_given_up_when_its_restarts_are_used_up(program, lives):
    policy = RestartPolicy(max_restarts=3, backoff_initial_s=0.0, backoff_max_s=0.0)
    assert program("sys.exit(42)", policy).run() == 42
    assert lives() == 4


def test_program_that_gets_nowhere_is_given_up_early(program, lives):
    assert program("say(restored_step=5, committed_step=5, commits=0); sys.exit(42)").run() == 1
    assert lives() == 2


def test_program_that_gets_further_each_time_is_not_given_up(program, lives):
    source = "say(restored_step=life, committed_step=life + 1, commits=1); sys.exit(42 if life < 6 else 0)"
    assert program(source).run() == 0
    assert lives() == 6


def test_status_of_an_earlier_life_is_not_taken_for_one_of_this(program, lives):
    source = "if life == 1: say(committed_step=1, commits=1)\nsys.exit(42)"
    assert program(source).run() == 1
    assert lives() == 3


def test_each_decision_is_one_line_with_its_reason(program, caplog):
    caplog.set_level(logging.INFO, "tf_preempt")
    source = "say(committed_step=318, commits=1); sys.exit(42 if life == 1 else 1)"
    policy = RestartPolicy(backoff_initial_s=0.04, jitter=0.0)
    assert program(source, policy).run() == 1
    assert [record.message for record in caplog.records] == [
        "restarting in 0.0 s (restart 1 of 10): exit status 42 = preempted, committed step 318",
        "not restarting: exit status 1 = permanent error, committed step 318",
    ]


def test_status_file_is_private_and_gone_afterwards(program, tmp_path):
    environ = {key: value for key, value in os.environ.items() if key != "TF_PREEMPT_STATUS_FILE"}
    assert (
        program("open('path', 'w').write(os.environ['TF_PREEMPT_STATUS_FILE'])", environ=environ).run() == 0
    )
    path = (tmp_path / "path").read_text()
    assert os.path.isabs(path)
    assert not os.path.exists(os.path.dirname(path))


def test_status_file_of_the_user_is_kept(program, tmp_path):
    path = tmp_path / "mine.json"
    path.write_text("from before")
    environ = {**os.environ, "TF_PREEMPT_STATUS_FILE": str(path)}
    assert program("say(committed_step=7, commits=1)", environ=environ).run() == 0
    assert json.loads(path.read_text())["committed_step"] == 7


@pytest.mark.parametrize("content", ["rubbish", '{"format": 99}'])
def test_status_that_cannot_be_understood_is_said_and_does_not_end_the_series(
    program, lives, caplog, content
):
    source = (
        f"open(os.environ['TF_PREEMPT_STATUS_FILE'], 'w').write({content!r}); sys.exit(42 if life < 4 else 0)"
    )
    assert program(source).run() == 0
    assert lives() == 4
    assert "progress of the program is not known" in caplog.text


SAVES = """
def save(signum, _):
    open("saved", "w").write(signal.Signals(signum).name)
    sys.exit(42)
for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(s, save)
open("ready", "w")
time.sleep(120)
"""


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_is_passed_on_and_ends_the_series_after_the_save(program, lives, when, tmp_path, signum):
    when("ready", kill_self(signum))
    assert program(SAVES).run() == 42
    assert (tmp_path / "saved").read_text() == signum.name
    assert lives() == 1


def test_what_was_passed_on_and_how_the_program_ended_is_said(program, when, caplog):
    caplog.set_level(logging.INFO, "tf_preempt")
    when("ready", kill_self(signal.SIGTERM))
    program("open('ready', 'w')\ntime.sleep(120)", stop_timeout_s=90.0).run()
    assert [record.message for record in caplog.records] == [
        "passing SIGTERM on, and waiting for the program to leave, 90 s at most",
        "not restarting: SIGTERM asked for the end, and the program has ended (killed by SIGTERM)",
    ]


GOES_ON = "; it goes on when it is started again"
IS_ENDED = 'open("ready", "w")\ntime.sleep(120)'
FAILS = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))\n"
RETURNS_75 = SAVES.replace("sys.exit(42)", "sys.exit(75)")


@pytest.mark.parametrize(
    ("source", "ended"),
    [
        ("say(committed_step=5, commits=1)" + SAVES, "exit status 42" + GOES_ON),
        ("say(restored_step=5)" + SAVES, "exit status 42" + GOES_ON),
        ("say(commits=0)" + SAVES, "exit status 42"),
        (SAVES, "exit status 42"),
        ("say(committed_step=5, commits=1)\n" + IS_ENDED, "killed by SIGTERM" + GOES_ON),
        ("say(commits=0)\n" + IS_ENDED, "killed by SIGTERM"),
        ("say(committed_step=5, commits=1)\n" + FAILS + IS_ENDED, "exit status 1"),
        ("say(committed_step=5, commits=1)" + RETURNS_75, "exit status 75" + GOES_ON),
        ("say(committed_step=5, commits=1)" + RETURNS_75.replace("75", "76"), "exit status 76"),
    ],
    ids=[
        *("saves and leaves", "was restored and leaves", "leaves without a save", "does not tell"),
        *("is killed while it leaves", "is killed and has saved nothing", "fails"),
        *("leaves with a status of its own", "leaves with a status that says nothing"),
    ],
)
def test_of_a_program_that_has_saved_it_is_said_that_it_goes_on_another_time(
    program, when, caplog, source, ended
):
    caplog.set_level(logging.INFO, "tf_preempt")
    when("ready", kill_self(signal.SIGTERM))
    program(source, dataclasses.replace(QUICK, restart_codes=frozenset({75}))).run()
    assert caplog.records[-1].message == (
        f"not restarting: SIGTERM asked for the end, and the program has ended ({ended})"
    )


def test_program_that_finishes_after_a_signal_is_a_success(program, when):
    when("ready", kill_self(signal.SIGTERM))
    source = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\nopen('ready', 'w')\ntime.sleep(120)"
    assert program(source).run() == 0


def test_early_warning_is_passed_on_and_the_program_restarted(program, lives, when):
    when("ready", kill_self(signal.SIGUSR1))
    source = """
if life == 2: sys.exit(0)
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(42))
open("ready", "w")
time.sleep(120)
"""
    assert program(source).run() == 0
    assert lives() == 2


@pytest.mark.parametrize("signum", [signal.SIGUSR1, signal.SIGUSR2])
def test_early_warning_to_everything_in_a_step_ends_the_program_and_not_the_series(
    program, lives, when, tmp_path, signum
):
    def warn_everybody():
        for pid in (os.getpid(), int((tmp_path / "ready").read_text())):
            os.kill(pid, signum)

    when("ready", warn_everybody)
    source = f"""
if life == 2: sys.exit(0)
def save(*_):
    open("saved", "a").write("x")
    sys.exit(42)
signal.signal({int(signum)}, save)
open("pid", "w").write(str(os.getpid()))
os.rename("pid", "ready")
time.sleep(120)
"""
    assert program(source).run() == 0
    assert lives() == 2
    assert (tmp_path / "saved").exists()


@pytest.fixture
def signal_between_lives(caplog, monkeypatch):
    """Makes this process get a signal as soon as the supervisor begins to wait for a restart."""
    caplog.set_level(logging.INFO, "tf_preempt")
    keep = caplog.handler.emit

    def signal_between_lives(signum):
        def emit(record):
            keep(record)
            if record.getMessage().startswith("restarting in"):
                os.kill(os.getpid(), signum)

        monkeypatch.setattr(caplog.handler, "emit", emit)

    return signal_between_lives


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 42), (signal.SIGINT, 130)])
def test_signal_between_two_lives_ends_the_series_at_once(program, lives, signal_between_lives, signum, code):
    signal_between_lives(signum)
    policy = RestartPolicy(backoff_initial_s=3600.0, backoff_max_s=3600.0)
    assert program("sys.exit(42)", policy).run() == code
    assert lives() == 1


def test_early_warning_between_two_lives_ends_nothing_and_is_said(
    program, lives, signal_between_lives, caplog
):
    signal_between_lives(signal.SIGUSR1)
    assert program("sys.exit(42 if life < 3 else 0)").run() == 0
    assert lives() == 3
    assert caplog.text.count("not passing SIGUSR1 on: no program runs just now") == 2


def test_program_that_ignores_signals_is_killed_with_all_it_started(program, when, tmp_path, gone):
    source = """
import subprocess
ignore = "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(120)"
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", ignore], start_new_session=True, stdout=subprocess.PIPE)
child.stdout.readline()
open("child", "w").write(str(child.pid))
os.rename("child", "ready")
time.sleep(120)
"""
    found = []
    when(
        "ready",
        lambda: (found.append(psutil.Process(int((tmp_path / "ready").read_text()))), kill_self(15)()),
    )
    assert program(source, stop_timeout_s=0.3).run() == 137
    assert gone(found[0])


def test_what_a_dead_program_left_running_is_ended_before_the_restart(program):
    source = """
import subprocess
if life == 1:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"], start_new_session=True)
    open("child", "w").write(str(child.pid))
    os.kill(os.getpid(), signal.SIGKILL)
import psutil
pid = int(open("child").read())
sys.exit(1 if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE else 0)
"""
    assert program(source).run() == 0


def test_supervisor_can_run_outside_the_main_thread(program, lives):
    codes = []
    supervisor = program("sys.exit(42 if life == 1 else 0)")
    thread = threading.Thread(target=lambda: codes.append(supervisor.run()))
    thread.start()
    thread.join(30)
    assert (codes, lives()) == ([0], 2)


def test_signal_handlers_are_put_back(program):
    before = signal.getsignal(signal.SIGTERM)
    program("").run()
    assert signal.getsignal(signal.SIGTERM) is before


def test_killed_supervisor_leaves_nothing_behind_for_long(start_script, gone):
    supervisor = start_script(
        """
import sys
from tf_preempt.launch.supervisor import Supervisor
Supervisor([sys.executable, "-c", sys.argv[1]]).run()
""",
        "import os, time; print('pid', os.getpid(), flush=True); time.sleep(120)",
    )
    program = psutil.Process(int(supervisor.wait_for(r"pid (\d+)\n", 30)[1]))
    supervisor.process.kill()
    supervisor.process.wait(10)
    assert gone(program)


@pytest.mark.parametrize(("command", "error"), [([], ConfigError), (["no-such-program"], LaunchError)])
def test_command_that_cannot_be_run_is_an_error(command, error):
    with pytest.raises(error):
        Supervisor(command).run()


def test_wrong_time_out_is_named():
    with pytest.raises(ConfigError, match="stop_timeout_s=-1"):
        Supervisor(["true"], stop_timeout_s=-1.0)


def test_program_that_survives_sigkill_is_an_error_and_does_not_keep_us(program, when, monkeypatch):
    real_kill, trees = ProcessTree.kill, []
    monkeypatch.setattr(tree_watch, "_AFTER_KILL_S", 0.1)
    monkeypatch.setattr(ProcessTree, "kill", lambda tree: trees.append(tree))
    supervisor = program(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nopen('ready', 'w').close()\ntime.sleep(20)",
        stop_timeout_s=0.0,
    )
    when("ready", lambda: os.kill(os.getpid(), signal.SIGTERM))
    try:
        with pytest.raises(LaunchError, match=r"(?s)has not ended.*HINT: it hangs"):
            supervisor.run()
    finally:
        for tree in trees[:1]:
            real_kill(tree)
